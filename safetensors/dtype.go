package safetensors

// DType is an element type as the header spells it: "BF16", "F8_E4M3". Any other string is kept as it is, and its tensors are copied bit for bit.
type DType string

// The element types of the reference implementation (safetensors 0.8), in its order.
const (
	BOOL       DType = "BOOL"
	F4         DType = "F4"
	F6E2M3     DType = "F6_E2M3"
	F6E3M2     DType = "F6_E3M2"
	U8         DType = "U8"
	I8         DType = "I8"
	F8E5M2     DType = "F8_E5M2"
	F8E4M3     DType = "F8_E4M3"
	F8E8M0     DType = "F8_E8M0"
	F8E4M3FNUZ DType = "F8_E4M3FNUZ"
	F8E5M2FNUZ DType = "F8_E5M2FNUZ"
	I16        DType = "I16"
	U16        DType = "U16"
	F16        DType = "F16"
	BF16       DType = "BF16"
	I32        DType = "I32"
	U32        DType = "U32"
	F32        DType = "F32"
	C64        DType = "C64"
	F64        DType = "F64"
	I64        DType = "I64"
	U64        DType = "U64"
)

// known holds every DType at its rank: the reference writer lays tensors out by descending rank, so that wide elements come first and stay aligned.
var known = [...]struct {
	dtype DType
	bits  uint64
}{
	{BOOL, 8},
	{F4, 4},
	{F6E2M3, 6},
	{F6E3M2, 6},
	{U8, 8},
	{I8, 8},
	{F8E5M2, 8},
	{F8E4M3, 8},
	{F8E8M0, 8},
	{F8E4M3FNUZ, 8},
	{F8E5M2FNUZ, 8},
	{I16, 16},
	{U16, 16},
	{F16, 16},
	{BF16, 16},
	{I32, 32},
	{U32, 32},
	{F32, 32},
	{C64, 64},
	{F64, 64},
	{I64, 64},
	{U64, 64},
}

var ranks = func() map[DType]int {
	m := make(map[DType]int, len(known))
	for rank, k := range known {
		m[k.dtype] = rank
	}
	return m
}()

// Bits returns the width of one element in bits, and false for a DType that the reference does not have.
func (d DType) Bits() (uint64, bool) {
	rank, ok := ranks[d]
	if !ok {
		return 0, false
	}
	return known[rank].bits, true
}

// rank is the DType's place in the reference's order. Unknown ones get -1, below all others: nothing says how wide their elements are, and
// at the end of the file they cannot push a known tensor off its alignment.
func (d DType) rank() int {
	rank, ok := ranks[d]
	if !ok {
		return -1
	}
	return rank
}
