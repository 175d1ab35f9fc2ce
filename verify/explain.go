package verify

import (
	"bytes"
	"context"
	"fmt"
)

// CodeDifferences explains how modules differ that are NVFP4 on both sides.
type CodeDifferences struct {
	Modules          int   `json:"modules"`
	DifferingModules int   `json:"differing_modules"`
	Globals          int   `json:"globals"` // modules of which the global scale differs
	ScaleBytes       int64 `json:"scale_bytes"`
	ScalesOffByOne   int64 `json:"scales_off_by_one"` // of them next to each other among the E4M3 numbers
	TotalScaleBytes  int64 `json:"total_scale_bytes"`
	Codes            int64 `json:"codes"`
	CodesOffByOne    int64 `json:"codes_off_by_one"` // of them next to each other among the E2M1 numbers, or zeros of either sign
	TotalCodes       int64 `json:"total_codes"`
}

func (d *CodeDifferences) add(o CodeDifferences) {
	d.Globals += o.Globals
	d.ScaleBytes += o.ScaleBytes
	d.ScalesOffByOne += o.ScalesOffByOne
	d.TotalScaleBytes += o.TotalScaleBytes
	d.Codes += o.Codes
	d.CodesOffByOne += o.CodesOffByOne
	d.TotalCodes += o.TotalCodes
}

// String gives the explanation as one line.
func (d *CodeDifferences) String() string {
	return fmt.Sprintf("%d of %s differ: %s, %s (%.3f %%, %s off by one), %s (%.3f %%, %s off by one)",
		d.DifferingModules, plural(d.Modules, "NVFP4 module"), plural(d.Globals, "global scale"),
		plural(int(d.ScaleBytes), "group scale"), percent(d.ScaleBytes, d.TotalScaleBytes), share(d.ScalesOffByOne, d.ScaleBytes),
		plural(int(d.Codes), "code"), percent(d.Codes, d.TotalCodes), share(d.CodesOffByOne, d.Codes))
}

func percent(n, of int64) float64 { return 100 * float64(n) / float64(max(of, 1)) }

// share says how many of a number of things: "all", "none" or the number.
func share(n, of int64) string {
	switch n {
	case 0:
		return "none"
	case of:
		return "all"
	}
	return fmt.Sprint(n)
}

// kind of a tensor, as far as the explanation goes.
type kind int

const (
	kindOther kind = iota
	kindPacked
	kindScale
	kindGlobal
)

// kind tells what a tensor is to a module that is NVFP4 on both sides.
func (c *comparer) kind(t *tensorAt) kind {
	name, _, ok := splitName(t.Name)
	if !ok {
		return kindOther
	}
	a, b := c.a.modules[name], c.b.modules[name]
	if a == nil || b == nil || !a.nvfp4() || !b.nvfp4() {
		return kindOther
	}
	switch {
	case t == a.packed():
		return kindPacked
	case t == a.scale():
		return kindScale
	case t == a.global() && t.Len() == 4:
		return kindGlobal
	}
	return kindOther
}

// count counts the differences of two equally long pieces of one tensor.
func (d *CodeDifferences) count(k kind, a, b []byte) {
	switch k {
	case kindGlobal:
		if !bytes.Equal(a, b) {
			d.Globals++
		}
	case kindScale:
		d.TotalScaleBytes += int64(len(a))
		d.countScales(a, b)
	case kindPacked:
		d.TotalCodes += 2 * int64(len(a))
		d.countCodes(a, b)
	}
}

func (d *CodeDifferences) countScales(a, b []byte) {
	if bytes.Equal(a, b) {
		return
	}
	for i, x := range a {
		if x == b[i] {
			continue
		}
		d.ScaleBytes++
		if x-b[i] == 1 || b[i]-x == 1 {
			d.ScalesOffByOne++
		}
	}
}

func (d *CodeDifferences) countCodes(a, b []byte) {
	if bytes.Equal(a, b) {
		return
	}
	for i, x := range a {
		if x != b[i] {
			d.countCode(x&15, b[i]&15)
			d.countCode(x>>4, b[i]>>4)
		}
	}
}

func (d *CodeDifferences) countCode(x, y byte) {
	if x == y {
		return
	}
	d.Codes++
	if distance := codeRank(x) - codeRank(y); distance*distance <= 1 {
		d.CodesOffByOne++
	}
}

// codeRank is the place of a code among the numbers that codes stand for, 0 for both zeros.
func codeRank(code byte) int {
	rank := int(code & 7)
	if code&8 != 0 {
		return -rank
	}
	return rank
}

// countModules counts the modules that are NVFP4 on both sides, and those of them of which a tensor differs.
func (c *comparer) countModules() {
	if c.NVFP4 == nil {
		return
	}
	for name, a := range c.a.modules {
		if b := c.b.modules[name]; b != nil && a.nvfp4() && b.nvfp4() && c.o.Sample.Has(fusedSet(name)) {
			c.NVFP4.Modules++
		}
	}
	seen := map[string]bool{}
	for _, d := range c.Differing {
		t := c.a.tensors[d.Tensor]
		if c.kind(t) == kindOther {
			continue
		}
		module, _, _ := splitName(d.Tensor)
		if !seen[module] {
			seen[module] = true
			c.NVFP4.DifferingModules++
		}
	}
}

// streamPair hands over the bytes of two tensors of one length, piece by piece.
func (f *files) streamPair(ctx context.Context, a, b *tensorAt, o Options, consume func(x, y []byte)) error {
	fileA, err := f.of(a.shard)
	if err != nil {
		return err
	}
	fileB, err := f.of(b.shard)
	if err != nil {
		return err
	}
	bufferA, bufferB := buffers.Get().(*[chunk]byte), buffers.Get().(*[chunk]byte)
	defer buffers.Put(bufferA)
	defer buffers.Put(bufferB)
	size := int64(a.Len())
	for at := int64(0); at < size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(chunk, size-at)
		x, y := bufferA[:n], bufferB[:n]
		if err := readAt(fileA, x, a.offset()+at, a.shard.Name); err != nil {
			return err
		}
		if err := readAt(fileB, y, b.offset()+at, b.shard.Name); err != nil {
			return err
		}
		o.progress(2 * n)
		consume(x, y)
		at += n
	}
	return nil
}
