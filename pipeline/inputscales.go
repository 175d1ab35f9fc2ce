package pipeline

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// InputScales says where the input global scales of requantized modules come from: weights alone cannot give them.
type InputScales struct {
	From  string  `json:"from"`            // a constant below
	Value float32 `json:"value,omitempty"` // of FromConstant
	Donor *Origin `json:"donor,omitempty"` // of FromDonor
}

// The sources of input scales.
const (
	FromNowhere  = "not needed" // the scheme quantizes weights only already
	FromDonor    = "donor"      // another checkpoint that quantized the same modules
	FromPeers    = "peers"      // for each projection the smallest global among the checkpoint's own quantized layers
	FromConstant = "constant"   // one value for all
	FromNone     = "none"       // the scheme becomes weight-only, and input scales that are there go
)

// ParseInputScales reads what stands for a donor too: "peers", "none", "const:V". Anything else names a checkpoint, and donor is true.
func ParseInputScales(s string) (scales InputScales, donor bool, err error) {
	switch {
	case s == "peers":
		return InputScales{From: FromPeers}, false, nil
	case s == "none":
		return InputScales{From: FromNone}, false, nil
	case strings.HasPrefix(s, "const:"):
		v, err := strconv.ParseFloat(s[len("const:"):], 32)
		if f := float32(v); err == nil && lawfulGlobal(f) {
			return InputScales{From: FromConstant, Value: f}, false, nil
		}
		return InputScales{}, false, &fault.Error{
			Kind: fault.Usage, Problem: fmt.Sprintf("--input-scales %s: the value must be a positive number whose reciprocal is finite", s),
			Hint: "an input global scale is 2688 over the largest activation, for example const:744",
		}
	}
	return InputScales{From: FromDonor}, true, nil
}

// argument is what --input-scales was, with a donor named by what it is.
func (s InputScales) argument() string {
	switch s.From {
	case FromDonor:
		return s.Donor.String()
	case FromConstant:
		return fmt.Sprintf("const:%v", s.Value)
	}
	return s.From
}

// origin is how a manifest names the source of an input scale.
func (s InputScales) origin() string { return "input scale from " + s.argument() }

// added says whether requantized modules get an input scale.
func (s InputScales) added() bool {
	return s.From == FromDonor || s.From == FromPeers || s.From == FromConstant
}

// chooseInputScales settles where input scales come from, and checks that they are there: a donor's by its headers, peers by reading them.
func (p *Plan) chooseInputScales(wanted bool, src, donor *Source, s *spec.Nvfp4ExpertSourceSpec, chosen map[string]*expert) error {
	switch {
	case !wanted && p.InputScales.From != "" && p.InputScales.From != FromNone:
		return &fault.Error{
			Kind: fault.Usage, Problem: "the checkpoint's scheme quantizes weights only and has no input scales", Hint: "leave --input-scales out",
		}
	case !wanted:
		p.InputScales.From = FromNowhere
	case p.InputScales.From == "":
		return &fault.Error{
			Kind: fault.Usage, Problem: "the checkpoint's scheme quantizes activations too (W4A4), and weights alone cannot give their scales",
			Hint: "name a revision that has these layers in NVFP4 (--input-scales REV), or use --input-scales peers, const:V or none (weight-only)",
		}
	case p.InputScales.From == FromDonor:
		origin, _, err := originOf(donor)
		if err != nil {
			return err
		}
		p.InputScales.Donor = &origin
		for _, name := range slices.Sorted(maps.Keys(chosen)) {
			if _, err := p.donorScale(donor.Checkpoint, name); err != nil {
				return err
			}
		}
	case p.InputScales.From == FromPeers:
		_, err := p.peers(src.Checkpoint, s)
		return err
	}
	return nil
}

// defaultScalar is the shape of scalars where the checkpoint has none to copy: the donor's, else its form's own.
func (p *Plan) defaultScalar(donor *Source) []uint64 {
	if donor != nil {
		for _, s := range donor.Shards {
			for _, t := range s.Header.Tensors {
				if strings.HasSuffix(t.Name, p.Names.InputGlobal) {
					return t.Shape
				}
			}
		}
	}
	if p.Names.Reciprocal {
		return []uint64{}
	}
	return []uint64{1}
}

// donorScale finds a module's input scale in the donor and checks its form.
func (p *Plan) donorScale(donor *safetensors.Checkpoint, module string) (weight, error) {
	name := module + p.Names.InputGlobal
	s, t, ok := donor.Lookup(name)
	if !ok {
		return weight{}, &fault.Error{
			Kind: fault.Refused, File: donor.Dir, Tensor: name, Problem: "is not there, so this checkpoint cannot give the input scales",
			Hint: "name a revision in which the same layers are NVFP4 with quantized activations",
		}
	}
	if t.DType != safetensors.F32 || t.Len() != 4 {
		return weight{}, &fault.Error{
			Kind: fault.Refused, File: s.Name, Tensor: name, Problem: fmt.Sprintf("is %s %v, expected one F32", t.DType, t.Shape),
		}
	}
	return weight{s, t}, nil
}

// inputScales reads the input scale of every module that needs one, as bits, and refuses what loaders would choke on.
func (p *Plan) inputScales(src, donor *safetensors.Checkpoint, s *spec.Nvfp4ExpertSourceSpec) (map[string]uint32, error) {
	if !p.InputScales.added() {
		return nil, nil
	}
	var peers map[spec.Role]float32
	var err error
	if p.InputScales.From == FromPeers {
		if peers, err = p.peers(src, s); err != nil {
			return nil, err
		}
	}
	inputs := make(map[string]uint32, p.Modules)
	for i := range p.Units {
		for _, m := range p.Units[i].Modules {
			value := p.InputScales.Value
			switch p.InputScales.From {
			case FromDonor:
				value, err = p.readDonorScale(donor, m.Name)
			case FromPeers:
				e, _ := s.Match(m.Name + ".weight")
				var ok bool
				if value, ok = peers[e.Role]; !ok {
					err = &fault.Error{
						Kind: fault.Refused, Tensor: m.Name, Problem: fmt.Sprintf("no quantized layer of the checkpoint has an input scale for a %s projection", e.Role),
						Hint: "name a revision that has it (--input-scales REV)",
					}
				}
			}
			if err != nil {
				return nil, err
			}
			inputs[m.Name] = math.Float32bits(value)
		}
	}
	return inputs, nil
}

func (p *Plan) readDonorScale(donor *safetensors.Checkpoint, module string) (float32, error) {
	at, err := p.donorScale(donor, module)
	if err != nil {
		return 0, err
	}
	value, err := readScalar(at)
	if err == nil && !lawfulGlobal(value) {
		err = &fault.Error{
			Kind: fault.Refused, File: at.shard.Name, Tensor: at.tensor.Name, Problem: fmt.Sprintf("is %v, expected a positive number whose reciprocal is finite", value),
			Hint: "loaders divide by it: use another --input-scales revision, or peers",
		}
	}
	return value, err
}

func readScalar(at weight) (float32, error) {
	b, err := at.shard.ReadTensor(at.tensor)
	if err != nil {
		return 0, err
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b)), nil
}

// peers returns for each projection the input global scale of the largest activation among the checkpoint's own experts.
func (p *Plan) peers(src *safetensors.Checkpoint, s *spec.Nvfp4ExpertSourceSpec) (map[spec.Role]float32, error) {
	scales := map[spec.Role]float32{}
	for _, shard := range src.Shards {
		for _, t := range shard.Header.Tensors {
			e, ok := s.MatchTensor(t)
			if !ok || e.Kind != spec.InputGlobal || t.DType != safetensors.F32 || t.Len() != 4 {
				continue
			}
			v, err := readScalar(weight{shard, t})
			if err != nil {
				return nil, err
			}
			if !lawfulGlobal(v) {
				continue // verify reports it; it must not become everybody's
			}
			old, ok := scales[e.Role]
			if !ok || v < old != p.Names.Reciprocal { // ModelOpt stores amax/2688: there the largest is of the largest activation
				scales[e.Role] = v
			}
		}
	}
	if len(scales) == 0 {
		return nil, &fault.Error{
			Kind: fault.Usage, Problem: "--input-scales peers: the checkpoint has no quantized layer with input scales of its own", Hint: "name a revision that has them",
		}
	}
	return scales, nil
}

// lawfulGlobal says whether a loader can use a stored global scale: positive, finite, and so is its reciprocal.
func lawfulGlobal(f float32) bool {
	return f > 0 && !math.IsInf(float64(f), 0) && !math.IsInf(float64(1/f), 0)
}
