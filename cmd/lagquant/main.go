// Command lagquant converts and requantizes checkpoints offline: see README.md.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"
)

func main() { os.Exit(process()) }

// process runs the command line of the process until it ends or a signal stops it.
func process() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)   // a second signal ends the process at once
	signal.Ignore(syscall.SIGPIPE) // a closed pipe is an error like any other: see output
	return run(ctx, os.Args[1:], newTerminal(os.Stdout, os.Stderr))
}

// run does what the words of a command line ask for and returns the exit code.
func run(ctx context.Context, words []string, t *terminal) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &output{w: t.stdout, cancel: cancel}
	t.stdout = out
	app := newApp(t)
	words, err := arrange(app, words)
	t.json = wantsJSON(words)
	if err == nil {
		err = app.RunContext(ctx, append([]string{app.Name}, words...))
	}
	if out.err != nil {
		err = out.fault()
	}
	return t.end(err)
}

func newApp(t *terminal) *cli.App {
	return &cli.App{
		Name:            "lagquant",
		Usage:           "requantize chosen layers of a checkpoint to NVFP4, and prove the bytes",
		UsageText:       "lagquant COMMAND [options] [arguments]",
		Description:     description,
		HideVersion:     true,
		HideHelpCommand: true,
		Writer:          t.stdout,
		ErrWriter:       io.Discard, // errors are printed once, by terminal
		ExitErrHandler:  func(*cli.Context, error) {},
		Commands: []*cli.Command{
			requantizeCommand(t), planCommand(t), verifyCommand(t), smokeGenerateCommand(t), inspectCommand(t), demoCommand(t), benchCommand(t), versionCommand(t), completionCommand(t),
		},
		CustomAppHelpTemplate: appHelp,
	}
}

const description = `Turns the BF16 experts of chosen layers into NVFP4 exactly as the vendor's exporter would, changes nothing else, and proves it.
Works on files alone: no Python, no GPU, bounded memory; an interrupted job goes on where it stopped.`
