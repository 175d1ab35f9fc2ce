package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

func completionCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script for bash, zsh or fish",
		ArgsUsage: "SHELL",
		Description: describe("Prints a script that completes commands and options.",
			[]string{
				"source <(lagquant completion bash)",
				"source <(lagquant completion zsh)",
				"lagquant completion fish > ~/.config/fish/completions/lagquant.fish",
			}, "0 done, 2 wrong use"),
		CustomHelpTemplate: commandHelp,
		Flags:              []cli.Flag{jsonFlag()},
		Action: func(c *cli.Context) error {
			shell := c.Args().First()
			write := map[string]func([]*cli.Command) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[shell]
			if write == nil {
				return usage(fmt.Sprintf("no completion for shell %q", shell), "shells are bash, zsh and fish")
			}
			script := write(c.App.VisibleCommands())
			t.printf("%s", script)
			return t.document(struct {
				Schema string `json:"schema"`
				Shell  string `json:"shell"`
				Script string `json:"script"`
			}{"lagquant-completion/1", shell, script})
		},
	}
}

func commandNames(commands []*cli.Command) string {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}

func optionNames(c *cli.Command) string {
	var names []string
	for _, f := range c.VisibleFlags() {
		names = append(names, "--"+f.Names()[0])
	}
	return strings.Join(names, " ")
}

// bashCompletion completes commands, then options after a dash, the words of an option that has few, and files elsewhere.
func bashCompletion(commands []*cli.Command) string {
	var b strings.Builder
	b.WriteString(`_lagquant() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=
  case $before in
`)
	b.WriteString("    completion) words=\"bash zsh fish\" ;;\n")
	for _, option := range slices.Sorted(maps.Keys(choices)) {
		fmt.Fprintf(&b, "    --%s) words=\"%s\" ;;\n", option, strings.Join(choices[option], " "))
	}
	b.WriteString("  esac\n  case $COMP_CWORD,$word,${COMP_WORDS[1]} in\n")
	fmt.Fprintf(&b, "    1,*) words=\"%s\" ;;\n", commandNames(commands))
	for _, c := range commands {
		fmt.Fprintf(&b, "    *,-*,%s) words=\"%s\" ;;\n", c.Name, optionNames(c))
	}
	b.WriteString(`  esac
  local IFS=$'\n'
  if [ -n "$words" ]; then
    COMPREPLY=($(IFS=' '; compgen -W "$words" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -o filenames -F _lagquant lagquant
`)
	return b.String()
}

// zshCompletion lets zsh run the bash script, which bashcompinit makes possible.
func zshCompletion(commands []*cli.Command) string {
	return "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" + bashCompletion(commands)
}

func fishCompletion(commands []*cli.Command) string {
	var b strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&b, "complete -c lagquant -n __fish_use_subcommand -f -a %s -d %s\n", c.Name, quoteFish(c.Usage))
		for _, f := range c.VisibleFlags() {
			usage := ""
			if d, ok := f.(cli.DocGenerationFlag); ok {
				usage = d.GetUsage()
			}
			fmt.Fprintf(&b, "complete -c lagquant -n '__fish_seen_subcommand_from %s' -l %s -d %s\n", c.Name, f.Names()[0], quoteFish(usage))
		}
	}
	return b.String()
}

func quoteFish(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
