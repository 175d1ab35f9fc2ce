package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/lagquant/lagquant/"

// rank orders the packages as data walks: a package may import only those of a lower rank.
var rank = map[string]int{
	"cmd/lagquant": 4, "pipeline": 3, "verify": 3, "engine": 3, "spec": 2, "cuda": 2, "quant": 1, "safetensors": 1,
	"internal/synthetic": 3, "internal/pyre": 0, "testdata": 0, "internal/fault": -1, "internal/digest": -1,
}

// owners says which packages may import what does not come with Go.
var owners = map[string][]string{
	"github.com/nlpodyssey/safetensors":  {"safetensors"},
	"github.com/urfave/cli/v2":           {"cmd/lagquant"},
	"github.com/schollz/progressbar/v3":  {"cmd/lagquant"},
	"golang.org/x/term":                  {"cmd/lagquant"},
	"github.com/klauspost/compress/zstd": {"testdata"},
	"github.com/dlclark/regexp2/v2":      {"internal/pyre"},
	"github.com/ardanlabs/jinja":         {"engine"},
	"golang.org/x/text/unicode/norm":     {"engine"},
	"github.com/ebitengine/purego":       {"cuda"},
	"golang.org/x/sync/errgroup":         {"pipeline", "verify", "safetensors", "engine", "spec"}, // no other package does it better
	"github.com/zeebo/xxh3":              {"internal/digest"},
	"golang.org/x/sync/semaphore":        {"pipeline"},
	"golang.org/x/sys/unix":              {"pipeline"},
	"golang.org/x/sys/windows":           {"pipeline", "cuda"},
	"golang.org/x/sys/cpu":               {"quant"},
}

// Imports run one way, and each dependency is owned by one package.
func TestImports(t *testing.T) {
	list, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	require.NoError(t, err)
	seen := 0
	for d := json.NewDecoder(strings.NewReader(string(list))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		seen++
		from := strings.TrimPrefix(p.ImportPath, module)
		require.Contains(t, rank, from, "a new package: give it its place")
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module)
			switch {
			case ours:
				require.Less(t, rank[to], rank[from], "%s imports %s", from, to)
			case strings.Contains(strings.Split(imported, "/")[0], "."):
				require.True(t, slices.Contains(owners[imported], from), "%s imports %s", from, imported)
			}
		}
	}
	require.GreaterOrEqual(t, seen, 6)
}
