package main

import (
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// version is the release that this source becomes; CHANGELOG.md says what is in it.
const version = "0.1.0"

// tool is how manifests name the program. It leaves the build out: the same version writes the same bytes.
const tool = "lagquant " + version

func versionCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:               "version",
		Usage:              "print version, Go version and platform",
		CustomHelpTemplate: commandHelp,
		Description:        describe("Prints what this binary is.", []string{"lagquant version --json"}, "0"),
		Flags:              []cli.Flag{jsonFlag()},
		Action: func(*cli.Context) error {
			v := struct {
				Schema   string `json:"schema"`
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{"lagquant-version/1", version, revision(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			t.printf("lagquant %s (%s, %s)\n", v.Version, v.Go, v.Platform)
			return t.document(v)
		},
	}
}

// revision is the commit that the binary was built from, where the build recorded one.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print one JSON document instead of text"}
}
