package pipeline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// ManifestName and PlanName are the files that lagquant adds to an output.
const (
	ManifestName = "lagquant-manifest.json"
	PlanName     = "lagquant-plan.json"
)

// ManifestSchema names the JSON form of a Manifest.
const ManifestSchema = "lagquant-manifest/1"

// Manifest tells what an output is made of. It holds neither times nor folder names, so that the same job gives the same bytes.
type Manifest struct {
	Schema      string      `json:"schema"`
	Tool        string      `json:"tool"`
	Command     string      `json:"command"`
	Plan        string      `json:"plan"` // the plan's digest
	Source      Origin      `json:"source"`
	InputScales InputScales `json:"input_scales"`
	Profile     string      `json:"profile"`
	Evidence    []string    `json:"profile_evidence,omitempty"`
	Layers      string      `json:"layers"`
	Modules     int         `json:"modules"`
	Files       []FileEntry `json:"files"`
	// Tensors has an entry for each tensor of the output.
	Tensors map[string]TensorEntry `json:"tensors"`
}

// FileEntry is one file of the output; the manifest itself is not among them.
type FileEntry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Origin string `json:"origin"` // copied, rewritten, edited or added
}

// TensorEntry is one tensor of the output.
type TensorEntry struct {
	Origin string `json:"origin"` // copied, requantized, or input scale from whom
	XXH3   string `json:"xxh3"`   // 128 bits, of its bytes: see package digest
}

// encode writes the manifest with one line a file and a tensor: readable, comparable by diff, and never held twice in memory.
func (m *Manifest) encode() ([]byte, error) {
	head := *m
	head.Files, head.Tensors = nil, nil
	b, err := json.MarshalIndent(head, "", " ")
	if err != nil {
		return nil, err
	}
	var w bytes.Buffer
	w.Write(b[:bytes.Index(b, []byte("\n \"files\""))])
	w.WriteString("\n \"files\": [")
	for i, f := range m.Files {
		line, err := json.Marshal(f)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&w, "%s\n  %s", comma(i), line)
	}
	w.WriteString("\n ],\n \"tensors\": {")
	for i, name := range slices.Sorted(maps.Keys(m.Tensors)) {
		key, err1 := json.Marshal(name)
		line, err2 := json.Marshal(m.Tensors[name])
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("manifest: %s: %v %v", name, err1, err2)
		}
		fmt.Fprintf(&w, "%s\n  %s: %s", comma(i), key, line)
	}
	w.WriteString("\n }\n}\n")
	return w.Bytes(), nil
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}
