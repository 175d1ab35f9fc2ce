package spec

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/internal/fault"
)

// ruleGolden is what testdata/gen/spec_rules.py was told by compressed-tensors' own matcher and by Python's fnmatch.
type ruleGolden struct {
	Modules [][2]string
	Cases   []struct {
		Targets, Ignore []string
		First, Ignored  []int
	}
	Globs [][2]json.RawMessage
}

func readRuleGolden(t *testing.T) (golden ruleGolden) {
	raw, err := os.ReadFile("testdata/rules.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	require.NotEmpty(t, golden.Cases)
	require.NotEmpty(t, golden.Globs)
	return golden
}

func TestGlobsMatchAsFnmatchDoes(t *testing.T) {
	golden := readRuleGolden(t)
	for _, g := range golden.Globs {
		var glob string
		var matches []int
		require.NoError(t, json.Unmarshal(g[0], &glob))
		require.NoError(t, json.Unmarshal(g[1], &matches))
		set, err := newRuleSet([]string{glob}, globRule)
		require.NoError(t, err, glob)
		for i, m := range golden.Modules {
			ok, err := set.any(m[0], Linear)
			require.NoError(t, err)
			require.Equal(t, matches[i] == 1, ok, "%q on %s", glob, m[0])
		}
	}
}

func TestRulesMatchAsTheLibraryDoes(t *testing.T) {
	golden := readRuleGolden(t)
	for _, c := range golden.Cases {
		q := &QuantConfig{Method: CompressedTensors, Ignore: c.Ignore}
		for i, target := range c.Targets { // a group each, so that the group tells which target decided
			q.Groups = append(q.Groups, &Group{Name: fmt.Sprint(i), Targets: []string{target}})
		}
		require.NoError(t, q.compile(pythonRule))
		for i, m := range golden.Modules {
			name, class := m[0], m[1]
			says := func(what string) string {
				return fmt.Sprintf("%s of %s (%s): targets %q ignore %q", what, name, class, c.Targets, c.Ignore)
			}
			g, err := q.Targeted(name, class)
			require.NoError(t, err)
			first := -1
			if g != nil {
				_, _ = fmt.Sscan(g.Name, &first)
			}
			require.Equal(t, c.First[i], first, says("target"))
			by, err := q.IgnoredBy(name, class)
			require.NoError(t, err)
			require.Equal(t, c.Ignored[i] == 1, len(by) > 0, says("ignore"))
			g, err = q.Group(name, class)
			require.NoError(t, err)
			require.Equal(t, c.First[i] >= 0 && c.Ignored[i] == 0, g != nil, says("group"))
		}
	}
}

func TestBadRuleIsRefusedByName(t *testing.T) {
	for _, key := range []string{"targets", "ignore"} {
		config := map[string]string{"targets": `["re:a("]}}`, "ignore": `[]}}, "ignore": ["ok", "re:a("]`}[key]
		_, err := ParseQuantConfig([]byte(`{"quantization_config": {"config_groups": {"g": {"targets": ` + config + `}}`))
		require.Equal(t, fault.Refused, fault.KindOf(err))
		require.ErrorContains(t, err, `rule "re:a("`)
	}
}

// manyRules are 200 rules as configs have them, and the 108,288 modules of a model like Laguna-S-2.1, thrice.
func manyRules(t testing.TB) (*QuantConfig, []string) {
	q := &QuantConfig{Method: CompressedTensors, Groups: []*Group{{Targets: []string{`re:.*experts\.[0-9]+\.(gate_proj|up_proj|down_proj)$`}}}}
	for i := range 40 {
		q.Ignore = append(q.Ignore, fmt.Sprintf(`re:^model\.layers\.%d\.self_attn\..*`, i), fmt.Sprintf(`re:.*layers\.%d\.mlp\.shared_expert\.`, i),
			fmt.Sprintf(`model.layers.%d.mlp.gate_proj`, i), fmt.Sprintf(`re:visual\.blocks\.%d\.(?!mlp)`, i), fmt.Sprintf(`re:.*\.vision_%d\.[a-z]+_proj$`, i))
	}
	require.Len(t, q.Ignore, 200)
	require.NoError(t, q.compile(pythonRule))
	var modules []string
	for _, prefix := range []string{"", "language_model.", "x."} {
		for _, m := range grid(48, 256) {
			modules = append(modules, prefix+m)
		}
	}
	require.Greater(t, len(modules), 100_000)
	return q, modules
}

// The library once took 263 seconds for 92,000 names (compressed-tensors issue 872). Measured on one core of a Xeon: 0.40 s.
func BenchmarkManyRules(b *testing.B) {
	q, modules := manyRules(b)
	for b.Loop() {
		for _, m := range modules {
			if _, err := q.Group(m, Linear); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// What keeps that fast is that expressions are hardly ever run.
func TestFewExpressionsAreRun(t *testing.T) {
	q, modules := manyRules(t)
	for _, p := range q.ignore.patterns {
		require.False(t, p.MayMatch("model.layers.47.mlp.experts.255.up_proj"), q.Ignore[p.index])
	}
	run := 0
	for _, m := range modules[:len(modules)/3] {
		for _, p := range q.ignore.patterns {
			if p.MayMatch(m) {
				run++
			}
		}
	}
	require.Less(t, run, len(modules)/100) // of 160 expressions a name
}
