//go:build !nogpu && linux && (amd64 || arm64)

package cuda

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/testdata/goldens"
)

// onEach runs a test on the fake driver and, where there is one, on a real GPU. open gives an engine that must not lose a device.
func onEach(t *testing.T, test func(t *testing.T, open func(Options) *Engine, real bool)) {
	t.Helper()
	run := func(t *testing.T, library string) {
		test(t, func(o Options) *Engine {
			o.Library = library
			o.Notice = func(err error) { t.Error("device lost:", err) }
			e, err := Open(o)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, e.Close()) })
			return e
		}, library == "")
	}
	t.Run("fake", func(t *testing.T) { run(t, newFake(t, 1).path) })
	t.Run("gpu", func(t *testing.T) {
		if _, err := Devices(); err != nil {
			t.Skip("not run on a GPU: ", err)
		}
		run(t, "")
	})
}

// newMember takes the engine's own memory, filled with bytes that no kernel would write.
func newMember(t testing.TB, e quant.Backend, name string, bf16 []byte) quant.Member {
	t.Helper()
	buffer := func(n int) []byte {
		b, err := e.Buffer(n)
		require.NoError(t, err)
		for i := range b {
			b[i] = 0x7f
		}
		return b
	}
	m := quant.Member{Name: name, BF16: buffer(len(bf16)), Packed: buffer(len(bf16) / 4), Scales: buffer(len(bf16) / 32)}
	copy(m.BF16, bf16)
	return m
}

func free(e quant.Backend, set ...quant.Member) {
	for _, m := range set {
		e.Free(m.BF16)
		e.Free(m.Packed)
		e.Free(m.Scales)
	}
}

// requireReference quantizes a set on the engine and holds it against the scalar reference.
func requireReference(t testing.TB, e *Engine, p quant.Profile, tensors ...[]byte) {
	t.Helper()
	var set []quant.Member
	var amax float32
	for i, bf16 := range tensors {
		set = append(set, newMember(t, e, strconv.Itoa(i), bf16))
		amax = max(amax, quant.AbsMax(bf16))
	}
	defer free(e, set...)
	global, err := e.QuantizeSet(p, set)
	require.NoError(t, err)
	require.Equal(t, math.Float32bits(p.Global(amax)), math.Float32bits(global), p.Name)
	for i, m := range set {
		packed, scales := make([]byte, len(m.Packed)), make([]byte, len(m.Scales))
		quant.ReferenceQuantize(p, global, tensors[i], packed, scales)
		requireBytes(t, scales, m.Scales, "%s: scales of %d", p.Name, i)
		requireBytes(t, packed, m.Packed, "%s: packed of %d", p.Name, i)
	}
}

// requireBytes names the first difference: a dump of megabytes helps nobody.
func requireBytes(t testing.TB, want, got []byte, format string, args ...any) {
	t.Helper()
	require.Len(t, got, len(want), fmt.Sprintf(format, args...))
	if d := differing(want, got); d.Count > 0 {
		t.Fatalf("%s: %d bytes differ, the first at %d: %02x, want %02x", fmt.Sprintf(format, args...), d.Count, d.First, got[d.First], want[d.First])
	}
}

// TestGenerated: the digests of the tools themselves, for 15 generated tensors.
func TestGenerated(t *testing.T) {
	profiles := map[string]string{
		"ct-fp32-cuda": "ct-fp32-rcp6", "ct-fp32-cpu": "ct-fp32-div6", "ct-bf16-cuda": "ct-bf16", "ct-bf16-cpu": "ct-bf16", "modelopt-cpu": "modelopt-cpu",
	}
	var file struct {
		Cases []struct {
			Seed        uint64
			Rows, Cols  int
			Kind, Plant string
			InputSHA256 string `json:"input_sha256"`
			Profiles    map[string]struct {
				Global string `json:"global_bits"`
				Scale  string `json:"scale_sha256"`
				Packed string `json:"packed_sha256"`
			}
		}
	}
	require.NoError(t, json.Unmarshal(goldens.Read(t, "nvfp4/generated.json"), &file))
	onEach(t, func(t *testing.T, open func(Options) *Engine, real bool) {
		e := open(Options{})
		checked := 0
		for _, c := range file.Cases {
			if !real && c.Rows*c.Cols > 1<<20 {
				continue // minutes on the fake
			}
			plant, err := strconv.ParseUint(c.Plant, 16, 16)
			require.NoError(t, err)
			bf16 := generate(c.Kind, c.Seed, c.Rows*c.Cols, uint16(plant))
			require.Equal(t, c.InputSHA256, digest(bf16))
			for tool, want := range c.Profiles {
				p, ok := quant.ProfileByName(profiles[tool])
				require.True(t, ok, tool)
				m := newMember(t, e, tool, bf16)
				global, err := e.QuantizeSet(p, []quant.Member{m})
				require.NoError(t, err)
				require.Equal(t, want.Global, fmt.Sprintf("%08x", math.Float32bits(global)), "seed %d %s", c.Seed, tool)
				require.Equal(t, want.Scale, digest(m.Scales), "seed %d %s", c.Seed, tool)
				require.Equal(t, want.Packed, digest(m.Packed), "seed %d %s", c.Seed, tool)
				free(e, m)
				checked++
			}
		}
		t.Logf("%d of %d digests", checked, 5*len(file.Cases))
		require.GreaterOrEqual(t, checked, 25)
	})
}

// generate makes a tensor of the generated goldens: README.md of package testdata tells how.
func generate(kind string, seed uint64, n int, plant uint16) []byte {
	mix := func(seed, i uint64) uint64 {
		z := seed + (i+1)*0x9E3779B97F4A7C15
		z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
		z = (z ^ z>>27) * 0x94D049BB133111EB
		return z ^ z>>31
	}
	out := make([]byte, 2*n)
	for i := range n {
		z := mix(seed, uint64(i))
		e := uint16(z>>63)<<15 | (96+uint16((z>>8)%28))<<7 | uint16(z&0x7f) // wide
		if kind != "wide" {
			sum := float32(int64(z&0xffff)+int64(z>>16&0xffff)+int64(z>>32&0xffff)+int64(z>>48)-131070) * 0x1p-21
			if kind == "gauss4" {
				sum *= 4
			}
			e = quant.Float32ToBF16(sum)
		}
		if plant != 0 && e&0x7fff > plant {
			e = e&0x8000 | plant
		}
		switch h := mix(seed^0xABCDEF, uint64(i/16)); {
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

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// TestTinyLaguna: every routed expert of the small checkpoint, gate and up as a set, under every profile.
func TestTinyLaguna(t *testing.T) {
	c, err := safetensors.OpenCheckpoint(filepath.Join(goldens.TinyLaguna(t), "bf16"))
	require.NoError(t, err)
	gate := regexp.MustCompile(`^(.*\.experts\.\d+\.)gate_proj\.weight$`)
	onEach(t, func(t *testing.T, open func(Options) *Engine, _ bool) {
		e := open(Options{})
		experts := 0
		for _, name := range c.Names() {
			m := gate.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			var tensors [3][]byte
			for i, projection := range []string{"gate", "up", "down"} {
				tensors[i], err = c.ReadTensor(m[1] + projection + "_proj.weight")
				require.NoError(t, err)
			}
			p := quant.Profiles[experts%len(quant.Profiles)]
			if experts++; experts <= 2*len(quant.Profiles) {
				for _, p := range quant.Profiles[1:] {
					requireReference(t, e, p, tensors[0], tensors[1])
				}
			}
			requireReference(t, e, p, tensors[0], tensors[1])
			requireReference(t, e, p, tensors[2])
		}
		t.Log(experts, "experts")
		require.NotZero(t, experts)
	})
}

// randomTensor makes groups of every kind that is hard: ties between codes, subnormals, zeros of both signs, magnitudes from the least to
// the greatest, and ordinary ones. base is the exponent field about which the tensor lies.
func randomTensor(r *rand.Rand, groups int, base uint16) []byte {
	out := make([]byte, groups*groupBF16)
	for g := range groups {
		kind, exponent := r.IntN(8), uint16(max(1, min(254, int(base)-r.IntN(24))))
		for i := range groupSize {
			z := r.Uint32()
			sign, mantissa := uint16(z)&0x8000, uint16(z)&0x7f
			var e uint16
			switch kind {
			case 0: // multiples of a quarter step: every tie of a power-of-two step
				quarters := float32(z>>16%25) / 4
				e = quant.Float32ToBF16(quarters*quant.BF16ToFloat32(exponent<<7)) & 0x7fff
			case 1: // the group's exponent and few below
				e = max(exponent-min(uint16(z>>16%5), exponent-1), 1)<<7 | mantissa
			case 2: // subnormal
				e = mantissa
			case 3: // zeros
			case 4: // anything finite up to the group's exponent
				e = uint16(z>>16) % (exponent << 7)
			case 5: // single large element
				if e = mantissa >> 5; i == g%16 {
					e = exponent<<7 | mantissa
				}
			default:
				e = quant.Float32ToBF16(float32(r.NormFloat64())*quant.BF16ToFloat32(exponent<<7)) & 0x7fff
			}
			binary.LittleEndian.PutUint16(out[g*groupBF16+2*i:], sign|min(e, 0x7f7f))
		}
	}
	return out
}

// TestRandomGroups: 10 million hard groups against the reference.
func TestRandomGroups(t *testing.T) {
	onEach(t, func(t *testing.T, open func(Options) *Engine, real bool) {
		e := open(Options{})
		tensors, groups := 12, 300
		if real {
			tensors, groups = 1000, 20000
		}
		work := make(chan int)
		var workers sync.WaitGroup
		var total [16]int
		for w := range total {
			workers.Go(func() {
				for i := range work {
					r := rand.New(rand.NewPCG(uint64(i), 6))
					bf16 := randomTensor(r, 1+r.IntN(groups), uint16(1+(i*97)%254))
					for _, p := range quant.Profiles {
						checkReference(t, e, p, bf16)
					}
					total[w] += len(bf16) / groupBF16
				}
			})
		}
		for i := range tensors {
			work <- i
		}
		close(work)
		workers.Wait()
		sum := 0
		for _, n := range total {
			sum += n
		}
		t.Logf("%d groups in %d tensors under %d profiles", sum, tensors, len(quant.Profiles))
		if real {
			require.GreaterOrEqual(t, sum, 9_000_000)
		}
	})
}

// checkReference is requireReference for a tensor, on other goroutines than the test's.
func checkReference(t *testing.T, e *Engine, p quant.Profile, bf16 []byte) {
	wantGlobal, wantPacked, wantScales := p.Global(quant.AbsMax(bf16)), make([]byte, len(bf16)/4), make([]byte, len(bf16)/32)
	quant.ReferenceQuantize(p, wantGlobal, bf16, wantPacked, wantScales)
	got := newMember(t, e, "", bf16)
	defer free(e, got)
	global, err := e.QuantizeSet(p, []quant.Member{got})
	if err != nil || global != wantGlobal {
		t.Errorf("%s: %v: global %v, want %v", p.Name, err, global, wantGlobal)
	}
	if d := differing(wantScales, got.Scales); d.Count > 0 {
		group := bf16[d.First*groupBF16:][:groupBF16]
		t.Errorf("%s, global %v: %d scales differ, the first %02x, want %02x: % x", p.Name, global, d.Count, got.Scales[d.First], wantScales[d.First], group)
	}
	if d := differing(wantPacked, got.Packed); d.Count > 0 {
		group := bf16[d.First/groupCodes*groupBF16:][:groupBF16]
		t.Errorf("%s, global %v: %d bytes of codes differ, the first %02x, want %02x: % x", p.Name, global, d.Count, got.Packed[d.First], wantPacked[d.First], group)
	}
}

// TestEveryMaximum: tensors with every magnitude that the absolute maximum can have, since it decides all tables.
func TestEveryMaximum(t *testing.T) {
	onEach(t, func(t *testing.T, open func(Options) *Engine, real bool) {
		e := open(Options{})
		step := 1543 // a prime: all mantissas and exponents come by
		if real {
			step = 1
		}
		var workers sync.WaitGroup
		for w := range 8 {
			workers.Go(func() {
				for amax := w * step; amax < 0x7f80; amax += 8 * step {
					r := rand.New(rand.NewPCG(uint64(amax), 7))
					bf16 := randomTensor(r, 24, uint16(amax>>7))
					for i := 0; i < len(bf16); i += 2 {
						if e := binary.LittleEndian.Uint16(bf16[i:]); int(e&0x7fff) > amax {
							binary.LittleEndian.PutUint16(bf16[i:], e&0x8000|uint16(amax))
						}
					}
					binary.LittleEndian.PutUint16(bf16[2*r.IntN(len(bf16)/2):], uint16(amax))
					for _, p := range quant.Profiles {
						checkReference(t, e, p, bf16)
					}
				}
			})
		}
		workers.Wait()
	})
}

// TestPieces: a set beyond the device memory goes through in pieces, and the smallest slot there can be does it.
func TestPieces(t *testing.T) {
	onEach(t, func(t *testing.T, open func(Options) *Engine, _ bool) {
		e := open(Options{DeviceMemory: dataStart + 1<<20, Slots: 1})
		gate, up := generate("gauss", 3, 1<<20, 0), generate("gauss4", 4, 1<<19, 0)
		require.Len(t, e.devices[0].slots[0].plan([]quant.Member{{BF16: gate}, {BF16: up}}, false), 5)
		requireReference(t, e, quant.Profiles[0], gate, up)
		requireReference(t, e, quant.Profiles[3], make([]byte, 64), up, nil) // a member without weights, too
		requireReference(t, e, quant.Profiles[1], make([]byte, 64))

		got, want := compareBoth(t, e, quant.Profiles[2], gate, up)
		require.Equal(t, want, got)
	})
}

// compareBoth quantizes, spoils some bytes, and compares on the engine and on the CPU.
func compareBoth(t *testing.T, e *Engine, p quant.Profile, tensors ...[]byte) (got, want []Difference) {
	var set []quant.Member
	for i, bf16 := range tensors {
		set = append(set, newMember(t, e, strconv.Itoa(i), bf16))
	}
	defer free(e, set...)
	wantGlobal, err := quant.CPU().QuantizeSet(p, set)
	require.NoError(t, err)
	global, same, err := e.CompareSet(p, set)
	require.NoError(t, err)
	require.Equal(t, wantGlobal, global)
	for _, d := range same {
		require.Zero(t, d.Packed.Count)
		require.Zero(t, d.Scales.Count)
	}
	for i, m := range set {
		for j := range 3 + i {
			m.Packed[(j*7919+len(m.Packed)-1)%len(m.Packed)] ^= 0x10
		}
		if i > 0 {
			m.Scales[len(m.Scales)-1] ^= 1
		}
	}
	_, got, err = e.CompareSet(p, set)
	require.NoError(t, err)
	_, want, err = compareOnCPU(p, set)
	require.NoError(t, err)
	return got, want
}

func TestCompareSet(t *testing.T) {
	onEach(t, func(t *testing.T, open func(Options) *Engine, _ bool) {
		e := open(Options{})
		for _, groups := range []int{1, 3, 17, 4099} {
			got, want := compareBoth(t, e, quant.Profiles[0], generate("wide", 5, 16*groups, 0), generate("gauss", 6, 16*groups+16, 0))
			require.Equal(t, want, got)
			require.NotZero(t, got[1].Scales.Count)
		}
	})
}

func TestMeasureErrors(t *testing.T) {
	onEach(t, func(t *testing.T, open func(Options) *Engine, _ bool) {
		e := open(Options{})
		for i, p := range quant.Profiles {
			for _, bf16 := range [][]byte{
				generate("gauss", uint64(i), 1<<17, 0), randomTensor(rand.New(rand.NewPCG(uint64(i), 8)), 3000, uint16(1+60*i)), make([]byte, 32),
			} {
				m := newMember(t, e, "", bf16)
				global, err := e.QuantizeSet(p, []quant.Member{m})
				require.NoError(t, err)
				got, err := e.MeasureErrors(p, global, m)
				require.NoError(t, err)
				again, err := e.MeasureErrors(p, global, m)
				require.NoError(t, err)
				require.Equal(t, got, again)
				want := quant.MeasureErrors(p, global, m.BF16, m.Packed, m.Scales)
				for _, pair := range [][2]float64{
					{want.SumSquares, got.SumSquares}, {want.SumSquaredError, got.SumSquaredError}, {want.SumSquaredFloor, got.SumSquaredFloor},
				} {
					require.InDelta(t, pair[0], pair[1], 1e-6*pair[0]) // quant adds up in float32 within blocks
				}
				free(e, m)
			}
		}
	})
}

// TestDequantize: every scale byte, NaN and negative ones included, with every code, in both forms of the global.
func TestDequantize(t *testing.T) {
	onEach(t, func(t *testing.T, open func(Options) *Engine, _ bool) {
		e := open(Options{})
		var packed, scales []byte
		for s := range 256 {
			scales = append(scales, byte(s), byte(s))
			for b := range 16 {
				packed = append(packed, byte(b*17+s))
			}
		}
		for _, modelopt := range []bool{false, true} {
			for _, global := range []float32{11520, 1, 2.5e-4, 0x1p-100, 0x1p100} {
				want, got := make([]byte, 32*len(scales)), make([]byte, 32*len(scales))
				quant.DequantizeBF16(want, packed, scales, global, modelopt)
				require.NoError(t, e.DequantizeBF16(got, packed, scales, global, modelopt))
				requireBytes(t, want, got, "global %v modelopt %v", global, modelopt)
			}
		}
	})
}

// TestNonFinite: the device only sees that something is not finite; the error is the CPU's, with the place.
func TestNonFinite(t *testing.T) {
	onEach(t, func(t *testing.T, open func(Options) *Engine, _ bool) {
		e := open(Options{})
		for _, bits := range []uint16{0x7f80, 0xff80, 0x7f81, 0xffff, 0x7fc0} {
			bad := generate("gauss", 1, 4096, 0)
			binary.LittleEndian.PutUint16(bad[2*801:], bits)
			set := []quant.Member{newMember(t, e, "gate", generate("gauss", 2, 4096, 0)), newMember(t, e, "up", bad)}
			_, want := quant.CPU().QuantizeSet(quant.Profiles[0], set)
			require.Error(t, want)
			_, err := e.QuantizeSet(quant.Profiles[0], set)
			require.Equal(t, want, err)
			_, _, err = e.CompareSet(quant.Profiles[0], set)
			require.Equal(t, want, err)
			free(e, set...)
		}
		requireReference(t, e, quant.Profiles[0], generate("gauss", 1, 4096, 0)) // the slots are as good as before
	})
}

// TestCallers: more callers than slots, in ordinary memory as well as in page-locked, while the garbage collector is busy.
func TestCallers(t *testing.T) {
	onEach(t, func(t *testing.T, open func(Options) *Engine, real bool) {
		e := open(Options{Slots: 3})
		rounds := 4
		if real {
			rounds = 100
		}
		var callers sync.WaitGroup
		for caller := range 8 {
			callers.Go(func() {
				bf16 := generate("gauss", uint64(caller), 64<<10, 0)
				p := quant.Profiles[caller%len(quant.Profiles)]
				want := quant.Member{BF16: bf16, Packed: make([]byte, len(bf16)/4), Scales: make([]byte, len(bf16)/32)}
				_, _ = quant.CPU().QuantizeSet(p, []quant.Member{want})
				for range rounds {
					got := quant.Member{BF16: bf16, Packed: make([]byte, len(bf16)/4), Scales: make([]byte, len(bf16)/32)}
					if caller%2 == 0 {
						got = newMember(t, e, "", bf16)
					}
					if _, err := e.QuantizeSet(p, []quant.Member{got}); err != nil {
						t.Error(err)
					}
					if differing(want.Packed, got.Packed).Count+differing(want.Scales, got.Scales).Count > 0 {
						t.Errorf("caller %d got other bytes", caller)
					}
					free(e, got)
				}
			})
		}
		callers.Wait()
	})
}

// BenchmarkGPU logs the figures of Bench for the first GPU.
func BenchmarkGPU(b *testing.B) {
	devices, err := Devices()
	if err != nil {
		b.Skip("not run on a GPU: ", err)
	}
	for range b.N {
		figures, err := Bench(Options{}, 2<<30)
		require.NoError(b, err)
		b.Log(devices[0].Name)
		for _, f := range figures {
			line := fmt.Sprintf("%-27s %7.1f GB/s %-16s (%.1f to %.1f)", f.Name, f.GBps, f.Bytes, f.Least, f.Most)
			if f.Of != "" {
				line += fmt.Sprintf(", %.3f of %s", f.Ratio, f.Of)
			}
			b.Log(line)
		}
	}
}
