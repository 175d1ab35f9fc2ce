//go:build nogpu || !((linux && (amd64 || arm64)) || (windows && amd64))

package cuda

import "github.com/lagquant/lagquant/quant"

// Engine is the GPU backend, which this build is without: Open never returns one.
type Engine struct{ quant.Backend }

func unavailable() error {
	return missing(nil, "this build of lagquant has no GPU backend")
}

// Open fails: the build is without a GPU backend.
func Open(Options) (*Engine, error) { return nil, unavailable() }

// Devices fails: the build is without a GPU backend.
func Devices() ([]Device, error) { return nil, unavailable() }

// Bench fails: the build is without a GPU backend.
func Bench(Options, int64) ([]Figure, error) { return nil, unavailable() }

// Devices returns none.
func (*Engine) Devices() []Device { return nil }

// CompareSet fails: the build is without a GPU backend.
func (*Engine) CompareSet(quant.Profile, []quant.Member) (float32, []Difference, error) {
	return 0, nil, unavailable()
}

// MeasureErrors fails: the build is without a GPU backend.
func (*Engine) MeasureErrors(quant.Profile, float32, quant.Member) (quant.Errors, error) {
	return quant.Errors{}, unavailable()
}

// DequantizeBF16 fails: the build is without a GPU backend.
func (*Engine) DequantizeBF16(_, _, _ []byte, _ float32, _ bool) error { return unavailable() }
