package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
)

func detect(t *testing.T, source, base *safetensors.Checkpoint) *Detection {
	t.Helper()
	d, err := DetectProfile(t.Context(), source, base, Options{})
	require.NoError(t, err)
	return d
}

func TestDetectProfile(t *testing.T) {
	bf16 := open(t, tinyPath(t, "bf16"))
	versioned := func(version string) *safetensors.Checkpoint {
		f := load(t, "nvfp4-0801")
		f.edit(t, `"version": "0.14.0.1"`, version)
		return open(t, f.write(t))
	}
	cases := []struct {
		what         string
		source, base *safetensors.Checkpoint
		profile, how string
		evidence     string
		warning      string
	}{
		{
			"0801 by its base", open(t, tinyPath(t, "nvfp4-0801")), bf16, "ct-fp32-rcp6", "base",
			"ct-fp32-div6: 113 of 120 modules exact, 0 global scales, 52 scale bytes and 152 packed bytes differ", "",
		},
		{"0722 by its base", open(t, tinyPath(t, "nvfp4-0722")), bf16, "ct-bf16", "base", "168 of 168 modules, byte for byte", ""},
		{
			"0801 by globals and version", open(t, tinyPath(t, "nvfp4-0801")), nil, "ct-fp32-rcp6", "globals",
			"fp32 observer explains 80 of 80 global scales", "",
		},
		{"0722 by globals", open(t, tinyPath(t, "nvfp4-0722")), nil, "ct-bf16", "globals", "bf16 observer explains 112 of 112 global scales", ""},
		{"the vendor's development version", versioned(`"version": "0.14.1.dev11+gf2ee47b"`), nil, "ct-fp32-rcp6", "globals", "0.14.1.dev11+gf2ee47b multiplies", ""},
		{"the version that changed the division", versioned(`"version": "0.19.0"`), nil, "ct-fp32-div6", "globals", "0.19.0 divides by 6", ""},
		{"no version", versioned(`"version": null`), nil, "ct-fp32-rcp6", "default", "fp32 observer explains 80", "no version of compressed-tensors"},
		{
			"a base without the modules: globals again", open(t, tinyPath(t, "nvfp4-0801")), open(t, tinyPath(t, "nvfp4-0722")), "ct-fp32-rcp6", "globals",
			"80 of 80", "it proves nothing",
		},
		{"nothing quantized", bf16, nil, "ct-fp32-rcp6", "default", "no quantized module", "no quantized module of its own to follow: took ct-fp32-rcp6"},
		{
			"few modules of which two profiles give the bytes", open(t, peaked(0x4000).quantizeExperts(nil).write(t)), open(t, peaked(0x4000).write(t)), "ct-fp32-rcp6", "base",
			"12 of 12 modules", "give the same bytes on all 12 modules: took ct-fp32-rcp6",
		},
		{
			"the same, settled by the version", newer(t, peaked(0x4003).quantizeExperts(nil)), open(t, peaked(0x4003).write(t)), "ct-fp32-div6", "base",
			"with ct-fp32-rcp6 or ct-fp32-div6: 12 of 12 modules", "ct-fp32-rcp6 and ct-fp32-div6 give the same bytes on all 12 modules: took ct-fp32-div6",
		},
	}
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			d := detect(t, c.source, c.base)
			require.Equal(t, c.profile, d.Profile)
			require.Equal(t, c.how, d.How)
			require.Contains(t, d.Evidence, c.evidence)
			if c.warning == "" {
				require.Empty(t, d.Warnings)
			} else {
				require.Len(t, d.Warnings, 1)
				require.Contains(t, d.Warnings[0], c.warning)
			}
		})
	}
}

// peaked has the same largest weight in every module, of a kind for which both float32 profiles always agree.
func peaked(bits uint16) *fixture {
	f := syntheticBase()
	for _, name := range f.names() {
		copy(f.at(name).data, []byte{byte(bits), byte(bits >> 8)})
	}
	return f
}

func newer(t *testing.T, f *fixture) *safetensors.Checkpoint {
	t.Helper()
	f.edit(t, `"version": "0.14.0.1"`, `"version": "0.19.0"`)
	return open(t, f.write(t))
}

// Vector 2 of the specification is where the profiles part; the search must not stop before it meets it.
func TestDetectLooksUntilDecided(t *testing.T) {
	const rows, cols = 1, 64
	telling, err := hex.DecodeString(strings.Join([]string{
		"bdf500003df5bd0c3dafbe0c3d52bdd23c8c3e0cbc8c3dd2bd523d8cbdaf3d0cbd7e00003d7ebc913d35bd913cdabd5a3c113d91bc113d5abcda3d11bd353c91",
		"bdb800003db8bcd23d83bdd23d1ebd9e3c523dd2bc523d9ebd1e3d52bd833cd2bd0700003d07bc1a3cc0bd1a3c67bce73b9a3d1abb9a3ce7bc673c9abcc03c1a",
	}, ""))
	require.NoError(t, err)
	for i := 0; i < len(telling); i += 2 {
		telling[i], telling[i+1] = telling[i+1], telling[i]
	}
	base, made := syntheticBase(), syntheticBase()
	base.dropExperts("model.")
	made.dropExperts("model.")
	var names []string
	for i := range decisive + 50 {
		names = append(names, fmt.Sprintf("model.layers.0.mlp.experts.%d.down_proj", i))
	}
	slices.SortFunc(names, func(a, b string) int {
		x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
		return slices.Compare(x[:], y[:])
	})
	p := mustProfile("ct-fp32-div6")
	for i, name := range names {
		w := &stub{safetensors.BF16, []uint64{rows, cols}, make([]byte, 2*cols)}
		w.data[1] = 0x40
		if i == len(names)-1 {
			w.data = telling
		}
		base.put(syntheticMain, name+".weight", w)
		made.putNVFP4(syntheticMain, name, w, p.Global(quant.AbsMax(w.data)), reference(p))
	}
	d := detect(t, open(t, made.write(t)), open(t, base.write(t)))
	require.Equal(t, "ct-fp32-div6", d.Profile)
	require.Equal(t, []string{"ct-fp32-div6"}, d.Recipe.Proven)
	require.Equal(t, len(names), d.Recipe.Modules)
	rcp6 := d.Recipe.count("ct-fp32-rcp6")
	require.Equal(t, len(names)-1, rcp6.Exact)
	require.EqualValues(t, 1, rcp6.ScaleBytes)
}

func TestDetectRefusesABaseThatExplainsNothing(t *testing.T) {
	f := load(t, "bf16")
	for _, name := range f.names() {
		if _, ok := expertsOf(name[:len(name)-len(".weight")]); ok {
			f.at(name).data[1] ^= 0x80 // the sign of the first weight
		}
	}
	_, err := DetectProfile(t.Context(), open(t, tinyPath(t, "nvfp4-0801")), open(t, f.write(t)), Options{})
	require.Equal(t, fault.Refused, fault.KindOf(err))
	require.ErrorContains(t, err, "no profile gives the bytes of its own quantized modules")
	require.ErrorContains(t, err, "the closest is ct-fp32-rcp6: 0 of 120 modules exact")
}

// Globals of every BF16 absolute maximum of one binade: each form must be explained by itself and, over all, by nothing else.
func TestExamineGlobals(t *testing.T) {
	forms := map[string]func(float32) float32{}
	for _, f := range globalForms {
		forms[f.name] = func(a float32) float32 {
			if f.modelopt {
				return 1 / f.native(a)
			}
			return f.native(a)
		}
	}
	for name, global := range forms {
		for _, modelopt := range []bool{false, true} {
			var stored []float32
			for m := range uint16(128) {
				g := global(quant.BF16ToFloat32(0x3e00 + m))
				if modelopt {
					if name == "fp32 observer" || name == "bf16 observer" {
						g = 1 / g
					} else {
						g = native(name)(quant.BF16ToFloat32(0x3e00 + m))
					}
				}
				stored = append(stored, g)
			}
			e := examineGlobals(stored, modelopt)
			require.Equal(t, name, e.Form, "%v modelopt %v", e, modelopt)
			require.Equal(t, 128, e.Globals)
		}
	}
	e := examineGlobals([]float32{1, 1, 3000.7}, false)
	require.Equal(t, 1, e.Globals, "a global of 1 stands for zeros")
	require.Empty(t, e.Form)
}

func native(form string) func(float32) float32 {
	for _, f := range globalForms {
		if f.name == form {
			return f.native
		}
	}
	return nil
}

// The real checkpoint of 07-22 has global scales such as 11520 and 17024, which only a bf16 observer stores.
func TestGlobalsOfTheRealCheckpoint(t *testing.T) {
	e := examineGlobals([]float32{11520, 17024, 3072}, false)
	require.Equal(t, "bf16 observer", e.Form)
	require.Equal(t, 3, e.LowZero)
}
