// Package pipeline turns the BF16 experts of chosen layers into NVFP4, streaming shard by shard, and leaves everything else as it is.
//
// MakePlan reads headers, configs and peers' input scales, no weights, and decides everything; Run executes the plan. The same plan gives
// the same bytes for any number of workers, any backend and any number of interruptions.
package pipeline

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/lagquant/lagquant/quant"
	"github.com/lagquant/lagquant/spec"
)

// PlanSchema names the JSON form of a Plan.
const PlanSchema = "lagquant-plan/1"

// Plan is what a job will do, as plain data. It holds no folder names: the same checkpoints give the same plan wherever they lie.
type Plan struct {
	Schema string `json:"schema"`
	// Digest is the SHA-256 of the plan's JSON with this field empty. Outputs, journals and manifests carry it.
	Digest string `json:"digest"`

	Source      Origin        `json:"source"`
	InputScales InputScales   `json:"input_scales"`
	Profile     string        `json:"profile"`
	Evidence    []string      `json:"profile_evidence,omitempty"` // why this profile, for people
	Layers      []int         `json:"layers"`
	Names       TensorNames   `json:"names"`
	Scalar      []uint64      `json:"scalar_shape"` // [] or [1], as the checkpoint's own quantized modules have it
	Config      []spec.Change `json:"config_changes"`
	HFConfig    []spec.Change `json:"hf_quant_config_changes,omitempty"` // of ModelOpt's hf_quant_config.json

	Units   []Unit    `json:"units"`
	Files   []string  `json:"files"`    // what else lies in the folder, copied as it is
	LeftOut []LeftOut `json:"left_out"` // what is not copied, and why

	Modules     int   `json:"modules"`      // that are requantized
	TensorsOut  int   `json:"tensors_out"`  // of the whole output
	BytesIn     int64 `json:"bytes_in"`     // of the source's shards
	BytesOut    int64 `json:"bytes_out"`    // of the output's shards
	TotalSize   int64 `json:"total_size"`   // of the output's tensors, as the index will say
	WeightBytes int64 `json:"weight_bytes"` // of the BF16 that is quantized
}

// TensorNames are the endings that the checkpoint's form gives the tensors of a quantized module.
type TensorNames struct {
	Packed      string `json:"packed"`
	Scale       string `json:"scale"`
	Global      string `json:"global"`
	InputGlobal string `json:"input_global"`
	Reciprocal  bool   `json:"reciprocal"` // globals are amax/2688 (ModelOpt) and not 2688/amax (compressed-tensors)
}

func namesOf(s *spec.Nvfp4ExpertSourceSpec) TensorNames {
	return TensorNames{s.Name("", spec.Packed), s.Name("", spec.Scale), s.Name("", spec.Global), s.Name("", spec.InputGlobal), s.Reciprocal}
}

// Origin tells a checkpoint apart from others: by its commit where it lies in a Hugging Face cache, and by what its headers and config say.
type Origin struct {
	Repo     string `json:"repo,omitempty"`
	Revision string `json:"revision,omitempty"`
	// Fingerprint is the SHA-256 over config.json and every shard's name, size and header.
	Fingerprint string `json:"fingerprint"`
}

// String names an origin in a line of text.
func (o Origin) String() string {
	if o.Repo != "" {
		return o.Repo + "@" + o.Revision
	}
	return "sha256:" + o.Fingerprint[:16]
}

// Unit is the work on one output shard. Units are independent of each other.
type Unit struct {
	Shard   string   `json:"shard"`
	Size    int64    `json:"size"`     // of the source's file
	SizeOut int64    `json:"size_out"` // of the output's
	Header  string   `json:"header_sha256"`
	Modules []Module `json:"modules,omitempty"` // to requantize, by name
	Drop    []string `json:"drop,omitempty"`    // tensors left out
}

// Copied says whether the shard goes to the output byte for byte.
func (u *Unit) Copied() bool { return len(u.Modules) == 0 && len(u.Drop) == 0 }

// Module is one linear layer that becomes NVFP4.
type Module struct {
	Name string `json:"name"` // without ".weight"
	Rows uint64 `json:"rows"`
	Cols uint64 `json:"cols"`
	// With names the other members of its fused set, which share its global scale; their weights may lie in other shards.
	With []string `json:"with,omitempty"`
}

// LeftOut is a file of the source that the output does not get.
type LeftOut struct {
	File string `json:"file"`
	Why  string `json:"why"`
}

// profile returns the arithmetic that the plan names.
func (p *Plan) profile() quant.Profile {
	q, _ := quant.ProfileByName(p.Profile)
	return q
}

// seal computes the digest.
func (p *Plan) seal() error {
	p.Digest = ""
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	p.Digest = hex.EncodeToString(sum[:])
	return nil
}

// encode gives the bytes of lagquant-plan.json.
func (p *Plan) encode() ([]byte, error) {
	b, err := json.MarshalIndent(p, "", " ")
	return append(b, '\n'), err
}

// Command is the command line of the job with checkpoints named by what they are and not by where they lie.
func (p *Plan) Command() string {
	c := "lagquant requantize --model " + p.Source.String() + " --layers " + spec.FormatLayers(p.Layers)
	if s := p.InputScales; s.From != FromNowhere {
		c += " --input-scales " + s.argument()
	}
	return c + " --profile " + p.Profile
}
