package pipeline

import (
	"fmt"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// configFile is a file that has rules of what is quantized, and what was changed in it.
type configFile struct {
	name    string
	data    []byte
	changes []spec.Change
}

// configFiles reads the files that may hold such rules, config.json last, since it is what makes an output whole.
func configFiles(c *safetensors.Checkpoint) ([]configFile, error) {
	files := []configFile{{name: configName, data: c.Config}}
	hf, err := safetensors.ReadFile(c.Dir, spec.ModelOptConfigName)
	if hf != nil {
		files = append([]configFile{{name: spec.ModelOptConfigName, data: hf}}, files...)
	}
	return files, err
}

// editConfigs changes every config so that it calls the modules in quantize quantized; all are the linear modules of the checkpoint.
func editConfigs(c *safetensors.Checkpoint, inputScales string, quantize, all []string) ([]configFile, error) {
	files, err := configFiles(c)
	if err != nil {
		return nil, err
	}
	for i := range files {
		if err := files[i].edit(inputScales, quantize, all); err != nil {
			return nil, fault.In(files[i].name, err)
		}
	}
	return files, nil
}

func (f *configFile) edit(inputScales string, quantize, all []string) (err error) {
	if f.data, f.changes, err = spec.NarrowIgnore(f.data, quantize, all); err != nil {
		return err
	}
	if inputScales == FromNone {
		var more []spec.Change
		if f.data, more, err = spec.WeightOnly(f.data); err != nil {
			return err
		}
		f.changes = append(f.changes, more...)
	}
	q, err := spec.ParseQuantConfig(f.data)
	if q == nil || err != nil {
		return err
	}
	for _, module := range quantize {
		g, err := q.Group(module, spec.Linear)
		switch {
		case err != nil:
			return err
		case g == nil:
			return fmt.Errorf("the edited rules still exempt %s", module)
		case !g.NVFP4():
			return &fault.Error{
				Kind: fault.Refused, Tensor: module, Problem: fmt.Sprintf("config group %s says %v, expected NVFP4", g.Name, g.Weights),
				Hint: "loaders read one config or the other: make both say the same, or remove this one from a copy of the checkpoint",
			}
		}
	}
	return nil
}

// editedConfigs gives the configs of the output.
func (p *Plan) editedConfigs(src *safetensors.Checkpoint, s *spec.Nvfp4ExpertSourceSpec) ([]configFile, error) {
	var quantize []string
	for _, u := range p.Units {
		for _, m := range u.Modules {
			quantize = append(quantize, m.Name)
		}
	}
	return editConfigs(src, p.InputScales.From, quantize, modules(src, s))
}
