package pipeline

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// PlanOptions say what a user wants.
type PlanOptions struct {
	Layers      []int       // nil: every layer whose experts are BF16 and exempted by an ignore rule
	InputScales InputScales // the zero value: not chosen, which a W4A4 scheme refuses
}

// Source is a checkpoint with its place in a Hugging Face cache, if it has one.
type Source struct {
	*safetensors.Checkpoint
	Repo, Revision string
}

// MakePlan decides everything about a job without reading a weight. donor is nil unless input scales come from one. The plan has no
// profile yet: see SetProfile.
func MakePlan(src, donor *Source, opts PlanOptions) (*Plan, error) {
	q, s, err := scheme(src)
	if err != nil {
		return nil, err
	}
	inv := takeInventory(src.Checkpoint, s)
	layers, chosen, err := inv.choose(opts.Layers, q)
	if err != nil {
		return nil, err
	}
	fused, err := sets(chosen)
	if err != nil {
		return nil, err
	}
	p := &Plan{Schema: PlanSchema, Layers: layers, InputScales: opts.InputScales, Names: namesOf(s), Scalar: inv.scalar, Modules: len(chosen)}
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		if err := checkWeight(chosen[name]); err != nil {
			return nil, err
		}
	}
	if err := checkLayers(chosen); err != nil {
		return nil, err
	}
	if err := checkExpected(src, s, layers); err != nil {
		return nil, err
	}
	wantsInput, err := checkGroups(chosen, q)
	if err != nil {
		return nil, err
	}
	if err := p.chooseInputScales(wantsInput, src, donor, s, chosen); err != nil {
		return nil, err
	}
	if err := p.checkRoom(src, chosen); err != nil {
		return nil, err
	}
	if p.Scalar == nil {
		p.Scalar = p.defaultScalar(donor)
	}
	edited, err := editConfigs(src.Checkpoint, p.InputScales.From, slices.Sorted(maps.Keys(chosen)), modules(src.Checkpoint, s))
	if err != nil {
		return nil, err
	}
	for _, f := range edited {
		if f.name == configName {
			p.Config = f.changes
		} else {
			p.HFConfig = f.changes
		}
	}
	if err := p.addUnits(src, chosen, fused); err != nil {
		return nil, err
	}
	return p, p.addFiles(src.Checkpoint)
}

// SetProfile completes the plan with the arithmetic and the reasons for it.
func (p *Plan) SetProfile(profile quant.Profile, evidence []string) error {
	if profile.ModelOpt() != p.Names.Reciprocal {
		return &fault.Error{
			Kind: fault.Usage, Problem: fmt.Sprintf("profile %s stores another kind of global scale than this checkpoint", profile.Name),
			Hint: "compressed-tensors checkpoints take the ct-* profiles, ModelOpt ones modelopt-*",
		}
	}
	p.Profile, p.Evidence = profile.Name, evidence
	return p.seal()
}

// scheme reads how the source is quantized and how it stores its experts.
func scheme(src *Source) (*spec.QuantConfig, *spec.Nvfp4ExpertSourceSpec, error) {
	if src.Config == nil {
		return nil, nil, &fault.Error{Kind: fault.Refused, File: configName, Problem: "is missing", Hint: "a checkpoint is a folder with config.json and safetensors files"}
	}
	q, err := spec.ReadQuantConfig(src.Dir, src.Config)
	if err != nil {
		return nil, nil, err
	}
	if q == nil {
		return nil, nil, &fault.Error{
			Kind: fault.Refused, File: configName, Problem: "has no quantization_config, so nothing says how the experts should be quantized",
			Hint: "requantize restores a scheme that a checkpoint has already; start from the vendor's NVFP4 revision",
		}
	}
	s, err := spec.Detect(src.Config, src.Names())
	if err != nil {
		return nil, nil, err
	}
	if s == nil {
		return nil, nil, &fault.Error{Kind: fault.Refused, File: src.Dir, Problem: "has no routed experts", Hint: "lagquant inspect shows what it holds"}
	}
	return q, s, nil
}

// checkGroups refuses modules for which the config has no NVFP4 scheme, and says whether the scheme needs input scales.
func checkGroups(chosen map[string]*expert, q *spec.QuantConfig) (inputs bool, err error) {
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		g, err := q.Targeted(name, spec.Linear)
		if err != nil {
			return false, fault.In(q.File, err)
		}
		if g == nil || !g.NVFP4() {
			return false, &fault.Error{
				Kind: fault.Refused, File: q.File, Tensor: name, Problem: "no target of the config's NVFP4 groups covers it, so its scheme is unknown",
				Hint: "requantize restores a scheme that a checkpoint has already",
			}
		}
		inputs = inputs || g.InputScales()
	}
	return inputs, nil
}

// checkRoom refuses sources that have tensors already under names that the job would give, such as scales left over from another revision.
func (p *Plan) checkRoom(src *Source, chosen map[string]*expert) error {
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		for _, t := range p.tensorsOf(Module{Name: name}) {
			if shard, _, ok := src.Lookup(t.Name); ok && t.Name != chosen[name].name { // ModelOpt keeps the codes under the weight's name
				return broken(shard.Name, t.Name, "is there already, though the weight of its module is BF16 (in %s)", chosen[name].file)
			}
		}
	}
	return nil
}

// modules lists every linear module of the checkpoint, which is what config rules speak of.
func modules(c *safetensors.Checkpoint, s *spec.Nvfp4ExpertSourceSpec) []string {
	packed := s.Name("", spec.Packed)
	var all []string
	for _, shard := range c.Shards {
		for _, t := range shard.Header.Tensors {
			name, ok := strings.CutSuffix(t.Name, ".weight")
			if !ok && packed != ".weight" {
				name, ok = strings.CutSuffix(t.Name, packed)
			}
			if ok && len(t.Shape) >= 2 {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// addUnits makes a unit of every shard.
func (p *Plan) addUnits(src *Source, chosen map[string]*expert, fused map[string][]string) error {
	origin, headers, err := originOf(src)
	if err != nil {
		return err
	}
	p.Source = origin
	for _, shard := range src.Shards {
		u := Unit{Shard: shard.Name, Size: shard.Size, Header: headers[shard.Name]}
		for _, t := range shard.Header.Tensors {
			name, isWeight := strings.CutSuffix(t.Name, ".weight")
			if e := chosen[name]; isWeight && e != nil {
				with := slices.DeleteFunc(slices.Clone(fused[e.FusedSet()]), func(n string) bool { return n == name })
				u.Modules = append(u.Modules, Module{name, t.Shape[0], t.Shape[1], with})
				p.WeightBytes += int64(t.Len())
			}
			if p.InputScales.From == FromNone && strings.HasSuffix(t.Name, p.Names.InputGlobal) {
				u.Drop = append(u.Drop, t.Name)
			}
		}
		slices.SortFunc(u.Modules, func(a, b Module) int { return strings.Compare(a.Name, b.Name) })
		layout, err := p.layout(&u, shard.Header)
		if err != nil {
			return fault.In(shard.Name, err)
		}
		if len(layout.Tensors) == 0 && !u.Copied() {
			p.LeftOut = append(p.LeftOut, LeftOut{shard.Name, "it has input scales only"})
			continue
		}
		u.SizeOut = u.Size
		if !u.Copied() {
			u.SizeOut = layout.Size()
		}
		p.TensorsOut += len(layout.Tensors)
		for _, t := range layout.Tensors {
			p.TotalSize += int64(t.Len())
		}
		p.BytesIn += u.Size
		p.BytesOut += u.SizeOut
		p.Units = append(p.Units, u)
	}
	return nil
}

// layout says what a unit's shard will hold and where.
func (p *Plan) layout(u *Unit, h *safetensors.Header) (*safetensors.Layout, error) {
	gone := map[string]bool{}
	for _, name := range u.Drop {
		gone[name] = true
	}
	var made []safetensors.Tensor
	for _, m := range u.Modules {
		gone[m.Name+".weight"] = true
		made = append(made, p.tensorsOf(m)...)
	}
	tensors := make([]safetensors.Tensor, 0, len(h.Tensors)+len(made))
	for _, t := range h.Tensors {
		if !gone[t.Name] {
			tensors = append(tensors, t)
		}
	}
	return safetensors.NewLayout(append(tensors, made...), h.Metadata)
}

// tensorsOf lists the tensors that a requantized module has.
func (p *Plan) tensorsOf(m Module) []safetensors.Tensor {
	list := []safetensors.Tensor{
		{Name: m.Name + p.Names.Packed, DType: safetensors.U8, Shape: []uint64{m.Rows, m.Cols / 2}},
		{Name: m.Name + p.Names.Scale, DType: safetensors.F8E4M3, Shape: []uint64{m.Rows, m.Cols / 16}},
		{Name: m.Name + p.Names.Global, DType: safetensors.F32, Shape: p.Scalar},
	}
	if p.InputScales.added() {
		list = append(list, safetensors.Tensor{Name: m.Name + p.Names.InputGlobal, DType: safetensors.F32, Shape: p.Scalar})
	}
	return list
}

// addFiles lists what lies beside the shards. Weight files that the index does not name stay behind: they are stale copies or other formats
// of the same weights, and some loaders would take them for shards.
func (p *Plan) addFiles(c *safetensors.Checkpoint) error {
	known := map[string]bool{configName: true, spec.ModelOptConfigName: true, indexName: true}
	for _, s := range c.Shards {
		known[s.Name] = true
	}
	leave := func(name, why string) { p.LeftOut = append(p.LeftOut, LeftOut{name, why}) }
	for _, name := range c.Unindexed {
		known[name] = true
		leave(name, "the index does not name it")
	}
	for _, name := range []string{ManifestName, PlanName} {
		known[name] = true
		if _, err := os.Stat(filepath.Join(c.Dir, name)); err == nil {
			leave(name, "it describes the source")
		}
	}
	err := walk(c.Dir, "", func(name, odd string) {
		switch {
		case known[name]:
		case odd != "":
			leave(name, odd)
		default:
			p.Files = append(p.Files, name)
		}
	})
	slices.Sort(p.Files)
	return err
}

// walk visits the files below dir by their slash-separated names, links followed, tools' own folders passed over. odd says why something is
// no file to copy.
func walk(dir, below string, visit func(name, odd string)) error {
	entries, err := os.ReadDir(filepath.Join(dir, below))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if below != "" {
			name = below + "/" + name
		}
		info, err := os.Stat(filepath.Join(dir, name))
		link := e.Type()&fs.ModeSymlink != 0
		switch {
		case link && errors.Is(err, fs.ErrNotExist):
			return &fault.Error{
				Kind: fault.IO, File: name, Problem: "is a link to a file that is not there", Err: err,
				Hint: "download the file, or remove the link if the model does not need it",
			}
		case err != nil:
			return err
		case info.Mode().IsRegular():
			visit(name, "")
		case !info.IsDir():
			visit(name, "it is neither a file nor a folder")
		case link:
			visit(name, "it is a link to a folder")
		case e.Name() != ".git" && e.Name() != ".cache" && e.Name() != workDir:
			if err := walk(dir, name, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// originOf tells a checkpoint apart from others, and gives the SHA-256 of each shard's length word and header.
func originOf(src *Source) (Origin, map[string]string, error) {
	headers := make(map[string]string, len(src.Shards))
	all := sha256.New()
	files, err := configFiles(src.Checkpoint)
	if err != nil {
		return Origin{}, nil, err
	}
	for _, f := range files {
		fmt.Fprintf(all, "%s %x\n", strings.TrimSuffix(f.name, ".json"), sha256.Sum256(f.data))
	}
	for _, s := range src.Shards {
		sum, err := headerDigest(s)
		if err != nil {
			return Origin{}, nil, err
		}
		headers[s.Name] = sum
		fmt.Fprintf(all, "%s %d %s\n", s.Name, s.Size, sum)
	}
	return Origin{src.Repo, src.Revision, hex.EncodeToString(all.Sum(nil))}, headers, nil
}

func headerDigest(s *safetensors.Shard) (string, error) {
	f, err := os.Open(s.Path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, s.Header.DataStart)
	if err := readAt(f, b, 0); err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}
