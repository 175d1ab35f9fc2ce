package safetensors

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lagquant/lagquant/internal/fault"
)

// IndexName is the file that says which shard holds which tensor.
const IndexName = "model.safetensors.index.json"

// maxJSON bounds index and config files. The index of 126,721 tensors has 15 MB.
const maxJSON = 256 << 20

// index is a model.safetensors.index.json.
type index struct {
	weightMap map[string]string // tensor to shard name
	metadata  []byte            // raw JSON; nil where there is none
}

// readIndex returns nil where the folder has no index.
func readIndex(dir string) (*index, error) {
	raw, err := ReadFile(dir, IndexName)
	if raw == nil || err != nil {
		return nil, err
	}
	ix, err := parseIndex(raw)
	return ix, fault.In(IndexName, err)
}

// ReadFile reads a file beside the shards whole; nil where it is missing. What is no regular file is refused with ErrNotAFile, since reading
// it might wait for ever, and a file of more than 256 MiB with ErrTooLarge.
func ReadFile(dir, name string) ([]byte, error) {
	f, size, err := openRegular(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, ioFault(name, err)
	}
	defer f.Close()
	if size > maxJSON {
		return nil, fault.In(name, refuse(ErrTooLarge, "", "the file has %d bytes, expected at most %d", size, maxJSON))
	}
	raw := make([]byte, size)
	if _, err := io.ReadFull(f, raw); err != nil {
		return nil, ioFault(name, err)
	}
	return raw, nil
}

func parseIndex(raw []byte) (*index, error) {
	if !utf8.Valid(raw) {
		at := invalidUTF8(raw)
		return nil, refuse(ErrUTF8, hintDamaged, "index byte %d: 0x%02x is not valid UTF-8", at, raw[at])
	}
	s := &scanner{what: "index", text: string(raw)}
	ix := &index{}
	seen := map[string]int{}
	err := s.object(func(key string, at int) error {
		if first, ok := seen[key]; ok {
			return duplicateInIndex(key, first, at)
		}
		seen[key] = at
		if key == "weight_map" {
			return ix.parseWeightMap(s)
		}
		if key == "metadata" {
			return ix.parseMetadata(s)
		}
		_, err := s.skip()
		return err
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && len(ix.weightMap) == 0 {
		err = refuse(ErrIndex, hintDamaged, "its weight_map is missing or names no tensor")
	}
	return ix, err
}

// parseMetadata accepts null: there are loaders that look for an object, and none that mind when there is none.
func (ix *index) parseMetadata(s *scanner) error {
	if c := s.peek(); c != '{' && c != 'n' {
		return s.fail(ErrIndex, s.pos, "metadata is not an object")
	}
	value, err := s.skip()
	ix.metadata = []byte(value)
	return err
}

func (ix *index) parseWeightMap(s *scanner) error {
	if s.peek() != '{' {
		return s.fail(ErrIndex, s.pos, "weight_map is not an object")
	}
	start := s.pos
	ix.weightMap = make(map[string]string, strings.Count(s.text, ".safetensors\""))
	return s.object(func(tensor string, at int) error {
		if _, ok := ix.weightMap[tensor]; ok {
			return duplicateInIndex(tensor, firstKey(s.text, start, tensor), at)
		}
		if s.peek() != '"' {
			return s.fail(ErrIndex, s.pos, "the shard of %q is not a string", tensor)
		}
		shard, err := s.str()
		ix.weightMap[tensor] = shard
		return err
	})
}

func duplicateInIndex(key string, first, second int) error {
	return refuse(ErrDuplicateKey, "whoever reads this index keeps one of the two and drops the other; write it anew",
		"duplicate key %q at index bytes %d and %d", key, first, second)
}

// firstKey finds where a key of the object at start stands first. Only a message needs it, so the good case keeps no positions.
func firstKey(text string, start int, key string) int {
	found := -1
	s := &scanner{text: text, pos: start}
	_ = s.object(func(k string, at int) error {
		if k == key {
			found = at
			return errors.New("found")
		}
		_, err := s.skip()
		return err
	})
	return found
}

// totalSize reads total_size out of the index's metadata. Some writers write it with a fraction of zero.
func totalSize(metadata []byte) (total uint64, ok bool) {
	s := &scanner{what: "index", text: string(metadata)}
	_ = s.object(func(key string, _ int) error {
		value, err := s.skip()
		if key != "total_size" {
			return err
		}
		whole, fraction, _ := strings.Cut(value, ".")
		if strings.Trim(fraction, "0") == "" {
			n, err := strconv.ParseUint(whole, 10, 64)
			total, ok = n, err == nil
		}
		return err
	})
	return total, ok
}

// checkShardName refuses a name that leads out of the folder on any system, judged as text: links inside the folder are followed.
func checkShardName(name string) error {
	bad := name == "." || path.Clean(name) != name || strings.ContainsAny(name, "\\:\x00") || !filepath.IsLocal(name)
	if !bad {
		return nil
	}
	return fault.In(IndexName, refuse(ErrShardName, "no tool writes such a name; do not trust the checkpoint",
		"the index names the shard %q, expected a plain file name inside the folder", name))
}
