package verify

import (
	"encoding/binary"
	"math"
)

// float32At decodes a stored F32 scalar.
func float32At(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
