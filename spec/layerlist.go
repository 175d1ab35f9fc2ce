package spec

import (
	"fmt"
	"strconv"
	"strings"
)

// FormatLayers writes a sorted layer list the short way: 1-5,7.
func FormatLayers(layers []int) string {
	var b strings.Builder
	for i := 0; i < len(layers); {
		j := i
		for j+1 < len(layers) && layers[j+1] == layers[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(layers[i]))
		if j > i {
			fmt.Fprintf(&b, "-%d", layers[j])
		}
		i = j + 1
	}
	return b.String()
}
