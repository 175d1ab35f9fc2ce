package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/pipeline"
)

// cli/v2 stops looking for options at the first argument and lets the rest pass in silence, takes the last of two values, and answers an
// unknown command with exit code 3. arrange settles all of that before cli/v2 sees the words: options may stand anywhere, none is ignored.

// arrange returns the words with the command first, then its options, then "--" and its arguments.
func arrange(app *cli.App, words []string) ([]string, error) {
	if len(words) == 0 || isHelp(words[0]) || words[0] == "help" && len(words) == 1 {
		return []string{"--help"}, nil
	}
	if words[0] == "--version" {
		words[0] = "version"
	}
	if words[0] == "help" {
		if len(words) > 2 {
			return words, usage(fmt.Sprintf("help takes one command, %q is one too many", words[2]), "lagquant --help lists the commands")
		}
		words = []string{words[1], "--help"}
	}
	name := words[0]
	if strings.HasPrefix(name, "-") {
		return words, usage("option "+name+" stands before the command", "write the command first: lagquant COMMAND "+name)
	}
	c := app.Command(name)
	if c == nil {
		var names []string
		for _, c := range app.Commands {
			names = append(names, c.Name)
		}
		return words, usage(fmt.Sprintf("unknown command %q", name), suggest(name, names, "", "lagquant --help lists the commands"))
	}
	rest, err := arrangeOptions(c, words[1:])
	return append([]string{name}, rest...), err
}

func isHelp(word string) bool { return word == "--help" || word == "-h" || word == "-help" }

func arrangeOptions(c *cli.Command, words []string) ([]string, error) {
	var options, args []string
	seen := map[string]bool{}
	for i := 0; i < len(words); i++ {
		word := words[i]
		if word == "--" {
			args = append(args, words[i+1:]...)
			break
		}
		if isHelp(word) {
			return []string{"--help"}, nil
		}
		if !strings.HasPrefix(word, "-") || word == "-" {
			args = append(args, word)
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
		f, names := option(c, name)
		if f == nil {
			return words, usage(fmt.Sprintf("%s has no option --%s", c.Name, name), suggest(name, names, "--", "lagquant "+c.Name+" --help lists the options"))
		}
		first := f.Names()[0]
		if seen[first] {
			return words, usage(fmt.Sprintf("option --%s is given twice", first), "give it once, with the value that is meant")
		}
		seen[first] = true
		if _, isBool := f.(*cli.BoolFlag); isBool {
			on, err := strconv.ParseBool(value)
			switch {
			case hasValue && err != nil:
				return words, usage(fmt.Sprintf("option --%s is on or off, not %q", first, value), "write --"+first+", or leave it out")
			case !hasValue || on:
				options = append(options, "--"+first)
			}
			continue
		}
		if !hasValue {
			if i++; i == len(words) || strings.HasPrefix(words[i], "--") {
				return words, usage(fmt.Sprintf("option --%s needs a value", first), fmt.Sprintf("write --%s=VALUE; lagquant %s --help shows an example", first, c.Name))
			}
			value = words[i]
		}
		options = append(options, "--"+first+"="+value)
	}
	if most := maxArgs(c); len(args) > most {
		return words, usage(fmt.Sprintf("%s takes at most %d argument(s), %q is one too many", c.Name, most, args[most]), "lagquant "+c.Name+" --help shows how to call it")
	}
	return append(append(options, "--"), args...), nil
}

// option finds a command's option by any of its names, and returns all names for a hint.
func option(c *cli.Command, name string) (cli.Flag, []string) {
	var all []string
	for _, f := range c.Flags {
		if slices.Contains(f.Names(), name) {
			return f, nil
		}
		all = append(all, f.Names()...)
	}
	return nil, all
}

// maxArgs counts the words of a command's ArgsUsage: "[MODEL]" is one, "A B" two.
func maxArgs(c *cli.Command) int { return len(strings.Fields(c.ArgsUsage)) }

// choices are the words that options with a few values take.
var choices = map[string][]string{
	"profile":           append([]string{"auto"}, profileNames()...),
	"link":              {string(pipeline.LinkAuto), string(pipeline.LinkReflink), string(pipeline.LinkHard), string(pipeline.LinkCopy)},
	"backend":           {"auto", "cpu", "cuda"},
	"progress":          {"auto", "json", "none"},
	"activations":       {"auto", "w4a16", "w4a4"},
	"activation-scales": {"own", "layer"},
	"kv":                {"f32", "fp8"},
}

func wantsJSON(words []string) bool {
	for _, w := range words {
		if w == "--" {
			return false
		}
		if name, value, hasValue := strings.Cut(w, "="); name == "--json" || name == "-json" {
			on, _ := strconv.ParseBool(value)
			return on || !hasValue
		}
	}
	return false
}

func usage(problem, hint string) error {
	return &fault.Error{Kind: fault.Usage, Problem: problem, Hint: hint}
}

// suggest makes a hint of the nearest known word, if one is near.
func suggest(word string, known []string, prefix, otherwise string) string {
	best, least := "", len(word)/2+1
	for _, k := range known {
		if d := distance(word, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return otherwise
	}
	return "did you mean " + prefix + best + "?"
}

// distance is the number of characters to insert, delete or replace to get from a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
