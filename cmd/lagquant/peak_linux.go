package main

import (
	"os"
	"strconv"
	"strings"
)

// peakMemory is the largest resident size that the process had, in bytes; 0 where the system does not tell.
// It is read from VmHWM, since ru_maxrss is inherited from the process that started this one.
func peakMemory() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10
		}
	}
	return 0
}
