package main

import (
	"context"
	"encoding/json"
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
	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/internal/synthetic"
	"github.com/lagquant/lagquant/quant"
)

var benchParts = []string{"kernels", "requantize", "decode"}

func benchCommand(t *terminal) *cli.Command {
	return &cli.Command{
		Name:  "bench",
		Usage: "this machine's kernel rates against its memory rate, and whole jobs against a copy",
		Description: describe(`Measures every kernel on one core and on all, in the cache and from memory, beside the machine's own read rate in the same run; then
requantize on a generated 1.38 GB checkpoint beside a plain copy of the same bytes; then decoding in the embedded engine. Ratios within one run
can be compared between machines and days, single figures cannot. With --backend cuda the GPU's kernels come instead of the CPU's, and the job
runs on it; decoding is the CPU's alone.`,
			[]string{"lagquant bench", "lagquant bench --quick", "lagquant bench --only kernels --json", "lagquant bench --backend cuda --only kernels"},
			"0 done, 2 wrong use, 4 writing failed, 5 no GPU for --backend cuda, 130 interrupted"),
		CustomHelpTemplate: commandHelp,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "only", Usage: "parts to run, of " + strings.Join(benchParts, ",")},
			&cli.StringFlag{Name: "backend", Value: "cpu", Usage: "cpu or cuda"},
			&cli.StringFlag{Name: "dir", Usage: "where generated checkpoints go, 4 GB for a while (default: the system's folder for temporary files)"},
			&cli.StringFlag{Name: "rounds", Usage: "of whole jobs, whose median counts (default: 5, with --quick 1)"},
			&cli.BoolFlag{Name: "keep", Usage: "leave the checkpoint of the requantize part there, to measure other programs on it"},
			&cli.BoolFlag{Name: "quick", Usage: "seconds instead of minutes, on small sizes that caches may hold: does it run, and which is far off"},
			jsonFlag(),
		},
		Action: func(c *cli.Context) error { return runBench(c, t) },
	}
}

// benchReport is what one run measured.
type benchReport struct {
	Schema     string        `json:"schema"`
	Platform   string        `json:"platform"`
	CPU        string        `json:"cpu"`
	Cores      int           `json:"cores"`
	Path       string        `json:"kernel_path"`
	Quick      bool          `json:"quick,omitempty"` // small sizes: see --quick
	Kernels    []kernelRates `json:"kernels,omitempty"`
	GPU        []gpuRate     `json:"gpu,omitempty"`
	Requantize *jobRates     `json:"requantize,omitempty"`
	Decode     *decodeRates  `json:"decode,omitempty"`
	sizes      benchSizes
}

// gpuRate are bytes a second of one of the GPU's kernels or ways.
type gpuRate struct {
	Name    string  `json:"name"`
	Rate    float64 `json:"bytes_per_second"`
	Least   float64 `json:"least"`
	Most    float64 `json:"most"`
	Counted string  `json:"counted"`
	Of      string  `json:"of,omitempty"` // what the ratio is formed with
	Ratio   float64 `json:"ratio,omitempty"`
}

// decodeRates are decoding beside the machine's own read rate on all cores.
type decodeRates struct {
	*engine.BenchResult
	OfRead float64 `json:"of_read"`
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

// benchSizes say how much is measured, and for how long.
type benchSizes struct {
	memory        int           // of the kernels on one core: far beyond all caches
	share         int           // of each core's at least, when all run
	each          time.Duration // all kernels together, on one core or all
	gpu           int64         // of the GPU's kernels
	job           synthetic.Shape
	rounds        int    // of jobs
	model         []byte // config of the model that decodes
	prompt, steps int    // tokens of it
}

// allMemory is the memory of the kernels when so many cores run.
func (s *benchSizes) allMemory(cores int) int { return max(s.memory, s.share*cores) }

// cacheSize of the kernels lies in the second-level cache of a core.
const cacheSize = 192 << 10

func benchSizesOf(quick bool) (benchSizes, error) {
	if !quick {
		return benchSizes{
			memory: 384 << 20, share: 24 << 20, each: 4 * time.Second, gpu: 2 << 30, job: synthetic.Bench, rounds: 5, model: engine.BenchConfig(1_350_000_000), prompt: 512, steps: 48,
		}, nil
	}
	config, err := smallConfig()
	return benchSizes{
		memory: 16 << 20, share: 8 << 20, each: 20 * time.Millisecond, gpu: 64 << 20, rounds: 1, model: config, prompt: 64, steps: 8,
		job: synthetic.Shape{Layers: 2, Experts: 8, Hidden: 256, Intermediate: 256, Heads: 8, Vocab: 512, ShardBytes: 4 << 20},
	}, err
}

// smallConfig is the config of the model that decodes, with every width cut down.
func smallConfig() ([]byte, error) {
	var config map[string]any
	if err := json.Unmarshal(engine.BenchConfig(0), &config); err != nil {
		return nil, err
	}
	for name, value := range map[string]any{
		"vocab_size": 2048, "hidden_size": 384, "intermediate_size": 768, "moe_intermediate_size": 192, "shared_expert_intermediate_size": 192,
		"num_attention_heads": 6, "num_attention_heads_per_layer": []int{6, 12, 12, 12}, "num_key_value_heads": 2,
	} {
		config[name] = value
	}
	return json.Marshal(config)
}

// benchOptions are the words of the command line.
type benchOptions struct {
	parts   []string
	backend string
	sizes   benchSizes
}

func newBench(c *cli.Context) (o benchOptions, err error) {
	o = benchOptions{parts: benchParts, backend: c.String("backend")}
	switch o.backend {
	case "cpu":
	case "cuda":
		o.parts = []string{"kernels", "requantize"}
	default:
		return o, usage(fmt.Sprintf("--backend %s is not known", o.backend), "use cpu or cuda")
	}
	if c.IsSet("only") {
		o.parts = strings.Split(c.String("only"), ",")
	}
	for i, p := range o.parts {
		switch {
		case !slices.Contains(benchParts, p):
			return o, usage(fmt.Sprintf("--only: no part is called %q", p), suggest(p, benchParts, "", "parts are "+strings.Join(benchParts, ", ")))
		case slices.Contains(o.parts[:i], p):
			return o, usage(fmt.Sprintf("--only names %s twice", p), "name each part once")
		case p == "decode" && o.backend == "cuda":
			return o, usage("--only decode does not go with --backend cuda: the engine decodes on the CPU", "leave --backend out")
		}
	}
	if c.Bool("keep") && !slices.Contains(o.parts, "requantize") {
		return o, usage("--keep goes with the requantize part", "name it in --only")
	}
	if o.sizes, err = benchSizesOf(c.Bool("quick")); err == nil && c.IsSet("rounds") {
		o.sizes.rounds, err = parseCount("rounds", c.String("rounds"))
	}
	return o, err
}

func runBench(c *cli.Context, t *terminal) (err error) {
	o, err := newBench(c)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(c.String("dir"), "lagquant-bench-")
	if err != nil {
		return &fault.Error{Kind: fault.IO, File: c.String("dir"), Problem: fault.Cause(err).Error(), Err: err, Hint: "--dir takes a folder that is there and can be written"}
	}
	r := &benchReport{
		Schema: "lagquant-bench/1", Platform: runtime.GOOS + "/" + runtime.GOARCH, CPU: cpuName(), Cores: runtime.GOMAXPROCS(0), Path: quant.Path(),
		Quick: c.Bool("quick"), sizes: o.sizes,
	}
	source := filepath.Join(dir, "source")
	defer func() {
		if err == nil && c.Bool("keep") {
			t.printf("\nkept: %s\n", source)
		} else {
			os.RemoveAll(dir)
		}
	}()
	t.printf("%s, %d cores, %s; kernels: %s\n", r.CPU, r.Cores, r.Platform, r.Path)
	if r.Quick {
		t.printf("quick: small sizes that caches may hold, rough figures\n")
	}
	for _, part := range o.parts {
		switch {
		case part == "kernels" && o.backend == "cuda":
			err = r.benchGPU(t)
		case part == "kernels":
			err = r.benchKernels(c.Context, t)
		case part == "requantize":
			err = r.benchRequantize(c.Context, t, source, o.backend)
		case part == "decode":
			err = r.benchDecode(c, t, filepath.Join(dir, "decode"))
		}
		if err == nil {
			err = c.Context.Err()
		}
		if err != nil {
			return err
		}
	}
	return t.document(r)
}

func (r *benchReport) benchKernels(ctx context.Context, t *terminal) error {
	var rates [3][]quant.Rate
	for i, of := range []struct{ size, workers int }{{cacheSize, 1}, {r.sizes.memory, 1}, {r.sizes.allMemory(r.Cores), r.Cores}} {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rates[i] = quant.MeasureKernels(of.size, of.workers, r.sizes.each)
	}
	cache, memory, all := rates[0], rates[1], rates[2]
	t.printf("\n%-24s %9s %9s %8s %9s %8s\n", "GB/s", "cache", "memory", "of read", "all cores", "of read")
	for i, m := range memory {
		k := kernelRates{Kernel: m.Kernel, Cache: cache[i].BytesPerSecond, Memory: m.BytesPerSecond, AllMemory: all[i].BytesPerSecond}
		k.OfRead, k.AllOfRead = k.Memory/memory[0].BytesPerSecond, k.AllMemory/all[0].BytesPerSecond
		r.Kernels = append(r.Kernels, k)
		t.printf("%-24s %9.1f %9.1f %7.0f%% %9.1f %7.0f%%\n", k.Kernel, k.Cache/1e9, k.Memory/1e9, 100*k.OfRead, k.AllMemory/1e9, 100*k.AllOfRead)
	}
	return nil
}

func (r *benchReport) benchGPU(t *terminal) error {
	figures, err := cuda.Bench(cuda.Options{}, r.sizes.gpu)
	if err != nil {
		return err
	}
	t.printf("\n%-34s %9s  %s\n", "GPU", "GB/s", "counted")
	for _, f := range figures {
		r.GPU = append(r.GPU, gpuRate{f.Name, f.GBps * 1e9, f.Least * 1e9, f.Most * 1e9, f.Bytes, f.Of, f.Ratio})
		of := ""
		if f.Of != "" {
			of = fmt.Sprintf(", %.3f of %s", f.Ratio, f.Of)
		}
		t.printf("%-34s %9.1f  %s%s\n", f.Name, f.GBps, f.Bytes, of)
	}
	return nil
}

func (r *benchReport) benchDecode(c *cli.Context, t *terminal, dir string) error {
	defer os.RemoveAll(dir)
	if err := synthetic.WriteConfig(dir, r.sizes.model, 1<<30); err != nil {
		return err
	}
	result, err := engine.Bench(c.Context, dir, r.sizes.prompt, r.sizes.steps, memoryReader(r.sizes.allMemory(r.Cores)), engine.Options{})
	if err != nil {
		return err
	}
	r.Decode = &decodeRates{result, result.BytesPerSec / result.Read}
	t.printf("\ndecode of %s: %.1f tokens/s, %s of weights a token, %s/s = %.0f %% of the read rate; prompt of %d tokens %.1f times as fast a token\n",
		size(result.ModelBytes), result.DecodeRate, size(result.BytesPerToken), size(int64(result.BytesPerSec)),
		100*r.Decode.OfRead, result.PromptTokens, result.PromptSpeedup)
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
