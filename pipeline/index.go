package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/safetensors"
)

// index gives the bytes of the output's index: every tensor, total_size as their bytes, whatever else the metadata held kept. The form is
// the one that huggingface_hub writes: keys sorted, indented by two. It ends as the source's does: some tools write a last newline, some none.
func (p *Plan) index(src *safetensors.Checkpoint) ([]byte, error) {
	var metadata map[string]json.RawMessage
	if src.IndexMetadata != nil {
		if err := json.Unmarshal(src.IndexMetadata, &metadata); err != nil {
			return nil, &fault.Error{Kind: fault.Refused, File: indexName, Problem: "metadata: " + err.Error(), Err: err}
		}
	}
	if metadata == nil { // none, or null
		metadata = map[string]json.RawMessage{}
	}
	metadata["total_size"] = json.RawMessage(fmt.Sprint(p.TotalSize))

	headers := make(map[string]*safetensors.Header, len(src.Shards))
	for _, s := range src.Shards {
		headers[s.Name] = s.Header
	}
	where := make(map[string]string, p.TensorsOut)
	for i := range p.Units {
		u := &p.Units[i]
		layout, err := p.layout(u, headers[u.Shard])
		if err != nil {
			return nil, err
		}
		for _, t := range layout.Tensors {
			where[t.Name] = u.Shard
		}
	}
	var b bytes.Buffer
	b.WriteString("{\n  \"metadata\": {")
	for i, key := range slices.Sorted(maps.Keys(metadata)) {
		if err := writePair(&b, i, key, metadata[key]); err != nil {
			return nil, err
		}
	}
	b.WriteString("\n  },\n  \"weight_map\": {")
	for i, name := range slices.Sorted(maps.Keys(where)) {
		if err := writePair(&b, i, name, where[name]); err != nil {
			return nil, err
		}
	}
	b.WriteString("\n  }\n}")
	was, err := safetensors.ReadFile(src.Dir, indexName)
	if bytes.HasSuffix(was, []byte("\n")) {
		b.WriteByte('\n')
	}
	return b.Bytes(), err
}

func writePair(b *bytes.Buffer, i int, key string, value any) error {
	fmt.Fprintf(b, "%s\n    ", comma(i))
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(key); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // Encode ends with a newline
	b.WriteString(": ")
	if err := e.Encode(value); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1)
	return nil
}
