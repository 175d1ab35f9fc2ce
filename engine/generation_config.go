package engine

import (
	"encoding/json"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

const generationConfigFile = "generation_config.json"

// GenerationConfig is what a checkpoint recommends for generating.
type GenerationConfig struct {
	BOS, PAD           int32           // -1: not given
	EOS                []int32         // generation stops at any of them
	Sampling           SamplingOptions // what its makers recommend, checked by NewSampler; greedy where do_sample is absent or false
	ChatTemplateKwargs map[string]any  // default_chat_template_kwargs, such as enable_thinking
}

type generationConfigJSON struct {
	BOS                *int32          `json:"bos_token_id"`
	EOS                json.RawMessage `json:"eos_token_id"`
	PAD                *int32          `json:"pad_token_id"`
	DoSample           bool            `json:"do_sample"`
	Temperature        *float64        `json:"temperature"`
	TopK               *int            `json:"top_k"`
	TopP               *float64        `json:"top_p"`
	MinP               *float64        `json:"min_p"`
	RepetitionPenalty  *float64        `json:"repetition_penalty"`
	ChatTemplateKwargs map[string]any  `json:"default_chat_template_kwargs"`
}

// LoadGenerationConfig reads generation_config.json of a checkpoint folder. Stop ids that it lacks come from config.json, as transformers has it;
// neither file need be there.
func LoadGenerationConfig(dir string) (*GenerationConfig, error) {
	g := &GenerationConfig{BOS: -1, PAD: -1, Sampling: GreedyOptions()}
	for _, file := range []string{generationConfigFile, "config.json"} {
		data, err := safetensors.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		if data == nil {
			continue
		}
		if err := g.read(data, file == generationConfigFile); err != nil {
			return nil, fault.In(file, err)
		}
	}
	return g, nil
}

// read takes over what is not known yet. Only generation_config.json has a say about sampling: old config.json files carry defaults that nobody meant.
func (g *GenerationConfig) read(data []byte, sampling bool) error {
	var file generationConfigJSON
	if err := decodeJSON(data, &file, "file"); err != nil {
		return err
	}
	if g.BOS < 0 && file.BOS != nil {
		g.BOS = *file.BOS
	}
	if g.PAD < 0 && file.PAD != nil {
		g.PAD = *file.PAD
	}
	if len(g.EOS) == 0 {
		ids, err := stopIDs(file.EOS)
		if err != nil {
			return err
		}
		g.EOS = ids
	}
	if !sampling {
		return nil
	}
	g.ChatTemplateKwargs = file.ChatTemplateKwargs
	if file.DoSample {
		g.Sampling = file.sampling()
	}
	return nil
}

// sampling fills in transformers' defaults: temperature 1, top-k 50.
func (f *generationConfigJSON) sampling() SamplingOptions {
	o := SamplingOptions{Temperature: 1, TopK: 50, TopP: 1, RepetitionPenalty: 1}
	for _, v := range []struct {
		given *float64
		into  *float64
	}{{f.Temperature, &o.Temperature}, {f.TopP, &o.TopP}, {f.MinP, &o.MinP}, {f.RepetitionPenalty, &o.RepetitionPenalty}} {
		if v.given != nil {
			*v.into = *v.given
		}
	}
	if f.TopK != nil {
		o.TopK = *f.TopK
	}
	return o
}

// stopIDs reads an id, a list of ids or null.
func stopIDs(raw json.RawMessage) ([]int32, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	list := raw
	if raw[0] != '[' {
		list = slices.Concat([]byte("["), raw, []byte("]"))
	}
	var several []*int32
	bad := json.Unmarshal(list, &several) != nil
	ids := make([]int32, len(several))
	for i, id := range several {
		if bad = bad || id == nil || *id < 0; !bad {
			ids[i] = *id
		}
	}
	if bad {
		return nil, refuseTokenizer("eos_token_id: found %.60s, expected an id or a list of ids", oneLine(raw))
	}
	return ids, nil
}

// Stops says whether generation ends at id.
func (g *GenerationConfig) Stops(id int32) bool { return slices.Contains(g.EOS, id) }

// ThinksByDefault says whether the checkpoint's servers ask for reasoning when a request does not say.
func (g *GenerationConfig) ThinksByDefault() bool {
	think, _ := g.ChatTemplateKwargs["enable_thinking"].(bool)
	return think
}
