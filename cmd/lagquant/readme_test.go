package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/testdata"
)

// measuredHere are figures that another run has otherwise.
var measuredHere = regexp.MustCompile(`[0-9.]+ (s,|GB/s|MB/s|tokens/s)|peak memory [0-9.]+ .B|quantized by: .*`)

// What README.md shows of a command on the demo checkpoints is what the command prints, in the order of the README. A line "..." stands for
// any lines, "..." at the end of a line for any rest of it.
func TestReadmeShowsRealOutput(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	require.NoError(t, testdata.UnpackTinyLaguna("demo"))
	shown := 0
	for _, block := range strings.Split(string(readme), "\n    $ lagquant ")[1:] {
		lines := strings.Split(block, "\n")
		words := strings.Fields(lines[0])
		if _, err := os.Stat(filepath.Clean(words[1])); err != nil || strings.Contains(lines[0], "prompts.txt") {
			continue // of a checkpoint or a file that the text describes
		}
		var expected []string
		for _, line := range lines[1:] {
			if line != "" && !strings.HasPrefix(line, "    ") {
				break
			}
			expected = append(expected, strings.TrimPrefix(line, "    "))
		}
		var out bytes.Buffer
		run(context.Background(), words, &terminal{stdout: &out, stderr: &out, quiet: true})
		requireShown(t, lines[0], strings.TrimSpace(strings.Join(expected, "\n")), strings.TrimSpace(out.String()))
		shown++
	}
	require.GreaterOrEqual(t, shown, 8)
}

func requireShown(t *testing.T, command, expected, printed string) {
	t.Helper()
	pattern := regexp.QuoteMeta(measuredHere.ReplaceAllString(expected, "#"))
	pattern = regexp.MustCompile(`(?m)^ *\\\.\\\.\\\.$`).ReplaceAllString(pattern, `(?s:.*)`)
	pattern = strings.ReplaceAll(pattern, `\.\.\.`, `.*`)
	require.Regexp(t, "^"+pattern+"$", measuredHere.ReplaceAllString(printed, "#"), command)
}
