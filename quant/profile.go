package quant

import "math"

// GlobalForm says how a tool computes the global scale from the absolute maximum A, fl being one float32 rounding.
type GlobalForm int

// Forms of the global scale.
const (
	GlobalReciprocalTimes GlobalForm = iota // G = fl(fl(1/A) * 2688), what torch makes of 2688/A
	GlobalTimesReciprocal                   // ws2 = fl(A * fl(1/2688)), what CUDA makes of A/2688
	GlobalDivided                           // ws2 = fl(A / 2688)
)

// ScaleForm says how a tool computes the group scale, before rounding to E4M3, from the group's absolute maximum a.
type ScaleForm int

// Forms of the group scale.
const (
	ScaleTimesSixth  ScaleForm = iota // fl(G * fl(a * fl(1/6))), what CUDA makes of a/6
	ScaleDividedBy6                   // fl(G * fl(a / 6))
	ScaleDividedBy6W                  // fl(a / fl(6 * ws2))
)

// Profile is the arithmetic of one exporter. All of it is data, so that a difference between two tools is a difference in one field.
type Profile struct {
	Name       string
	GlobalForm GlobalForm
	ScaleForm  ScaleForm
	// BF16Observer rounds the global scale, its reciprocal and a/6 to bfloat16, the dtype in which the observer held its statistics.
	BF16Observer bool
	// ZeroScale replaces a group scale that rounds to zero (compressed-tensors) or is zero (ModelOpt).
	ZeroScale byte
	// LowerClamp is the least group scale that is not zero; 0 for none.
	LowerClamp float32
}

// Profiles are the exporters whose bytes were compared. The names tell the arithmetic, not the version:
// rcp6 is compressed-tensors 0.10-0.18 on CUDA, div6 the same on a CPU and, since 0.19.0, everywhere.
var Profiles = []Profile{
	{Name: "ct-fp32-rcp6", GlobalForm: GlobalReciprocalTimes, ScaleForm: ScaleTimesSixth, ZeroScale: 0x20},
	{Name: "ct-fp32-div6", GlobalForm: GlobalReciprocalTimes, ScaleForm: ScaleDividedBy6, ZeroScale: 0x20},
	{Name: "ct-bf16", GlobalForm: GlobalReciprocalTimes, ScaleForm: ScaleTimesSixth, BF16Observer: true, ZeroScale: 0x20},
	{Name: "modelopt-cuda", GlobalForm: GlobalTimesReciprocal, ScaleForm: ScaleDividedBy6W, ZeroScale: 0x38, LowerClamp: 0x1p-9},
	{Name: "modelopt-cpu", GlobalForm: GlobalDivided, ScaleForm: ScaleDividedBy6W, ZeroScale: 0x38, LowerClamp: 0x1p-9},
}

// ProfileByName finds a profile.
func ProfileByName(name string) (Profile, bool) {
	for _, p := range Profiles {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}

// ModelOpt reports whether the stored global is ModelOpt's weight_scale_2 = A/2688 and not compressed-tensors' weight_global_scale =
// 2688/A.
func (p Profile) ModelOpt() bool { return p.GlobalForm != GlobalReciprocalTimes }

// The constants below are bit patterns because Go's constant arithmetic is exact: float32(1.0/6) would do, x*(1.0/6) need not.
var (
	sixth          = math.Float32frombits(0x3e2aaaab) // fl(1/6)
	reciprocal2688 = math.Float32frombits(0x39c30c31) // fl(1/2688)
)

const (
	groupSize  = 16
	globalMax  = 2688           // 448 * 6: largest E4M3 times largest E2M1
	scaleMax   = 448            // largest E4M3
	float32Min = 0x1p-126       // finfo.tiny of float32 and of bfloat16
	bf16Inf    = uint16(0x7f80) // magnitudes from here on are infinity and NaN
)
