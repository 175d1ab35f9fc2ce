package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/lagquant/lagquant/cuda"
	"github.com/lagquant/lagquant/engine"
	"github.com/lagquant/lagquant/quant"
)

var benchParts = []string{"kernels", "requantize", "decode"}

func benchCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "this machine's kernel rates against its memory rate, and whole jobs against a copy",
		Description: describe(`Measures every kernel on one core and on all, in the cache and from memory, beside the machine's own read rate in the same run; then
requantize on a generated 1.35 GB checkpoint beside a plain copy of the same bytes; then decoding in the embedded engine. Ratios within one run
can be compared between machines and days, single figures cannot. With --backend cuda the GPU's kernels come instead of the CPU's.`,
			[]string{"lagquant bench", "lagquant bench --only kernels --json", "lagquant bench --backend cuda --only kernels"},
			"0 done, 2 wrong use, 4 writing failed, 5 no GPU for --backend cuda"),
		CustomHelpTemplate: commandHelp,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "only", Usage: "parts to run, of " + strings.Join(benchParts, ",")},
			&cli.StringFlag{Name: "backend", Value: "cpu", Usage: "cpu or cuda"},
			&cli.StringFlag{Name: "dir", Usage: "where generated checkpoints go, 4 GB for a while (default: the system's folder for temporary files)"},
			&cli.StringFlag{Name: "rounds", Value: "5", Usage: "of whole jobs, whose median counts"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error { return runBench(c, t) },
	}
}

// benchReport is what one run measured.
type benchReport struct {
	Schema     string              `json:"schema"`
	Platform   string              `json:"platform"`
	CPU        string              `json:"cpu"`
	Cores      int                 `json:"cores"`
	Path       string              `json:"kernel_path"`
	Kernels    []kernelRates       `json:"kernels,omitempty"`
	GPU        []cuda.Figure       `json:"gpu,omitempty"`
	Requantize *jobRates           `json:"requantize,omitempty"`
	Decode     *engine.BenchResult `json:"decode,omitempty"`
}

// kernelRates are bytes a second of one kernel.
type kernelRates struct {
	Kernel    string  `json:"kernel"`
	Cache     float64 `json:"one_core_cache"`
	Memory    float64 `json:"one_core_memory"`
	AllMemory float64 `json:"all_cores_memory"`
	OfRead    float64 `json:"one_core_of_read"`  // from memory, over the read rate of the same run
	AllOfRead float64 `json:"all_cores_of_read"` // the same of all cores
}

func runBench(c *cli.Context, t *terminal) error {
	parts := benchParts
	if c.IsSet("only") {
		parts = strings.Split(c.String("only"), ",")
		for _, p := range parts {
			if !slices.Contains(benchParts, p) {
				return usage(fmt.Sprintf("--only %s: no part is called %q", c.String("only"), p), suggest(p, benchParts, "", "parts are "+strings.Join(benchParts, ", ")))
			}
		}
	}
	rounds, err := parseCount("rounds", c.String("rounds"))
	if err != nil {
		return err
	}
	backend := c.String("backend")
	if backend != "cpu" && backend != "cuda" {
		return usage(fmt.Sprintf("--backend %s is not known", backend), "use cpu or cuda")
	}
	dir, err := os.MkdirTemp(c.String("dir"), "lagquant-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &benchReport{
		Schema: "lagquant-bench/1", Platform: runtime.GOOS + "/" + runtime.GOARCH, CPU: cpuName(), Cores: runtime.GOMAXPROCS(0), Path: quant.Path(),
	}
	t.printf("%s, %d cores, %s; kernels: %s\n", r.CPU, r.Cores, r.Platform, r.Path)
	for _, part := range parts {
		switch {
		case part == "kernels" && backend == "cuda":
			err = r.benchGPU(t)
		case part == "kernels":
			r.benchKernels(t)
		case part == "requantize":
			err = r.benchRequantize(c.Context, t, filepath.Join(dir, "requantize"), backend, rounds)
		case part == "decode":
			err = r.benchDecode(c, t, filepath.Join(dir, "decode"))
		}
		if err != nil {
			return err
		}
	}
	return t.document(r)
}

// Sizes of the kernels' memory: in the second-level cache of a core, and far beyond all caches.
const (
	cacheSize  = 192 << 10
	memorySize = 384 << 20
)

func (r *benchReport) benchKernels(t *terminal) {
	const d = 4 * time.Second
	cache, memory := quant.MeasureKernels(cacheSize, 1, d), quant.MeasureKernels(memorySize, 1, d)
	all := quant.MeasureKernels(memorySize, r.Cores, d)
	t.printf("\n%-24s %9s %9s %8s %9s %8s\n", "GB/s", "cache", "memory", "of read", "all cores", "of read")
	for i, m := range memory {
		k := kernelRates{Kernel: m.Kernel, Cache: cache[i].BytesPerSecond, Memory: m.BytesPerSecond, AllMemory: all[i].BytesPerSecond}
		k.OfRead, k.AllOfRead = k.Memory/memory[0].BytesPerSecond, k.AllMemory/all[0].BytesPerSecond
		r.Kernels = append(r.Kernels, k)
		t.printf("%-24s %9.1f %9.1f %7.0f%% %9.1f %7.0f%%\n", k.Kernel, k.Cache/1e9, k.Memory/1e9, 100*k.OfRead, k.AllMemory/1e9, 100*k.AllOfRead)
	}
}

func (r *benchReport) benchGPU(t *terminal) error {
	figures, err := cuda.Bench(cuda.Options{}, 2<<30)
	if err != nil {
		return err
	}
	r.GPU = figures
	t.printf("\n%-34s %9s  %s\n", "GPU", "GB/s", "counted")
	for _, f := range figures {
		of := ""
		if f.Of != "" {
			of = fmt.Sprintf(", %.3f of %s", f.Ratio, f.Of)
		}
		t.printf("%-34s %9.1f  %s%s\n", f.Name, f.GBps, f.Bytes, of)
	}
	return nil
}

func (r *benchReport) benchDecode(c *cli.Context, t *terminal, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := engine.WriteRandom(dir, engine.BenchConfig(1_350_000_000)); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	read := quant.MeasureKernels(memorySize, r.Cores, time.Second)[0]
	result, err := engine.Bench(c.Context, dir, 512, 48, engine.Options{})
	if err != nil {
		return err
	}
	r.Decode = result
	t.printf("\ndecode of %s: %.1f tokens/s, %s of weights a token, %s/s = %.0f %% of the read rate; prompt of %d tokens %.1f times as fast a token\n",
		size(result.ModelBytes), result.DecodeRate, size(result.BytesPerToken), size(int64(result.BytesPerSec)),
		100*result.BytesPerSec/read.BytesPerSecond, result.PromptTokens, result.PromptSpeedup)
	return nil
}

// cpuName is the processor's own name, where the system tells it.
func cpuName() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.SplitSeq(string(b), "\n") {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return "unknown processor"
}
