package main

import (
	"fmt"
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
		Action: func(c *cli.Context) error {
			write := map[string]func([]*cli.Command) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Args().First()]
			if write == nil {
				return usage(fmt.Sprintf("no completion for shell %q", c.Args().First()), "shells are bash, zsh and fish")
			}
			t.printf("%s", write(c.App.VisibleCommands()))
			return nil
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

// bashCompletion completes commands, then options after a dash and files elsewhere.
func bashCompletion(commands []*cli.Command) string {
	var b strings.Builder
	b.WriteString(`_lagquant() {
  local word=${COMP_WORDS[COMP_CWORD]} options=
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "` + commandNames(commands) + `" -- "$word")); return
  fi
  case ${COMP_WORDS[1]} in
`)
	for _, c := range commands {
		fmt.Fprintf(&b, "    %s) options=\"%s\" ;;\n", c.Name, optionNames(c))
	}
	b.WriteString(`  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
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
