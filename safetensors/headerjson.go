package safetensors

import (
	"slices"
	"strings"
)

const metadataKey = "__metadata__"

// headerParser turns the JSON of a header into tensors in the order of the text.
//
// It refuses what the reference refuses, and a few things that the reference lets pass: equal names, which the format forbids; keys of an
// entry other than the three, since a rewritten file could not keep them; an entry written as an array.
type headerParser struct {
	scanner
	tensors  []Tensor
	at       []int          // where each tensor's name stands, for messages
	index    map[string]int // of tensors, by name
	metadata map[string]string
	seenMeta int      // where __metadata__ stands, -1: not met
	dims     []uint64 // arena from which the shapes are cut
	tensor   Tensor   // being read
	keysAt   [3]int   // where each of entryKeys stands in the entry being read, -1: not met
}

var entryKeys = [3]string{"dtype", "shape", "data_offsets"}

// shortestEntry is the least that a tensor takes in a header, so that a header of nothing but keys cannot claim much memory.
const shortestEntry = len(`"":{"dtype":"","shape":[],"data_offsets":[0,0]}`)

func newHeaderParser(text string) *headerParser {
	n := min(strings.Count(text, `"data_offsets"`), len(text)/shortestEntry)
	return &headerParser{
		scanner:  scanner{what: "header", text: text},
		tensors:  make([]Tensor, 0, n),
		at:       make([]int, 0, n),
		index:    make(map[string]int, n),
		seenMeta: -1,
		dims:     make([]uint64, 0, 2*n),
	}
}

func (p *headerParser) parse() error {
	err := p.object(func(key string, at int) error {
		if key == metadataKey {
			return p.parseMetadata(at)
		}
		return inTensor(key, p.parseTensor(key, at))
	})
	if err != nil {
		return err
	}
	return p.end()
}

func (p *headerParser) duplicate(key string, first, second int) error {
	return refuse(ErrDuplicateKey, "whoever reads this file keeps one of the two and drops the other; write the file anew",
		"duplicate key %q at header bytes %d and %d", key, first, second)
}

func (p *headerParser) parseMetadata(at int) error {
	if p.seenMeta >= 0 {
		return p.duplicate(metadataKey, p.seenMeta, at)
	}
	p.seenMeta = at
	if p.word("null") { // the reference reads null as absent
		return nil
	}
	if p.peek() != '{' {
		return p.fail(ErrMetadata, p.pos, "__metadata__ is not an object")
	}
	p.metadata = map[string]string{}
	seen := map[string]int{}
	return p.object(func(key string, at int) error {
		if first, ok := seen[key]; ok {
			return p.duplicate(key, first, at)
		}
		seen[key] = at
		if p.peek() != '"' {
			return p.fail(ErrMetadata, p.pos, "__metadata__ value of %q is not a string", key)
		}
		value, err := p.str()
		p.metadata[key] = value
		return err
	})
}

func (p *headerParser) parseTensor(name string, at int) error {
	if i, ok := p.index[name]; ok {
		return p.duplicate(name, p.at[i], at)
	}
	if p.peek() != '{' {
		return p.fail(ErrEntry, p.pos, "the tensor's entry is not an object")
	}
	p.tensor = Tensor{Name: name}
	p.keysAt = [3]int{-1, -1, -1}
	if err := p.object(p.parseField); err != nil {
		return err
	}
	if i := slices.Index(p.keysAt[:], -1); i >= 0 {
		return p.fail(ErrEntry, at, "the tensor's entry lacks %q", entryKeys[i])
	}
	p.index[name] = len(p.tensors)
	p.tensors = append(p.tensors, p.tensor)
	p.at = append(p.at, at)
	return nil
}

func (p *headerParser) parseField(key string, at int) error {
	i := slices.Index(entryKeys[:], key)
	if i < 0 {
		return p.fail(ErrEntry, at, "unknown key %q, expected dtype, shape and data_offsets alone", key)
	}
	if first := p.keysAt[i]; first >= 0 {
		return p.duplicate(key, first, at)
	}
	p.keysAt[i] = at
	var err error
	switch key {
	case "dtype":
		p.tensor.DType, err = p.parseDType()
	case "shape":
		p.tensor.Shape, err = p.parseShape()
	case "data_offsets":
		p.tensor.Begin, p.tensor.End, err = p.parseOffsets()
	}
	return err
}

func (p *headerParser) parseDType() (DType, error) {
	if p.peek() != '"' {
		return "", p.fail(ErrEntry, p.pos, "dtype is not a string")
	}
	s, err := p.str()
	return DType(s), err
}

// parseShape cuts the shape from the arena, which saves an allocation a tensor.
func (p *headerParser) parseShape() ([]uint64, error) {
	start := len(p.dims)
	err := p.array(func() error {
		n, err := p.uint()
		if len(p.dims) == cap(p.dims) { // begin a new arena; the shapes cut so far keep the old one
			p.dims = append(make([]uint64, 0, 1024+2*(len(p.dims)-start)), p.dims[start:]...)
			start = 0
		}
		p.dims = append(p.dims, n)
		return err
	})
	return slices.Clip(p.dims[start:]), err
}

func (p *headerParser) parseOffsets() (begin, end uint64, err error) {
	p.peek()
	at, n := p.pos, 0
	err = p.array(func() error {
		v, err := p.uint()
		begin, end = end, v
		n++
		return err
	})
	if err == nil && n != 2 {
		err = p.fail(ErrEntry, at, "data_offsets holds %d numbers, expected 2", n)
	}
	return begin, end, err
}
