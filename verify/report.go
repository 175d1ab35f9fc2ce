// Package verify says whether a checkpoint is whole and consistent (Structure), whether its bytes are those of another one or made from
// them by a known recipe (Against), and which recipe a checkpoint's own quantized experts were made by (DetectProfile).
//
// It changes nothing and holds a few MiB at a time, whatever the size of the checkpoint: headers are read whole, scale bytes and compared
// tensors are streamed. The one exception is the proof of a recipe, which holds one fused set (gate and up of one expert) a worker.
package verify

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
)

// Options of every check of this package. The zero value checks everything.
type Options struct {
	Jobs     int               // workers; 0: as many as Go runs at once
	Sample   Sample            // Against and DetectProfile: the part of the modules to look at
	Backend  quant.Backend     // Against and DetectProfile: what quantizes; nil: the CPU
	Names    [2]string         // Against: what the verdict calls a and b; empty: the names of their folders
	Start    func(total int64) // Structure and Against call it with the number of bytes that they will read at most; nil: not
	Progress func(bytes int64) // called with the number of bytes just read, from several goroutines at once
}

func (o Options) jobs() int {
	if o.Jobs > 0 {
		return o.Jobs
	}
	return runtime.GOMAXPROCS(0)
}

func (o Options) backend() quant.Backend {
	if o.Backend != nil {
		return o.Backend
	}
	return quant.CPU()
}

// progress counts n more bytes as read.
func (o Options) progress(n int64) {
	if o.Progress != nil && n > 0 {
		o.Progress(n)
	}
}

// Severity of a finding.
type Severity string

// Severities, the worst first.
const (
	Error   Severity = "error"   // a loader refuses the checkpoint or reads it wrongly
	Warning Severity = "warning" // nothing minds it today
	Info    Severity = "info"    // worth knowing; a sound checkpoint may have it
)

// Finding is one thing found in a checkpoint.
type Finding struct {
	Severity Severity `json:"severity"`
	Check    Check    `json:"check"`
	File     string   `json:"file,omitempty"`
	Tensor   string   `json:"tensor,omitempty"` // tensor, module, or the rule of the config
	Found    string   `json:"found"`
	Expected string   `json:"expected,omitempty"`
	Hint     string   `json:"hint,omitempty"`
}

// String gives the finding as one line, without severity and hint: file, tensor, found, expected.
func (f Finding) String() string {
	var parts []string
	for _, s := range []string{f.File, f.Tensor, f.Found} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	line := strings.Join(parts, ": ")
	if f.Expected != "" {
		line += "; expected " + f.Expected
	}
	return fault.Printable(line)
}

// Check names the law that a finding breaks. The names are stable.
type Check string

// Checks of Structure.
const (
	CheckFiles       Check = "files"        // shards, index and headers, and what lies beside them
	CheckConfig      Check = "config"       // config.json itself
	CheckMetadata    Check = "metadata"     // __metadata__ of a shard
	CheckModule      Check = "module"       // the tensors of one quantized module: present, shape, dtype
	CheckGlobal      Check = "global-scale" // finite, positive, reciprocal finite
	CheckFused       Check = "fused-global" // one global scale for gate and up (and q, k, v)
	CheckScale       Check = "group-scale"  // scale bytes
	CheckInputScale  Check = "input-scale"  // there exactly where the config says
	CheckRule        Check = "config-rule"  // config against tensors
	CheckUnusedRule  Check = "unused-rule"  // rules that match nothing
	CheckExperts     Check = "experts"      // state of the experts of one layer
	CheckTensorSet   Check = "tensor-set"   // the tensors that the model family has
	CheckHead        Check = "lm-head"      // tied or quantized output head
	CheckManifest    Check = "manifest"     // digests of lagquant-manifest.json
	CheckDeadGroups  Check = "dead-groups"  // groups of which every code is zero
	CheckFusedLayout Check = "fused-3d"     // experts in one 3-D tensor
)

// Report is the outcome of Structure.
type Report struct {
	Schema   string       `json:"schema"`
	Dir      string       `json:"dir"`
	Shards   int          `json:"shards"`
	Tensors  int          `json:"tensors"`
	Bytes    int64        `json:"bytes"` // of tensors
	Modules  ModuleCounts `json:"modules"`
	Fused    FusedGlobals `json:"fused_globals"`
	Manifest bool         `json:"manifest"` // whether there was one to compare with
	Errors   int          `json:"errors"`
	Warnings int          `json:"warnings"`
	Findings []Finding    `json:"findings"`
}

// ModuleCounts tells how the weights of a checkpoint are stored, in modules.
type ModuleCounts struct {
	NVFP4  int `json:"nvfp4"`
	Plain  int `json:"plain"` // a weight of two dimensions that is not quantized
	Others int `json:"others"`
}

// FusedGlobals sums up the comparison of global scales inside fused sets.
type FusedGlobals struct {
	Sets       int     `json:"sets"`
	Mismatched int     `json:"mismatched"`
	WorstRatio float64 `json:"worst_ratio,omitempty"` // larger over smaller
	Worst      string  `json:"worst,omitempty"`       // the set that has it
}

const reportSchema = "lagquant-verify/1"

func (r *Report) add(f Finding) {
	switch f.Severity {
	case Error:
		r.Errors++
	case Warning:
		r.Warnings++
	}
	r.Findings = append(r.Findings, f)
}

// Sound says whether the checkpoint has no error, and with strict no warning either.
func (r *Report) Sound(strict bool) bool { return r.Errors == 0 && (!strict || r.Warnings == 0) }

// order puts errors first, then warnings; findings of one severity stay in the order of the checks.
func (r *Report) order() {
	rank := map[Severity]int{Error: 0, Warning: 1, Info: 2}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return rank[a.Severity] - rank[b.Severity] })
}

// plural gives "1 module" and "2 modules".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
