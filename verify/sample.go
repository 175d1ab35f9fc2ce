package verify

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
)

// Sample is a part of the modules, chosen by a hash of their names: the same on every machine, and spread over all layers.
// The zero value is everything.
type Sample struct {
	from, to, of uint64 // hashes h with from <= h mod of < to
	text         string
}

// ParseSample reads "n/t", the n-th of t parts which together are everything, or a percentage such as "5%" or "0.5%".
func ParseSample(s string) (Sample, error) {
	if percent, ok := strings.CutSuffix(s, "%"); ok {
		p, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(p > 0 && p <= 100) {
			return Sample{}, badSample(s)
		}
		const steps = 1_000_000
		return Sample{0, max(1, uint64(p/100*steps+0.5)), steps, s}, nil
	}
	n, t, ok := strings.Cut(s, "/")
	part, err1 := strconv.ParseUint(n, 10, 32)
	parts, err2 := strconv.ParseUint(t, 10, 32)
	if !ok || err1 != nil || err2 != nil || part == 0 || part > parts {
		return Sample{}, badSample(s)
	}
	return Sample{part - 1, part, parts, s}, nil
}

func badSample(s string) error {
	return &fault.Error{
		Kind: fault.Usage, Problem: fmt.Sprintf("bad sample %q", s),
		Hint: "give a part of parts, such as 1/20, or a percentage above 0 and up to 100, such as 5%",
	}
}

// String returns the sample as it was given, and "all" for everything.
func (s Sample) String() string {
	if s.of == 0 {
		return "all"
	}
	return s.text
}

// Has says whether the module, or the fused set of that name, is in the sample.
func (s Sample) Has(module string) bool {
	if s.of == 0 {
		return true
	}
	h := sha256.Sum256([]byte(module))
	v := binary.LittleEndian.Uint64(h[:]) % s.of
	return s.from <= v && v < s.to
}
