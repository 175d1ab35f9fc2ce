package spec

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata/goldens"
)

const targets = `"re:.*experts\\.[0-9]+\\.(gate_proj|up_proj|down_proj)$"`

// grid lists the linear modules of a small Laguna: a dense layer 0, experts and a shared expert above.
func grid(layers, experts int) (all []string) {
	all = append(all, "lm_head", "model.embed_tokens")
	for l := range layers {
		for _, p := range []string{"q_proj", "k_proj", "v_proj", "o_proj", "g_proj"} {
			all = append(all, fmt.Sprintf("model.layers.%d.self_attn.%s", l, p))
		}
		mlp := fmt.Sprintf("model.layers.%d.mlp.", l)
		for _, p := range []string{"gate_proj", "up_proj", "down_proj"} {
			if l == 0 {
				all = append(all, mlp+p)
				continue
			}
			all = append(all, mlp+"shared_expert."+p)
			for e := range experts {
				all = append(all, fmt.Sprintf("%sexperts.%d.%s", mlp, e, p))
			}
		}
		if l > 0 {
			all = append(all, mlp+"gate")
		}
	}
	return all
}

func expertsOf(all []string, layers ...int) (experts []string) {
	for _, m := range all {
		if l, _ := layerOf(m); strings.Contains(m, ".experts.") && slices.Contains(layers, l) {
			experts = append(experts, m)
		}
	}
	return experts
}

// checkEdit holds an edit against what it promises: the wanted state of every module, and the same bytes outside the changed lines.
func checkEdit(t *testing.T, config string, quantize, all []string) (string, []Change) {
	t.Helper()
	edited, changes, err := NarrowIgnore([]byte(config), quantize, all)
	require.NoError(t, err)
	chosen := map[string]bool{}
	for _, m := range quantize {
		chosen[m] = true
	}
	require.Equal(t, states(t, config, all, chosen), states(t, string(edited), all, nil), "%s", edited)
	replay(t, config, string(edited), changes)
	again, none, err := NarrowIgnore(edited, quantize, all)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Equal(t, edited, again)
	return string(edited), changes
}

// states says for each place of a config which modules its rules exempt, those chosen aside.
func states(t *testing.T, config string, all []string, chosen map[string]bool) (exempt []string) {
	t.Helper()
	require.NoError(t, eachPlace([]byte(config), func(q *QuantConfig, n *node) error {
		for _, m := range all {
			by, err := q.IgnoredBy(m, Linear)
			require.NoError(t, err)
			if len(by) > 0 && !chosen[m] {
				exempt = append(exempt, m)
			}
		}
		exempt = append(exempt, "--")
		return nil
	}))
	return exempt
}

// replay carries out changes on the lines of a text, which must give the edited one, and holds all bytes before and after them against the original.
func replay(t *testing.T, text, edited string, changes []Change) {
	t.Helper()
	all := strings.SplitAfter(text, "\n")
	var out []string
	at := 0
	for i, c := range changes {
		if i == 0 {
			require.True(t, strings.HasPrefix(edited, strings.Join(all[:c.Line-1], "")))
		}
		out = append(out, all[at:c.Line-1]...)
		at = c.Line - 1 + len(c.Before)
		require.Equal(t, c.Before, lines([]byte(strings.Join(all[c.Line-1:at], "")))[:len(c.Before)])
		for _, l := range c.After {
			out = append(out, l+"\n")
		}
	}
	rest := strings.Join(all[at:], "")
	require.True(t, strings.HasSuffix(edited, rest))
	plain := func(s string) string { return strings.TrimSuffix(strings.ReplaceAll(s, "\r\n", "\n"), "\n") }
	require.Equal(t, plain(edited), plain(strings.Join(out, "")+rest))
}

func TestTinyLagunaLosesItsOneRule(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801", "config.json"))
	require.NoError(t, err)
	all := grid(8, 8)
	edited, changes := checkEdit(t, string(config), expertsOf(all, 6, 7), all)
	require.Equal(t, strings.Replace(string(config), `down_proj$",
      "re:^model\\.layers\\.[67]\\.mlp\\.experts(\\..*)?$"`, `down_proj$"`, 1), edited)
	require.Equal(t, []Change{{
		Line: 154, Before: []string{`      "re:.*\\.mlp\\.shared_expert\\.down_proj$",`, `      "re:^model\\.layers\\.[67]\\.mlp\\.experts(\\..*)?$"`},
		After: []string{`      "re:.*\\.mlp\\.shared_expert\\.down_proj$"`},
	}}, changes)
	edited, _ = checkEdit(t, string(config), expertsOf(all, 7), all)
	require.Equal(t, strings.Replace(string(config), `[67]`, `6`, 1), edited)
}

func TestNarrowedRules(t *testing.T) {
	all := grid(48, 3)
	for _, c := range []struct {
		rules    string // before
		quantize []string
		want     string // after
	}{
		{`"re:^model\\.layers\\.4[0-7]\\.mlp\\.experts(\\..*)?$"`, expertsOf(all, 46, 47), `"re:^model\\.layers\\.4[0-5]\\.mlp\\.experts(\\..*)?$"`},
		{`"re:^model\\.layers\\.4[0-7]\\.mlp\\.experts(\\..*)?$"`, expertsOf(all, 43), `"re:^model\\.layers\\.4[0-24-7]\\.mlp\\.experts(\\..*)?$"`},
		{`"a", "re:.*layers\\.(?:4|40)\\.mlp\\.experts.*", "b"`, expertsOf(all, 4), `"a", "re:.*layers\\.40\\.mlp\\.experts.*", "b"`},
		{`"a", "re:.*layers\\.4\\.mlp\\.experts.*", "b"`, expertsOf(all, 4), `"a", "b"`},
		{`"re:.*layers\\.4\\.mlp\\.experts.*", "b"`, expertsOf(all, 4), `"b"`},
		{`"re:.*layers\\.4\\.mlp\\.experts.*"`, expertsOf(all, 4), ``},
		{`"re:.*layers\\.\\d+\\.mlp\\.experts.*"`, expertsOf(all, 1, 2, 47), `"re:.*layers\\.(?:[3-9]|[1-3][0-9]|4[0-6])\\.mlp\\.experts.*"`},
		// No place for a layer's number: a rule for each shape of name.
		{`"re:.*\\.experts"`, expertsOf(all, 1, 2, 47), `"re:^model\\.layers\\.(?:[3-9]|[1-3][0-9]|4[0-6])\\.mlp\\.experts\\.[0-9]+\\.(down_proj|gate_proj|up_proj)$"`},
		// The rule covers more than experts in the layers concerned.
		{`"re:^model\\.layers\\.4[67]\\..*"`, expertsOf(all, 47), `"re:^model\\.layers\\.46\\..*","model.layers.47.mlp.gate",` +
			`"re:^model\\.layers\\.47\\.mlp\\.shared_expert\\.(down_proj|gate_proj|up_proj)$",` +
			`"re:^model\\.layers\\.47\\.self_attn\\.(g_proj|k_proj|o_proj|q_proj|v_proj)$"`},
		// Other rules exempt the rest already.
		{`"re:.*self_attn", "re:.*mlp", "re:.*\\.(gate|shared_expert.*)$", "model.layers.0.mlp.gate_proj"`, expertsOf(all, 1), ``},
		{`"re:.*self_attn", "re:.*layers\\.1\\.", "re:.*\\.(gate|shared_expert.*)$"`, expertsOf(all, 1), `"re:.*self_attn", "re:.*\\.(gate|shared_expert.*)$"`},
		{`"Linear"`, expertsOf(all, 1), ``},
		{`"model.layers.5.mlp.experts.0.up_proj",  "model.layers.6.mlp.experts.0.up_proj"`, []string{"model.layers.5.mlp.experts.0.up_proj"}, `"model.layers.6.mlp.experts.0.up_proj"`},
		// Experts of one layer in part: names, since an expression for the number of an expert would be a riddle.
		{
			`"re:.*layers\\.5\\.mlp\\.experts\\..*up_proj"`,
			[]string{"model.layers.5.mlp.experts.1.up_proj"},
			`"model.layers.5.mlp.experts.0.up_proj","model.layers.5.mlp.experts.2.up_proj"`,
		},
		{`"re:(?!.*self_attn).*layers\\.4[0-7]\\.mlp\\.experts"`, expertsOf(all, 40), `"re:(?!.*self_attn).*layers\\.4[1-7]\\.mlp\\.experts"`},
	} {
		config := func(rules string) string {
			return `{"quantization_config":{"quant_method":"compressed-tensors","config_groups":{"g":{"targets":[` + targets + `]}}, "ignore": [` + rules + `]}}`
		}
		edited, _ := checkEdit(t, config(c.rules), c.quantize, all)
		if c.want != "" {
			require.Equal(t, config(c.want), edited)
		}
	}
	edited, _ := checkEdit(t, `{"quantization_config":{"config_groups":{"g":{"targets":["Linear"]}}, "ignore": [
  "re:.*layers\\.4\\.mlp\\.experts.*"
]}}`, expertsOf(all, 4), all)
	require.Contains(t, edited, `"ignore": []}}`)
}

// A multimodal config says it twice, and each place is edited on its own terms, whatever the line ends.
func TestEveryPlaceIsEdited(t *testing.T) {
	all := grid(4, 2)
	config := strings.ReplaceAll(`{
	"quantization_config": {
		"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"]}},
		"ignore": [
			"lm_head",
			"re:.*layers\\.[23]\\.mlp\\.experts",
			"Infinity"
		]
	},
	"rope": Infinity,
	"text_config": {"quantization_config": {"config_groups": {"g": {"targets": ["Linear"]}}, "ignore": ["re:.*layers\\.3\\..*\\.experts"]}}
}
`, "\n", "\r\n")
	edited, changes := checkEdit(t, config, expertsOf(all, 3), all)
	require.Len(t, changes, 2)
	require.Equal(t, Change{Line: 6, Before: []string{"\t\t\t\"re:.*layers\\\\.[23]\\\\.mlp\\\\.experts\","}, After: []string{"\t\t\t\"re:.*layers\\\\.2\\\\.mlp\\\\.experts\","}}, changes[0])
	require.Contains(t, edited, "\r\n\t\t\t\"re:.*layers\\\\.2\\\\.mlp\\\\.experts\",\r\n")
	require.Contains(t, changes[1].After[0], `"ignore": []`)
	require.Equal(t, 11, changes[1].Line)
}

func TestModelOptRulesAreGlobs(t *testing.T) {
	all := grid(8, 2)
	for _, config := range []string{
		`{"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["lm_head","*.self_attn*","model.layers.[67].mlp.experts*"]}}`,
		`{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","exclude_modules":["lm_head","*.self_attn*","model.layers.[67].mlp.experts*"]}}`,
	} {
		edited, _ := checkEdit(t, config, expertsOf(all, 6, 7), all)
		require.Contains(t, edited, `["lm_head","*.self_attn*"]`)
		edited, _ = checkEdit(t, config, expertsOf(all, 7), all)
		require.Contains(t, edited, `["lm_head","*.self_attn*","model.layers.6.mlp.experts*"]`)
		config = strings.Replace(config, "model.layers.[67].mlp.experts*", "model.layers.[56]*experts.*", 1)
		edited, _ = checkEdit(t, config, expertsOf(all, 5), all)
		require.Contains(t, edited, `"*.self_attn*","model.layers.6.mlp.experts.*.down_proj","model.layers.6.mlp.experts.*.gate_proj","model.layers.6.mlp.experts.*.up_proj"]`)
		config = strings.Replace(config, "model.layers.[56]*experts.*", "*.experts.[!9].up_proj", 1)
		edited, _ = checkEdit(t, config, expertsOf(all, 1, 2, 3, 4, 5), all)
		require.Contains(t, edited, `"*.self_attn*","model.layers.6.mlp.experts.*.up_proj","model.layers.7.mlp.experts.*.up_proj"]`)
	}
}

func TestUncoveredModulesAreRefused(t *testing.T) {
	_, _, err := NarrowIgnore([]byte(`{"quantization_config":{"config_groups":{"g":{"targets":["re:x"]}}}}`), []string{"model.layers.1.mlp.experts.0.up_proj"}, nil)
	require.Equal(t, fault.Refused, fault.KindOf(err))
	require.ErrorContains(t, err, "no target")
	same, changes, err := NarrowIgnore([]byte(`{}`), []string{"m"}, []string{"m"})
	require.NoError(t, err)
	require.Empty(t, changes)
	require.Equal(t, `{}`, string(same))
}

func TestWeightOnly(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(goldens.TinyLaguna(t), "nvfp4-0801", "config.json"))
	require.NoError(t, err)
	edited, changes, err := WeightOnly(config)
	require.NoError(t, err)
	replay(t, string(config), string(edited), changes)
	require.Len(t, changes, 1)
	require.Len(t, changes[0].Before, 14)
	require.Equal(t, []string{`        "input_activations": null,`}, changes[0].After)
	q, err := ParseQuantConfig(edited)
	require.NoError(t, err)
	require.True(t, q.Groups[0].NVFP4())
	require.False(t, q.Groups[0].InputScales())
	again, none, err := WeightOnly(edited)
	require.NoError(t, err)
	require.Empty(t, none)
	require.Equal(t, edited, again)

	edited, _, err = WeightOnly([]byte(`{"quantization_config":{"quant_method":"modelopt","quant_algo":"NVFP4","config_groups":{"group_0":{"input_activations":{"num_bits":4}}}}}`))
	require.NoError(t, err)
	require.Equal(t, `{"quantization_config":{"quant_method":"modelopt","quant_algo":"W4A16_NVFP4","config_groups":{"group_0":{"input_activations":null}}}}`, string(edited))

	_, _, err = WeightOnly([]byte(`{"quantization_config":{"config_groups":{"NVFP4":["Linear"]}}}`))
	require.ErrorContains(t, err, "preset")
}

// Rules and modules drawn at random: whatever the rules are, the edit keeps its promises.
func TestNarrowIgnoreProperties(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	all := grid(14, 3)
	pool := []string{
		`lm_head`, `re:.*self_attn`, `re:.*`, `re:.*\.mlp\..*`, `re:.*experts`, `re:.*\.experts\.`, `re:.*layers\.[1-9]\.mlp`, `re:.*layers\.1[0-3]?\.mlp\.experts`,
		`re:^model\.layers\.(1|12|13)\.mlp\.experts(\..*)?$`, `re:.*layers\.1`, `re:.*up_proj$`, `re:.*\.experts\.[02]\.`, `Linear`, `re:(?!.*gate).*experts.*`,
		`model.layers.3.mlp.experts.0.gate_proj`, `re:.*layers\.\d+\.mlp\.(experts|gate)`, `re:(?i)MODEL\.LAYERS\.5`, `re:.*layers\.0.*`, `re:.*layers\.[5-7].*experts`,
	}
	for range 100 {
		var rules []string
		for range 1 + rnd.IntN(5) {
			rules = append(rules, pool[rnd.IntN(len(pool))])
		}
		indent := []string{"", "\n  ", "\r\n\t", " "}[rnd.IntN(4)]
		config := `{"x": [1, "ignore"], "quantization_config": {"config_groups": {"g": {"targets": ["Linear"]}}, "ignore": [` + indent +
			strings.Join(quoted(rules), ","+indent) + "]}}"
		quantize := expertsOf(all, 1+rnd.IntN(13), 1+rnd.IntN(13))
		if rnd.IntN(4) == 0 {
			quantize = quantize[:1+rnd.IntN(len(quantize))]
		}
		checkEdit(t, config, quantize, all)
	}
}

func TestLayerExpression(t *testing.T) {
	for want, layers := range map[string][]int{
		"6": {6}, "[67]": {6, 7}, "4[0-5]": {40, 41, 42, 43, 44, 45}, "(?:9|10)": {9, 10}, "[13]0": {10, 30}, "(?:1|12|123)": {1, 12, 123}, "[12][0-2]": {10, 11, 12, 20, 21, 22},
	} {
		require.Equal(t, want, layerExpression(layers))
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		in := map[int]bool{}
		var layers []int
		for range 1 + rnd.IntN(30) {
			l := rnd.IntN(130)
			if !in[l] {
				in[l] = true
				layers = append(layers, l)
			}
		}
		set, err := newRuleSet([]string{"re:^" + layerExpression(layers) + "$"}, pythonRule)
		require.NoError(t, err)
		for l := range 150 {
			ok, err := set.any(fmt.Sprint(l), "")
			require.NoError(t, err)
			require.Equal(t, in[l], ok, "%v %d", set.texts, l)
		}
	}
}

func FuzzNarrowIgnore(f *testing.F) {
	f.Add([]byte(`{"quantization_config":{"config_groups":{"g":{"targets":["Linear"]}},"ignore":["re:.*layers\\.[67]\\..*", "a"]}}`))
	f.Add([]byte(`{"compression_config":{"quant_method":"modelopt","quant_algo":"NVFP4","ignore":["*experts*"]}}`))
	all := grid(8, 2)
	quantize := expertsOf(all, 7)
	f.Fuzz(func(t *testing.T, config []byte) {
		edited, changes, err := NarrowIgnore(config, quantize, all)
		if err != nil {
			return
		}
		if _, err := ParseQuantConfig(edited); err != nil {
			t.Fatalf("%q became %q: %v", config, edited, err)
		}
		if len(changes) == 0 && string(edited) != string(config) {
			t.Fatal("a change that is not told")
		}
		_, _, _ = WeightOnly(config)
	})
}
