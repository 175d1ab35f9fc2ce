package verify

import (
	"encoding/json"
	"fmt"
	"slices"
)

// modelConfig is what config.json says about the sizes of the model, at the top or, in a multimodal config, under text_config.
type modelConfig struct {
	HiddenSize          uint64 `json:"hidden_size"`
	MoEIntermediateSize uint64 `json:"moe_intermediate_size"`
	Tied                *bool  `json:"tie_word_embeddings"`
}

func readModelConfig(raw []byte) (modelConfig, error) {
	var config struct {
		modelConfig
		Text *modelConfig `json:"text_config"`
	}
	if err := json.Unmarshal(withoutPythonNumbers(raw), &config); err != nil {
		return modelConfig{}, fmt.Errorf("is no JSON that a model config can be: %w", err)
	}
	m := config.modelConfig
	if t := config.Text; t != nil {
		m.HiddenSize, m.MoEIntermediateSize = t.HiddenSize, t.MoEIntermediateSize
		if m.Tied == nil {
			m.Tied = t.Tied
		}
	}
	return m, nil
}

// withoutPythonNumbers writes 0 for NaN and Infinity, which Python's json reads and JSON does not have, and which stand in no field read here.
func withoutPythonNumbers(raw []byte) []byte {
	raw = slices.Clone(raw)
	quoted := false
	for i := 0; i < len(raw); i++ {
		switch {
		case quoted && raw[i] == '\\':
			i++
		case raw[i] == '"':
			quoted = !quoted
		case quoted:
		default:
			for _, word := range []string{"-Infinity", "Infinity", "NaN"} {
				if n := len(word); len(raw) >= i+n && string(raw[i:i+n]) == word {
					copy(raw[i:i+n], fmt.Sprintf("%-*s", n, "0"))
				}
			}
		}
	}
	return raw
}
