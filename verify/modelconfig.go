package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// modelConfig is what config.json says about the sizes of the model, at the top or, in a multimodal config, under text_config.
type modelConfig struct {
	hidden, expert uint64 // 0: not said, or not by one number
	tied           bool   // the output head is the embedding
}

// pythonNumber is what Python's json reads beyond JSON. It stands in no field that is read here, so it may be anything.
var pythonNumber = regexp.MustCompile(`-?Infinity|NaN`)

func readModelConfig(raw []byte) (modelConfig, error) {
	var config map[string]any
	if err := json.Unmarshal(pythonNumber.ReplaceAllLiteral(raw, []byte("0")), &config); err != nil {
		return modelConfig{}, fmt.Errorf("is not the JSON of a model config: %s", jsonProblem(err))
	}
	text, ok := config["text_config"].(map[string]any)
	if !ok {
		text = config
	}
	tied, ok := config["tie_word_embeddings"].(bool)
	if !ok {
		tied, _ = text["tie_word_embeddings"].(bool)
	}
	return modelConfig{size(text["hidden_size"]), size(text["moe_intermediate_size"]), tied}, nil
}

// jsonProblem says what encoding/json minds, without the names of this program's types.
func jsonProblem(err error) string {
	e, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return err.Error()
	case e.Field == "":
		return "unexpected " + e.Value
	}
	return fmt.Sprintf("unexpected %s in %s", e.Value, e.Field)
}

func size(v any) uint64 {
	f, _ := v.(float64)
	if f < 1 || f > 1<<40 {
		return 0
	}
	return uint64(f)
}
