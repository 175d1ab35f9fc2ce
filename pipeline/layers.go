package pipeline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
)

// maxLayer bounds what a layer list may name, so that a slip such as 40-4700000000 is an error and not a long wait.
const maxLayer = 1 << 16

// ParseLayers reads a layer list such as "40-47" or "40,41,44-47". The result is sorted and names each layer once.
func ParseLayers(list string) ([]int, error) {
	var layers []int
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			hi = lo
		}
		first, err1 := parseLayer(lo)
		last, err2 := parseLayer(hi)
		if err1 != nil || err2 != nil || first > last {
			return nil, &fault.Error{
				Kind: fault.Usage, Problem: fmt.Sprintf("layer list %q: %q is neither a layer nor a range", list, part),
				Hint: "write it as 40-47 or 40,41,44-47",
			}
		}
		for l := first; l <= last; l++ {
			layers = append(layers, l)
		}
	}
	slices.Sort(layers)
	return slices.Compact(layers), nil
}

func parseLayer(s string) (int, error) {
	s = strings.TrimSpace(s)
	n, err := strconv.ParseUint(s, 10, 31)
	if err == nil && (n > maxLayer || s[0] == '+') {
		err = strconv.ErrRange
	}
	return int(n), err
}
