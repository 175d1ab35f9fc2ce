package verify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// DefaultProfile is taken for compressed-tensors where nothing tells: it is what versions 0.10 to 0.18 do on CUDA for float32 statistics.
const DefaultProfile = "ct-fp32-rcp6"

// DefaultModelOptProfile is its counterpart for ModelOpt's layout.
const DefaultModelOptProfile = "modelopt-cuda"

// Detection is the profile by which a checkpoint's own quantized modules were made, and why.
type Detection struct {
	Profile  string          `json:"profile"`
	How      string          `json:"how"` // "base", "globals" or "default"
	Evidence string          `json:"evidence"`
	Recipe   *Recipe         `json:"recipe,omitempty"`   // counts per profile, with a base
	Globals  *GlobalEvidence `json:"globals,omitempty"`  // without one
	Version  string          `json:"version,omitempty"`  // of compressed-tensors, as the config has it
	Unshared int             `json:"unshared,omitempty"` // fused sets of its own whose members have a global scale each
	Warnings []string        `json:"warnings,omitempty"`

	byGlobals string // the profile that globals and version tell; "" where they do not
}

// DetectProfile finds the arithmetic that made the source's own NVFP4 modules; a donor of input scales has no say. With a base (nil:
// none) it quantizes modules that the base has in BF16 under every profile and takes the one without a differing byte; it refuses where
// there is none. Without one it reads the stored global scales and the version in the config. Where that does not tell, it falls back on
// the default and says so in Warnings.
func DetectProfile(ctx context.Context, source, base *safetensors.Checkpoint, o Options) (*Detection, error) {
	d, err := detectProfile(ctx, source, base, o)
	if err == nil && d.Unshared > 0 {
		d.Warnings = append(d.Warnings, fmt.Sprintf(
			"in %s, gate and up of %s have a global scale each, of which loaders use one: those that are requantized share theirs", label(source), plural(d.Unshared, "expert")))
	}
	return d, err
}

func detectProfile(ctx context.Context, source, base *safetensors.Checkpoint, o Options) (*Detection, error) {
	open := newFiles()
	defer open.close()
	inv := takeInventory(source)
	d, err := detectByGlobals(inv, open, o)
	if err != nil || base == nil {
		return d, err
	}
	sets, _ := pairUp(inv, takeInventory(base))
	sets = slices.DeleteFunc(sets, func(s recipeSet) bool { return !o.Sample.Has(s.name) })
	if len(sets) == 0 {
		d.Warnings = append(d.Warnings, fmt.Sprintf("%s has no module in BF16 that %s has in NVFP4, so it proves nothing", label(base), label(source)))
		return d, nil
	}
	r := &Recipe{Quantized: label(source), Base: label(base)}
	counts, err := proveUntilDecided(ctx, sets, r.Base, open, o)
	if err != nil {
		return nil, err
	}
	r.judge(counts)
	return d.byBase(r)
}

// decisive is how many modules must agree before the search may stop: those of one layer of 256 experts. The float32 profiles differ for
// 5 of 128 mantissas of the absolute maximum and there in about 1 % of the groups, so that a few modules prove nothing.
const decisive = 768

// proveUntilDecided quantizes sets from all over the checkpoint, until one profile or none is left.
func proveUntilDecided(ctx context.Context, sets []recipeSet, base string, open *files, o Options) ([]ProfileCount, error) {
	slices.SortFunc(sets, func(a, b recipeSet) int {
		x, y := sha256.Sum256([]byte(a.name)), sha256.Sum256([]byte(b.name))
		return slices.Compare(x[:], y[:])
	})
	total := make([]ProfileCount, len(quant.Profiles))
	for i, p := range quant.Profiles {
		total[i].Profile = p.Name
	}
	for len(sets) > 0 {
		n := 0
		for modules := 0; n < len(sets) && modules < decisive; n++ {
			modules += len(sets[n].modules)
		}
		counts, err := prove(ctx, sets[:n], base, open, o)
		if err != nil {
			return nil, err
		}
		sets = sets[n:]
		left := 0
		for i, c := range counts {
			total[i].add(c)
			if total[i].Exact == total[i].Modules {
				left++
			}
		}
		if left <= 1 {
			break
		}
	}
	return total, nil
}

// byBase settles the detection by a comparison with BF16 weights.
func (d *Detection) byBase(r *Recipe) (*Detection, error) {
	d.Recipe = r
	if !r.Explained() {
		return nil, &fault.Error{
			Kind: fault.Refused, File: r.Quantized, Problem: "no profile gives the bytes of its own quantized modules: " + r.String(),
			Hint: "check that the base is the same release; a profile can be forced with --profile",
		}
	}
	d.Profile = r.Best
	if len(r.Proven) > 0 {
		d.Profile = r.Proven[0]
	}
	if slices.Contains(r.Proven, d.byGlobals) {
		d.Profile = d.byGlobals
	}
	d.How, d.Evidence, d.Warnings = "base", r.String(), nil
	if len(r.Proven) > 1 {
		d.Warnings = []string{fmt.Sprintf("%s give the same bytes on all %s: took %s", strings.Join(r.Proven, " and "), plural(r.Modules, "module"), d.Profile)}
		return d, nil
	}
	for _, c := range r.Profiles {
		if c.Profile != d.Profile {
			d.Evidence += "; " + c.String()
		}
	}
	return d, nil
}

// detectByGlobals settles the detection as far as stored global scales and the config's version go.
func detectByGlobals(inv *inventory, open *files, o Options) (*Detection, error) {
	d := &Detection{Profile: DefaultProfile, How: "default"}
	if config, err := spec.ParseQuantConfig(inv.ckpt.Config); err == nil && config != nil {
		d.Version = config.Version
		if config.ModelOpt() {
			d.Profile = DefaultModelOptProfile
		}
	}
	globals, modelopt, err := d.readGlobals(inv, open, o)
	if err != nil {
		return nil, err
	}
	if len(globals) == 0 {
		d.Evidence = "no quantized module of its own"
		d.Warnings = append(d.Warnings, fmt.Sprintf("%s has no quantized module of its own to follow: took %s", label(inv.ckpt), d.Profile))
		return d, nil
	}
	if modelopt {
		d.Profile = DefaultModelOptProfile
	}
	e := examineGlobals(globals, modelopt)
	d.Globals, d.Evidence = &e, e.String()
	switch e.Form {
	case "fp32 observer":
		d.byVersion()
	case "bf16 observer":
		d.settle("ct-bf16", "")
	case "modelopt on CUDA":
		d.settle("modelopt-cuda", "")
	case "modelopt on CPU":
		d.settle("modelopt-cpu", "")
	default:
		d.Warnings = append(d.Warnings, fmt.Sprintf("the global scales do not tell the profile (%s): took %s", e, d.Profile))
	}
	return d, nil
}

func (d *Detection) settle(profile, why string) {
	d.Profile, d.byGlobals, d.How = profile, profile, "globals"
	if why != "" {
		d.Evidence += "; " + why
	}
	d.Evidence += ": " + profile
}

// byVersion tells the two float32 profiles apart, which have the same global scales.
func (d *Detection) byVersion() {
	major, minor, ok := parseVersion(d.Version)
	switch {
	case !ok:
		d.Warnings = append(d.Warnings, fmt.Sprintf("global scales cannot tell ct-fp32-rcp6 from ct-fp32-div6, and the config has no version of compressed-tensors: took %s", d.Profile))
	case major == 0 && minor <= 18:
		d.settle("ct-fp32-rcp6", "compressed-tensors "+d.Version+" multiplies by fl(1/6) on CUDA")
	default:
		d.settle("ct-fp32-div6", "compressed-tensors "+d.Version+" divides by 6")
	}
}

// parseVersion reads the first two numbers of a version such as "0.14.1.dev11+gf2ee47b".
func parseVersion(v string) (major, minor int, ok bool) {
	parts := strings.Split(v, ".")
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return major, minor, err1 == nil && err2 == nil
}

// readGlobals returns the global scales of all NVFP4 modules, each once in a fused set, and whether they are ModelOpt's. It counts the sets
// that have several.
func (d *Detection) readGlobals(inv *inventory, open *files, o Options) (globals []float32, modelopt bool, err error) {
	var found []*tensorAt
	for _, m := range inv.modules {
		if m.nvfp4() && m.global() != nil && m.global().DType == safetensors.F32 && m.global().Len() == 4 {
			found = append(found, m.global())
			modelopt = m.modelopt()
		}
	}
	slices.SortFunc(found, func(a, b *tensorAt) int {
		return cmp.Or(cmp.Compare(a.shard.Name, b.shard.Name), cmp.Compare(a.Begin, b.Begin))
	})
	seen := map[string][]uint32{} // by fused set
	for _, t := range found {
		data, err := open.read(t, o)
		if err != nil {
			return nil, false, err
		}
		module, _, _ := splitName(t.Name)
		g := float32At(data)
		if set, bits := fusedSet(module), math.Float32bits(g); !slices.Contains(seen[set], bits) {
			seen[set] = append(seen[set], bits)
			globals = append(globals, g)
			if len(seen[set]) == 2 {
				d.Unshared++
			}
		}
	}
	return globals, modelopt, nil
}
