package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

func inspectCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:      "inspect",
		Usage:     "show shards, layers, dtypes, schemes and sizes",
		ArgsUsage: "[MODEL]",
		Description: describe("Reads headers and configs only, and shows how each layer is stored. Layers that are alike share a line.",
			[]string{"lagquant inspect poolside/Laguna-S-2.1-NVFP4@f8fdfcdc4e", "lagquant inspect ./model --json"},
			"0 done, 2 wrong use, 3 checkpoint refused, 4 reading failed"),
		CustomHelpTemplate: commandHelp,
		Flags:              []cli.Flag{modelFlag(), jsonFlag()},
		Action: func(c *cli.Context) error {
			name, err := modelName(c)
			if err != nil {
				return err
			}
			m, err := open(name, nil)
			if err != nil {
				return err
			}
			i, err := inspect(m)
			if err != nil {
				return err
			}
			i.print(t)
			return t.document(i)
		},
	}
}

// inspection is what headers and configs tell.
type inspection struct {
	Schema       string       `json:"schema"`
	Model        string       `json:"model"`
	Revision     string       `json:"revision,omitempty"`
	Architecture string       `json:"architecture,omitempty"`
	Scheme       string       `json:"scheme"`
	Tensors      int          `json:"tensors"`
	Bytes        uint64       `json:"bytes"`
	Shards       []shardInfo  `json:"shards"`
	DTypes       []dtypeInfo  `json:"dtypes"`
	Layers       []*layerInfo `json:"layers"` // layer -1: what lies outside of all layers
}

type shardInfo struct {
	Name    string `json:"name"`
	Size    int64  `json:"size"`
	Tensors int    `json:"tensors"`
}

type dtypeInfo struct {
	DType   safetensors.DType `json:"dtype"`
	Tensors int               `json:"tensors"`
	Bytes   uint64            `json:"bytes"`
}

type layerInfo struct {
	Layer   int    `json:"layer"`
	Experts int    `json:"experts"` // routed
	Form    string `json:"form"`    // of the routed experts: BF16, NVFP4, mixed or another dtype; "" where there are none
	Bytes   uint64 `json:"bytes"`
}

func inspect(m *model) (*inspection, error) {
	i := &inspection{Schema: "lagquant-inspect/1", Model: title(m.ref), Revision: m.ref.Revision}
	q, err := spec.ReadQuantConfig(m.Dir, m.Config)
	if err != nil {
		return nil, err
	}
	i.Scheme = scheme(q)
	var config struct{ Architectures []string }
	if json.Unmarshal(m.Config, &config) == nil { // what is wrong with a config is verify's to say
		i.Architecture = strings.Join(config.Architectures, ", ")
	}
	experts, err := spec.Detect(m.Config, m.Names())
	if err != nil {
		return nil, err
	}
	dtypes := map[safetensors.DType]*dtypeInfo{}
	layers := map[int]*layerInfo{}
	for _, s := range m.Shards {
		i.Shards = append(i.Shards, shardInfo{s.Name, s.Size, len(s.Header.Tensors)})
		for _, t := range s.Header.Tensors {
			d := dtypes[t.DType]
			if d == nil {
				d = &dtypeInfo{DType: t.DType}
				dtypes[t.DType] = d
			}
			d.Tensors, d.Bytes = d.Tensors+1, d.Bytes+t.Len()
			i.Tensors, i.Bytes = i.Tensors+1, i.Bytes+t.Len()
			number := layerOf(t.Name)
			l := layers[number]
			if l == nil {
				l = &layerInfo{Layer: number}
				layers[number] = l
			}
			l.add(t, experts)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(layers)) {
		i.Layers = append(i.Layers, layers[n])
	}
	for _, d := range dtypes {
		i.DTypes = append(i.DTypes, *d)
	}
	slices.SortFunc(i.DTypes, func(a, b dtypeInfo) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.DType, b.DType)) })
	return i, nil
}

func (l *layerInfo) add(t safetensors.Tensor, experts *spec.Nvfp4ExpertSourceSpec) {
	l.Bytes += t.Len()
	if experts == nil {
		return
	}
	e, ok := experts.MatchTensor(t)
	if !ok || e.Kind != spec.Weight && e.Kind != spec.Packed {
		return
	}
	form := string(t.DType)
	if e.Kind == spec.Packed {
		form = "NVFP4"
	}
	if l.Form != "" && l.Form != form {
		form = "mixed"
	}
	l.Form = form
	l.Experts = max(l.Experts, e.Expert+1)
}

// scheme names how a config says that modules are quantized.
func scheme(q *spec.QuantConfig) string {
	if q == nil {
		return "none"
	}
	parts := []string{strings.TrimSpace(q.Method + " " + q.Version)}
	for _, g := range q.Groups {
		name := "other weights"
		if g.NVFP4() {
			name = "NVFP4 W4A16"
			if g.InputScales() {
				name = "NVFP4 W4A4"
			}
		}
		parts = append(parts, name)
	}
	if q.KVCache != nil {
		parts = append(parts, fmt.Sprintf("%d-bit KV cache", q.KVCache.NumBits))
	}
	return strings.Join(append(parts, fmt.Sprintf("%d ignore rules", len(q.Ignore))), ", ")
}

// layerOf finds N in "...layers.N....": -1 where there is none.
func layerOf(name string) int {
	parts := strings.Split(name, ".")
	for i := 1; i < len(parts); i++ {
		if parts[i-1] == "layers" {
			if n, err := strconv.Atoi(parts[i]); err == nil {
				return n
			}
		}
	}
	return -1
}

func (i *inspection) print(t *terminal) {
	t.printf("%s: %s, %d shards, %d tensors, %s\n", i.Model, i.Architecture, len(i.Shards), i.Tensors, size(int64(i.Bytes)))
	t.printf("scheme: %s\n\n", i.Scheme)
	t.printf("%-9s %-8s %-7s %9s\n", "layers", "experts", "form", "a layer")
	var most uint64
	for _, l := range i.Layers {
		most = max(most, l.Bytes)
	}
	for a := 0; a < len(i.Layers); {
		b := a
		for b+1 < len(i.Layers) && i.Layers[a].alike(i.Layers[b+1]) {
			b++
		}
		l := i.Layers[a]
		number := strconv.Itoa(l.Layer)
		switch {
		case l.Layer < 0:
			number = "outside"
		case b > a:
			number += "-" + strconv.Itoa(i.Layers[b].Layer)
		}
		experts, form := "-", "dense"
		if l.Form != "" {
			experts, form = strconv.Itoa(l.Experts), l.Form
		}
		if l.Layer < 0 {
			form = "-"
		}
		t.printf("%-9s %-8s %-7s %9s  %s\n", number, experts, form, size(int64(l.Bytes)), bar(float64(l.Bytes), float64(most)))
		a = b + 1
	}
	t.printf("\n%-9s %8s %9s\n", "dtype", "tensors", "size")
	for _, d := range i.DTypes {
		t.printf("%-9s %8d %9s\n", d.DType, d.Tensors, size(int64(d.Bytes)))
	}
}

// bar draws a part of the largest value as up to forty blocks.
func bar(value, largest float64) string {
	if value <= 0 || largest <= 0 {
		return ""
	}
	return strings.Repeat("█", 1+int(39*value/largest))
}

// alike says whether two layers may share a line: same form, and sizes within a tenth (full and sliding attention differ a little).
func (l *layerInfo) alike(o *layerInfo) bool {
	low, high := min(l.Bytes, o.Bytes), max(l.Bytes, o.Bytes)
	return l.Layer >= 0 && l.Form == o.Form && l.Experts == o.Experts && high-low <= high/10
}
