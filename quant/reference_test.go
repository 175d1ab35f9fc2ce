package quant

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/testdata/goldens"
)

// profile finds a profile that must exist.
func profile(t testing.TB, name string) Profile {
	t.Helper()
	p, ok := ProfileByName(name)
	require.True(t, ok, name)
	return p
}

// fromHex reads BF16 elements printed as big-endian bits.
func fromHex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	for i := 0; i < len(b); i += 2 {
		b[i], b[i+1] = b[i+1], b[i]
	}
	return b
}

// bf16Bytes is the inverse of element.
func bf16Bytes(elements ...uint16) []byte {
	var b []byte
	for _, e := range elements {
		b = binary.LittleEndian.AppendUint16(b, e)
	}
	return b
}

// quantizeReference quantizes with the tensor's own maximum.
func quantizeReference(p Profile, bf16 []byte) (global float32, packed, scales []byte) {
	global = p.Global(AbsMax(bf16))
	packed, scales = make([]byte, len(bf16)/4), make([]byte, len(bf16)/32)
	ReferenceQuantize(p, global, bf16, packed, scales)
	return global, packed, scales
}

const (
	vector1 = "3f8cbe503ec0bf20bd403f08bef03de03f30bea03e88bf3cbe203ed8bf1400003f14bed83e203f3cbe883ea0bf30bde03ef0bf083d403f20bec03e503f48be60" +
		"3eb8bf24bd803f04bef83dc03f2cbea83e80bf40be303ed0bf18bc803f10bee03e103f38be903e98bf34be003ee8bf0c3d003f1cbec83e403f44be703eb0bf28" +
		"0000000000008000000000000000000000000000000000000000000000000000b680358036c0b6003640b6a0000036a0b6403600b6c0b5803680b680358036c0" +
		"b4003440b4a0000034a0b4403400b4c0b3803480b480338034c0b4003440b4a03ea0bf30bde03ef0bf083d403f20bec03e503f48be603eb8bf24bd803f04bef8"
	vector2 = "bdf500003df5bd0c3dafbe0c3d52bdd23c8c3e0cbc8c3dd2bd523d8cbdaf3d0cbd7e00003d7ebc913d35bd913cdabd5a3c113d91bc113d5abcda3d11bd353c91" +
		"bdb800003db8bcd23d83bdd23d1ebd9e3c523dd2bc523d9ebd1e3d52bd833cd2bd0700003d07bc1a3cc0bd1a3c67bce73b9a3d1abb9a3ce7bc673c9abcc03c1a"
	packed1 = "a7d4591db6e34a0dd6724cafe6613db7e5691ed7f45b8ed6724cafe5603dc7f5" +
		"00000000000000002ec7f6704eafe672%sf46a1ed6735b9ee6"
	outer2 = "0fb7f6e4726a5c3e" // groups 0 and 3 of vector 2
	other2 = "0fb7f6e471695c3e" // groups that a byte higher scale changes
)

// TestGoldenVectors holds whole outputs that two independent programs, one of them checked against torch, agreed upon.
func TestGoldenVectors(t *testing.T) {
	ct, mo := fmt.Sprintf(packed1, "0808808008088080"), fmt.Sprintf(packed1, "0809819018098190")
	for _, v := range []struct {
		profile, input string
		global         uint32
		scales, packed string
	}{
		{"ct-fp32-rcp6", vector1, 0x4519999a, "7e7a7a7a2001207a", ct},
		{"ct-fp32-div6", vector1, 0x4519999a, "7e7a7a7a2001207a", ct},
		{"ct-bf16", vector1, 0x451a0000, "7e7a7a7a2001207a", ct},
		{"modelopt-cuda", vector1, 0x39d55556, "7e7a7a7a3801017a", mo},
		{"ct-fp32-rcp6", vector2, 0x4699999a, "7e777a6f", outer2 + other2 + outer2 + outer2},
		{"ct-fp32-div6", vector2, 0x4699999a, "7e767a6f", outer2 + outer2 + outer2 + outer2},
		{"ct-bf16", vector2, 0x469a0000, "7e777b6f", outer2 + other2 + other2 + outer2},
		{"modelopt-cuda", vector2, 0x38555556, "7e767a6f", outer2 + outer2 + outer2 + outer2},
	} {
		global, packed, scales := quantizeReference(profile(t, v.profile), fromHex(t, v.input))
		require.Equal(t, v.global, math.Float32bits(global), v.profile)
		require.Equal(t, v.scales, hex.EncodeToString(scales), v.profile)
		require.Equal(t, v.packed, hex.EncodeToString(packed), v.profile)
	}
}

// TestGlobalGoldens is the table A bits -> stored global.
func TestGlobalGoldens(t *testing.T) {
	for _, v := range []struct {
		profile string
		amax    uint16
		global  uint32
	}{
		{"ct-fp32-rcp6", 0x3e00, 0x46a80000},
		{"ct-bf16", 0x3e00, 0x46a80000},
		{"modelopt-cuda", 0x3e00, 0x38430c31},
		{"ct-fp32-rcp6", 0x3e01, 0x46a6b29b},
		{"ct-bf16", 0x3e01, 0x46a70000},
		{"modelopt-cuda", 0x3e01, 0x38449249},
		{"ct-fp32-rcp6", 0x3e55, 0x4649ea5e},
		{"ct-bf16", 0x3e55, 0x464a0000},
		{"modelopt-cuda", 0x3e55, 0x38a24925},
		{"ct-fp32-rcp6", 0x3e7f, 0x4628a8a9},
		{"ct-bf16", 0x3e7f, 0x46290000},
		{"modelopt-cuda", 0x3e7f, 0x38c24925},
		{"ct-fp32-rcp6", 0x3df6, 0x46aed44a},
		{"modelopt-cuda", 0x3df6, 0x383b6db7},
		{"ct-fp32-rcp6", 0x3f80, 0x45280000},
		{"modelopt-cuda", 0x3f80, 0x39c30c31},
		{"ct-fp32-rcp6", 0x4040, 0x44600000},
	} {
		got := profile(t, v.profile).Global(BF16ToFloat32(v.amax))
		require.Equal(t, v.global, math.Float32bits(got), "%s %04x", v.profile, v.amax)
	}
	// the mantissas for which reciprocal-then-multiply differs from a division
	var differ []int
	for m := range 128 {
		a := BF16ToFloat32(0x3f80 | uint16(m))
		if profile(t, "ct-fp32-rcp6").Global(a) != 2688/a {
			differ = append(differ, m)
		}
	}
	require.Equal(t, []int{
		3, 5, 7, 10, 19, 32, 38, 39, 48, 51, 60, 61, 62, 69, 73, 75, 80, 81, 86, 87, 90, 96, 107, 112, 114, 116, 117, 118, 120, 122,
	}, differ)
}

// TestGroupScaleDiscriminators are inputs on which multiplication by fl(1/6) and division by 6 part.
func TestGroupScaleDiscriminators(t *testing.T) {
	rcp, div := profile(t, "ct-fp32-rcp6"), profile(t, "ct-fp32-div6")
	for _, v := range []struct {
		amax, group uint16
		rcp, div    byte
	}{{0x3e0c, 0x3d91, 0x77, 0x76}, {0x3e1a, 0x3dbb, 0x79, 0x78}, {0x3e36, 0x3ddd, 0x79, 0x78}, {0x3e44, 0x3daf, 0x75, 0x74}, {0x3e60, 0x3d88, 0x71, 0x70}} {
		global := rcp.Global(BF16ToFloat32(v.amax))
		require.Equal(t, v.rcp, rcp.GroupScale(BF16ToFloat32(v.group), global), "%04x", v.amax)
		require.Equal(t, v.div, div.GroupScale(BF16ToFloat32(v.group), global), "%04x", v.amax)
	}
}

// TestGroupScaleClamps: with the global of another tensor a scale may pass 448; without the clamp it would round to NaN.
func TestGroupScaleClamps(t *testing.T) {
	for _, p := range Profiles {
		own := p.Global(1)
		for _, amax := range []float32{1, 1.03, 1.05, 2, 1e30} {
			require.Equal(t, byte(0x7e), p.GroupScale(amax, own), "%s %g", p.Name, amax)
		}
	}
}

// TestScaleEnumeration covers every pair of mantissas of tensor and group maximum, 0 to 12 binades apart, by checksum.
// The order is: tensor maximum rising from 2^-3, then group maximum rising; the global counts once a group.
func TestScaleEnumeration(t *testing.T) {
	for name, want := range map[string][2]uint32{
		"ct-fp32-rcp6":  {0xd8b1abbf, 0x15c46861},
		"ct-fp32-div6":  {0x86b45359, 0x15c46861},
		"ct-bf16":       {0x3ba3778d, 0x7c16c9b1},
		"modelopt-cuda": {0xb6b2e05d, 0x1632da55},
		"modelopt-cpu":  {0x35d49742, 0xce67b138},
	} {
		p := profile(t, name)
		var scales, globals []byte
		for a := uint16(0x3e00); a < 0x3e80; a++ {
			global := p.Global(BF16ToFloat32(a))
			for g := uint16(0x3e00 - 12<<7); g <= a; g++ {
				scales = append(scales, p.GroupScale(BF16ToFloat32(g), global))
				globals = binary.LittleEndian.AppendUint32(globals, math.Float32bits(global))
			}
		}
		require.Len(t, scales, 204864)
		require.Equal(t, want, [2]uint32{crc32.ChecksumIEEE(scales), crc32.ChecksumIEEE(globals)}, name)
	}
}

// generated is one case of the generated goldens.
type generated struct {
	Seed        uint64
	Rows, Cols  int
	Kind, Plant string
	InputSHA256 string `json:"input_sha256"`
	Profiles    map[string]struct {
		GlobalBits   string `json:"global_bits"`
		ScaleSHA256  string `json:"scale_sha256"`
		PackedSHA256 string `json:"packed_sha256"`
	}
}

// profileOfTool translates the goldens' names of a tool's run to the arithmetic that the tool had there.
var profileOfTool = map[string]string{
	"ct-fp32-cuda": "ct-fp32-rcp6", "ct-fp32-cpu": "ct-fp32-div6", "ct-bf16-cuda": "ct-bf16", "ct-bf16-cpu": "ct-bf16",
	"modelopt-cpu": "modelopt-cpu", "modelopt-cuda": "modelopt-cuda",
}

func splitmix(seed, i uint64) uint64 {
	z := seed + (i+1)*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// generate makes a tensor of the named kind, in integer arithmetic.
func generate(kind string, seed uint64, n int, plant uint16) []byte {
	out := make([]byte, 2*n)
	for i := range n {
		z := splitmix(seed, uint64(i))
		var e uint16
		switch kind {
		case "wide":
			e = uint16(z>>63)<<15 | (96+uint16((z>>8)%28))<<7 | uint16(z&0x7f)
		default:
			sum := float32(int64(z&0xffff)+int64(z>>16&0xffff)+int64(z>>32&0xffff)+int64(z>>48)-131070) * 0x1p-21
			if kind == "gauss4" {
				sum *= 4
			}
			e = Float32ToBF16(sum)
		}
		if plant != 0 && e&0x7fff > plant {
			e = e&0x8000 | plant
		}
		switch h := splitmix(seed^0xABCDEF, uint64(i/16)); {
		case h%97 == 0:
			e = 0
		case h%89 == 1 && e>>7&0xff > 20:
			e -= 20 << 7
		}
		binary.LittleEndian.PutUint16(out[2*i:], e)
	}
	if plant != 0 {
		binary.LittleEndian.PutUint16(out, plant)
	}
	return out
}

func generatedCases(t testing.TB) []generated {
	var file struct{ Cases []generated }
	require.NoError(t, json.Unmarshal(goldens.Read(t, "nvfp4/generated.json"), &file))
	require.Len(t, file.Cases, 15)
	return file.Cases
}

func (c generated) input(t testing.TB) []byte {
	plant, err := strconv.ParseUint(c.Plant, 16, 16)
	require.NoError(t, err)
	bf16 := generate(c.Kind, c.Seed, c.Rows*c.Cols, uint16(plant))
	require.Equal(t, c.InputSHA256, sum(bf16), "seed %d", c.Seed)
	return bf16
}

func sum(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// TestGenerated holds the outputs of the tools themselves, on a CPU and on an H200, for generated tensors.
func TestGenerated(t *testing.T) {
	runs := 0
	for _, c := range generatedCases(t) {
		bf16 := c.input(t)
		for tool, want := range c.Profiles {
			global, packed, scales := quantizeReference(profile(t, profileOfTool[tool]), bf16)
			require.Equal(t, want.GlobalBits, fmt.Sprintf("%08x", math.Float32bits(global)), "%d %s", c.Seed, tool)
			require.Equal(t, want.ScaleSHA256, sum(scales), "%d %s", c.Seed, tool)
			require.Equal(t, want.PackedSHA256, sum(packed), "%d %s", c.Seed, tool)
			runs++
		}
	}
	require.Equal(t, 75, runs)
}

// TestRealExpert runs a real expert as a linear layer against the outputs recorded with it.
func TestRealExpert(t *testing.T) {
	const rows, cols, inputs = 1024, 3072, 6
	packed, scales := goldens.Read(t, "laguna-0722/g1_packed.bin"), goldens.Read(t, "laguna-0722/g1_scale.bin")
	x, out := goldens.Read(t, "laguna-0722/g2b_x.bin"), goldens.Read(t, "laguna-0722/g2b_out.bin")
	w := make([]float32, rows*cols)
	Dequantize(w, packed, scales, 11520, false)
	got, activations := make([]float32, rows), make([]float32, cols)
	for n := range inputs {
		for c := range activations {
			activations[c] = BF16ToFloat32(element(x, n*cols+c))
		}
		MatVecNVFP4(got, activations, packed, scales, 1/float32(11520), rows, cols)
		for r := range rows {
			want := float64(math.Float32frombits(binary.LittleEndian.Uint32(out[4*(n*rows+r):])))
			var exact, size float64
			for c, v := range activations {
				term := float64(v) * float64(w[r*cols+c])
				exact += term
				size += math.Abs(term)
			}
			// float32 sums of 3072 terms, in whatever order, stay within a few units in the last place of the sum of magnitudes
			require.InDelta(t, want, exact, size*0x1p-20, "input %d row %d", n, r)
			require.InDelta(t, exact, float64(got[r]), size*0x1p-20, "input %d row %d", n, r)
		}
	}
}

// TestDegenerate holds what the tools do at the edges of the range.
func TestDegenerate(t *testing.T) {
	zeros, negativeZeros := make([]byte, 32), []byte(strings.Repeat("\x00\x80", 16))
	for _, v := range []struct {
		name, profile string
		input         []byte
		global        uint32
		scales        string
		packed        string
	}{
		{"zero tensor", "ct-fp32-rcp6", zeros, 0x3f800000, "20", "0000000000000000"},
		{"zero tensor", "ct-bf16", zeros, 0x3f800000, "20", "0000000000000000"},
		{"zero tensor", "modelopt-cpu", zeros, 0x3f800000, "38", "0000000000000000"},
		{"negative zeros", "ct-fp32-div6", negativeZeros, 0x3f800000, "20", "0000000000000000"},
		// below 2688/FLT_MAX = 7.9e-36 the global overflows, the whole tensor is byte 0x20 and codes 0 and 8
		{"2^-117 overflows", "ct-fp32-rcp6", bf16Bytes(0x0500, 0x8500, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 0x3f800000, "20", "8000000000000000"},
		{"2^-116 does not", "ct-fp32-rcp6", bf16Bytes(0x0580, 0x8580, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 0x7f280000, "7e", "f700000000000000"},
		// the second group's step is subnormal, 5*2^-9/G; a tool that flushes it to zero gives code 7 for everything
		{
			"subnormal step", "ct-fp32-rcp6",
			bf16Bytes(0x0580, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0003, 0x8001, 0x0002, 0x0001, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
			0x7f280000, "7e05", "0700000000000000" + "c746000000000000",
		},
	} {
		t.Run(v.name+" "+v.profile, func(t *testing.T) {
			global, packed, scales := quantizeReference(profile(t, v.profile), v.input)
			require.Equal(t, v.global, math.Float32bits(global))
			require.Equal(t, v.scales, hex.EncodeToString(scales))
			require.Equal(t, v.packed, hex.EncodeToString(packed))
		})
	}
}
