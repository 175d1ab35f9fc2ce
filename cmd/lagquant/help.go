package main

import "strings"

const appHelp = `{{.Name}}: {{.Usage}}

{{.Description}}

usage: {{.UsageText}}

commands:
{{range .VisibleCommands}}  {{printf "%-14s" .Name}} {{.Usage}}
{{end}}
lagquant COMMAND --help tells more. A checkpoint is named by
  path/to/dir        a folder with config.json and safetensors files
  org/name@rev       a snapshot in the Hugging Face cache: commit, prefix of one (7 or more), branch or tag
  rev                the same repository as another checkpoint of the command, at that revision

exit codes: 0 done, 1 differences or findings, 2 wrong use, 3 checkpoint refused, 4 reading or writing failed, 5 device missing, 130 interrupted
`

const commandHelp = `lagquant {{.Name}}: {{.Usage}}

usage: lagquant {{.Name}} [options] {{.ArgsUsage}}

{{.Description}}
{{if .VisibleFlags}}
options:
{{range .VisibleFlags}}  {{.}}
{{end}}{{end}}`

// describe joins a command's description, its examples and its exit codes: the parts of every help text.
func describe(text string, examples []string, exits string) string {
	var b strings.Builder
	b.WriteString(strings.TrimSpace(text))
	if len(examples) > 0 {
		b.WriteString("\n\nexamples:")
		for _, e := range examples {
			b.WriteString("\n  " + e)
		}
	}
	b.WriteString("\n\nexit codes: " + exits)
	return b.String()
}
