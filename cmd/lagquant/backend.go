package main

import (
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/cuda"
	"github.com/lagquant/lagquant/quant"
)

func backendFlag() cli.Flag {
	return &cli.StringFlag{Name: "backend", Value: "auto", Usage: "what quantizes: auto (a GPU where there is one), cpu, cuda; the bytes are the same"}
}

func checkBackend(name string) error {
	if !slices.Contains(choices["backend"], name) {
		return usage(fmt.Sprintf("--backend %s is not known", name), "use auto, cpu or cuda")
	}
	return nil
}

// openBackend opens what --backend names, and says in words what it came to.
func openBackend(t *terminal, name string, memory int64) (b quant.Backend, what string, err error) {
	if name == "cpu" {
		return quant.CPU(), "cpu", nil
	}
	e, err := cuda.Open(cuda.Options{DeviceMemory: memory, HostMemory: memory, Notice: func(err error) { t.note("warning: %v", err) }})
	switch {
	case err == nil:
		return e, "cuda, " + e.Devices()[0].Name, nil
	case name == "cuda":
		return nil, "", err
	}
	return quant.CPU(), "cpu, for " + err.Error(), nil
}
