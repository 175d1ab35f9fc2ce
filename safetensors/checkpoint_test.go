package safetensors

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/testdata/goldens"
	"github.com/stretchr/testify/require"
)

func requireValidJSON(t *testing.T, raw []byte) {
	t.Helper()
	require.True(t, json.Valid(raw), "%q", raw)
}

// folder is a checkpoint to be written: shards by file name, each with the names of its tensors (U8, one byte), and other files as text.
type folder struct {
	shards map[string][]string
	files  map[string]string
}

func (f folder) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, tensors := range f.shards {
		var sources []Source
		for _, tensor := range tensors {
			sources = append(sources, Source{
				Tensor: Tensor{Name: tensor, DType: U8, Shape: []uint64{1}},
				Open:   func() (io.Reader, error) { return strings.NewReader(tensor[:1]), nil },
			})
		}
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		file, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, Write(file, sources, map[string]string{"format": "pt"}))
		require.NoError(t, file.Close())
	}
	for name, text := range f.files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	return dir
}

func indexOf(weightMap string) map[string]string {
	return map[string]string{IndexName: `{"metadata":{"total_size":3},"weight_map":{` + weightMap + `}}`}
}

const (
	one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	goodMap  = `"a":"` + one + `","b":"` + one + `","c":"` + two + `"`
)

var goodShards = map[string][]string{one: {"a", "b"}, two: {"c"}}

func with(shards map[string][]string, more map[string][]string) map[string][]string {
	all := map[string][]string{}
	for _, m := range []map[string][]string{shards, more} {
		for name, tensors := range m {
			all[name] = tensors
		}
	}
	return all
}

func TestOpenCheckpoint(t *testing.T) {
	for name, c := range map[string]struct {
		folder
		shards    []string
		unindexed []string
		names     []string
		indexed   bool
	}{
		"index":                   {folder{goodShards, indexOf(goodMap)}, []string{one, two}, nil, []string{"a", "b", "c"}, true},
		"index beside other file": {folder{with(goodShards, map[string][]string{"consolidated.safetensors": {"a"}}), indexOf(goodMap)}, []string{one, two}, []string{"consolidated.safetensors"}, []string{"a", "b", "c"}, true},
		"index beside a single":   {folder{with(goodShards, map[string][]string{"model.safetensors": {"a"}}), indexOf(goodMap)}, []string{one, two}, []string{"model.safetensors"}, []string{"a", "b", "c"}, true},
		"index of a single":       {folder{map[string][]string{"model.safetensors": {"a"}}, indexOf(`"a":"model.safetensors"`)}, []string{"model.safetensors"}, nil, []string{"a"}, true},
		"index below the folder":  {folder{map[string][]string{"part/x.safetensors": {"a"}}, indexOf(`"a":"part/x.safetensors"`)}, []string{"part/x.safetensors"}, nil, []string{"a"}, true},
		"index with odd names":    {folder{map[string][]string{"a[b]*?..safetensors": {"a"}}, indexOf(`"a":"a[b]*?..safetensors"`)}, []string{"a[b]*?..safetensors"}, nil, []string{"a"}, true},
		"single":                  {folder{map[string][]string{"model.safetensors": {"b", "a"}}, nil}, []string{"model.safetensors"}, nil, []string{"a", "b"}, false},
		"single beside others":    {folder{map[string][]string{"model.safetensors": {"a"}, "consolidated.safetensors": {"a"}}, nil}, []string{"model.safetensors"}, []string{"consolidated.safetensors"}, []string{"a"}, false},
		"numbered":                {folder{goodShards, nil}, []string{one, two}, nil, []string{"a", "b", "c"}, false},
		"numbered beside others":  {folder{with(goodShards, map[string][]string{"consolidated.safetensors": {"a"}}), nil}, []string{one, two}, []string{"consolidated.safetensors"}, []string{"a", "b", "c"}, false},
		"any":                     {folder{map[string][]string{"x.safetensors": {"b"}, "y.safetensors": {"a"}}, map[string]string{"._x.safetensors": "AppleDouble"}}, []string{"x.safetensors", "y.safetensors"}, nil, []string{"a", "b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOOS == "windows" && strings.Contains(name, "odd") {
				t.Skip("no such file names there")
			}
			dir := c.write(t)
			ckpt, err := OpenCheckpoint(dir)
			require.NoError(t, err)
			require.Equal(t, dir, ckpt.Dir)
			require.Equal(t, c.unindexed, ckpt.Unindexed)
			require.Equal(t, c.names, ckpt.Names())
			require.Equal(t, c.indexed, ckpt.WeightMap != nil)
			require.Nil(t, ckpt.Config)
			var shards []string
			for _, s := range ckpt.Shards {
				shards = append(shards, s.Name)
			}
			require.Equal(t, c.shards, shards)
			for _, tensor := range c.names {
				s, _, ok := ckpt.Lookup(tensor)
				require.True(t, ok)
				require.Contains(t, c.folder.shards[s.Name], tensor)
				b, err := ckpt.ReadTensor(tensor)
				require.NoError(t, err)
				require.Equal(t, tensor[:1], string(b))
			}
			_, _, ok := ckpt.Lookup("z")
			require.False(t, ok)
			_, err = ckpt.ReadTensor("z")
			require.ErrorIs(t, err, ErrUnknownTensor)
			total, ok := ckpt.TotalSize()
			require.Equal(t, c.indexed, ok)
			if ok {
				require.EqualValues(t, 3, total)
			}
		})
	}
}

// Each row is what ScanCheckpoint finds, in order; OpenCheckpoint refuses the first.
func TestScanCheckpoint(t *testing.T) {
	cut := string(testFile(t, "refused", "file-short.safetensors"))
	for name, c := range map[string]struct {
		folder
		causes []error
		texts  []string
	}{
		"nothing": {folder{}, []error{ErrNoShards}, []string{"the folder holds no .safetensors file"}},
		"index names a missing shard": {
			folder{map[string][]string{one: {"a", "b"}}, indexOf(goodMap)},
			[]error{ErrShardMissing},
			[]string{two + ": the file is not there"},
		},
		"empty shard": {
			folder{map[string][]string{one: {"a", "b"}}, map[string]string{IndexName: indexOf(goodMap)[IndexName], two: ""}},
			[]error{ErrEmptyFile},
			[]string{two + ": the file is empty"},
		},
		"cut shard": {
			folder{map[string][]string{one: {"a", "b"}}, map[string]string{IndexName: indexOf(goodMap)[IndexName], two: cut}},
			[]error{ErrFileTooShort},
			[]string{two + ": the file is cut short: 65 bytes, expected 66"},
		},
		"index lacks a tensor": {
			folder{goodShards, indexOf(`"a":"` + one + `","c":"` + two + `"`)},
			[]error{ErrNotInIndex},
			[]string{one + ": b: the tensor is in this shard, but not in the index"},
		},
		"shard lacks a tensor": {
			folder{goodShards, indexOf(goodMap + `,"d":"` + two + `"`)},
			[]error{ErrTensorMissing},
			[]string{two + ": d: the index says that this tensor is here, but no shard has it"},
		},
		"tensor in two shards": {
			folder{with(goodShards, map[string][]string{two: {"a", "c"}}), indexOf(goodMap)},
			[]error{ErrTwoShards},
			[]string{two + ": a: the tensor is in two shards, here and in " + one + ", where the index has it"},
		},
		"wrong shard": {
			folder{goodShards, indexOf(`"a":"` + two + `","b":"` + one + `","c":"` + two + `"`)},
			[]error{ErrWrongShard},
			[]string{one + ": a: the tensor is in this shard, but the index says " + two},
		},
		"several things": {
			folder{map[string][]string{one: {"a", "x"}}, indexOf(goodMap)},
			[]error{ErrShardMissing, ErrNotInIndex, ErrTensorMissing},
			[]string{
				two + ": the file is not there",
				one + ": x: the tensor is in this shard, but not in the index",
				one + ": b: the index says that this tensor is here, but no shard has it",
			},
		},
		"no index, a number missing": {
			folder{map[string][]string{two: {"c"}}, nil},
			[]error{ErrShardMissing},
			[]string{one + ": the file is not there, though " + two + " says that there are 2"},
		},
		"no index, tensor in two shards": {
			folder{map[string][]string{"x.safetensors": {"a"}, "y.safetensors": {"a"}}, nil},
			[]error{ErrTwoShards},
			[]string{"y.safetensors: a: the tensor is in two shards, here and in x.safetensors"},
		},
		"duplicate key in the index": {
			folder{goodShards, indexOf(goodMap + `,"a":"` + two + `"`)},
			[]error{ErrDuplicateKey},
			[]string{IndexName + `: duplicate key "a" at index bytes 43 and 160`},
		},
		"duplicate weight_map": {
			folder{goodShards, map[string]string{IndexName: `{"weight_map":{` + goodMap + `},"weight_map":{` + goodMap + `}}`}},
			[]error{ErrDuplicateKey},
			[]string{IndexName + `: duplicate key "weight_map" at index bytes 1 and 133`},
		},
		"index without weight_map": {
			folder{goodShards, map[string]string{IndexName: `{"metadata":{}}`}},
			[]error{ErrIndex},
			[]string{IndexName + ": its weight_map is missing or names no tensor"},
		},
		"weight_map a list": {
			folder{goodShards, map[string]string{IndexName: `{"weight_map":["a"]}`}},
			[]error{ErrIndex},
			[]string{IndexName + ": index byte 14: weight_map is not an object"},
		},
		"metadata a string": {
			folder{goodShards, map[string]string{IndexName: `{"metadata":"x","weight_map":{` + goodMap + `}}`}},
			[]error{ErrIndex},
			[]string{IndexName + ": index byte 12: metadata is not an object"},
		},
		"shard a number": {
			folder{goodShards, map[string]string{IndexName: `{"weight_map":{"a":1}}`}},
			[]error{ErrIndex},
			[]string{IndexName + `: index byte 19: the shard of "a" is not a string`},
		},
		"index cut": {
			folder{goodShards, map[string]string{IndexName: `{"weight_map":{"a":"x`}},
			[]error{ErrJSON},
			[]string{IndexName + ": index byte 21: the index ends inside a string"},
		},
		"index empty": {
			folder{goodShards, map[string]string{IndexName: ""}},
			[]error{ErrJSON},
			[]string{IndexName + ": index byte 0: the index ends where an object is expected"},
		},
		"index with junk behind": {
			folder{goodShards, map[string]string{IndexName: `{"weight_map":{` + goodMap + `}}}`}},
			[]error{ErrJSON},
			[]string{IndexName + ": index byte 133: found '}', expected the end"},
		},
		"index not UTF-8": {
			folder{goodShards, map[string]string{IndexName: "{\"\xff\":1}"}},
			[]error{ErrUTF8},
			[]string{IndexName + ": index byte 2: 0xff is not valid UTF-8"},
		},
		"index nested too deep": {
			folder{goodShards, map[string]string{IndexName: `{"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`}},
			[]error{ErrJSON},
			[]string{IndexName + ": index byte 133: nested deeper than 128"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := c.write(t)
			ckpt, found, err := ScanCheckpoint(dir)
			require.NoError(t, err)
			require.NotNil(t, ckpt)
			var texts []string
			for i, f := range found {
				texts = append(texts, f.Error())
				require.ErrorIs(t, f, c.causes[i])
				require.Equal(t, fault.Refused, fault.KindOf(f))
			}
			require.Equal(t, c.texts, texts)
			_, err = OpenCheckpoint(dir)
			require.EqualError(t, err, c.texts[0])
		})
	}
}

func TestShardNamesAreText(t *testing.T) {
	for _, name := range []string{
		"../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "..", ".", "", "a/../x.safetensors", "./x.safetensors", "a//x.safetensors",
		`..\x.safetensors`, `a\x.safetensors`, `\\host\share\x.safetensors`, `C:\x.safetensors`, "C:x.safetensors", "x.safetensors:stream", "x/", "x\x00.safetensors",
	} {
		dir := folder{nil, indexOf(strings.ReplaceAll(`"a":`+string(appendString(nil, name)), "\n", ""))}.write(t)
		_, err := OpenCheckpoint(dir)
		require.ErrorIs(t, err, ErrShardName, name)
		require.Equal(t, fault.Refused, fault.KindOf(err))
	}
	for _, name := range []string{"x.safetensors", "part/x.safetensors", "..x.safetensors", "x..safetensors", "*", "é.safetensors", " "} {
		require.NoError(t, checkShardName(name), name)
	}
}

func TestTotalSize(t *testing.T) {
	for raw, want := range map[string]uint64{
		`{"total_size": 99700000000}`: 99700000000, `{"x":[1],"total_size":12.0}`: 12, `{"total_size":18446744073709551615}`: 1<<64 - 1,
	} {
		got, ok := totalSize([]byte(raw))
		require.True(t, ok, raw)
		require.Equal(t, want, got)
	}
	for _, raw := range []string{``, `null`, `[]`, `{}`, `{"total_size":"12"}`, `{"total_size":12.5}`, `{"total_size":-1}`, `{"total_size":null}`, `{"total_size":1e3}`} {
		_, ok := totalSize([]byte(raw))
		require.False(t, ok, raw)
	}
}

// What the system refuses is a read error and not a refused checkpoint.
func TestCheckpointReadErrors(t *testing.T) {
	_, err := OpenCheckpoint(filepath.Join(t.TempDir(), "not there"))
	require.Equal(t, fault.IO, fault.KindOf(err))
	require.ErrorIs(t, err, os.ErrNotExist)

	dir := folder{goodShards, indexOf(goodMap)}.write(t)
	require.NoError(t, os.Remove(filepath.Join(dir, two)))
	if err := os.Symlink(two, filepath.Join(dir, two)); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	_, err = OpenCheckpoint(dir)
	require.Equal(t, fault.IO, fault.KindOf(err), "a link to itself")
	require.Equal(t, two+": stat: too many levels of symbolic links", err.Error())
}

func TestLinksAreFollowed(t *testing.T) {
	dir := folder{goodShards, indexOf(goodMap)}.write(t)
	other := t.TempDir()
	require.NoError(t, os.Rename(filepath.Join(dir, two), filepath.Join(other, "blob")))
	if err := os.Symlink(filepath.Join(other, "blob"), filepath.Join(dir, two)); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	c, err := OpenCheckpoint(dir)
	require.NoError(t, err)
	b, err := c.ReadTensor("c")
	require.NoError(t, err)
	require.Equal(t, "c", string(b))

	require.NoError(t, os.Remove(filepath.Join(other, "blob")))
	_, err = OpenCheckpoint(dir)
	require.ErrorIs(t, err, ErrShardMissing)
	require.Contains(t, err.Error(), "the file is a link to "+filepath.Join(other, "blob")+", which is not there")
}

func TestShardIsAFolder(t *testing.T) {
	dir := folder{map[string][]string{one: {"a", "b"}}, indexOf(goodMap)}.write(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, two), 0o755))
	_, err := OpenCheckpoint(dir)
	require.ErrorIs(t, err, ErrNotAFile)
	require.Equal(t, fault.Refused, fault.KindOf(err))
}

func TestTinyCheckpoints(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	for name, tensors := range map[string]int{"bf16": 281, "nvfp4-0722": 801, "nvfp4-0801": 657} {
		c, err := OpenCheckpoint(filepath.Join(dir, name))
		require.NoError(t, err)
		require.NotEmpty(t, c.Config)
		require.Empty(t, c.Unindexed)
		require.Equal(t, tensors, len(c.Names()), name)
		total := uint64(0)
		for _, s := range c.Shards {
			l, err := NewLayout(s.Header.Tensors, s.Header.Metadata)
			require.NoError(t, err)
			prefix := make([]byte, s.Header.DataStart)
			f, err := s.Open()
			require.NoError(t, err)
			_, err = io.ReadFull(f, prefix)
			require.NoError(t, errors.Join(err, f.Close()))
			require.Equal(t, string(prefix), string(l.Prefix()), "%s/%s was written in the reference's layout", name, s.Name)
			total += s.Header.dataSize()
		}
		said, ok := c.TotalSize()
		require.True(t, ok)
		require.Equal(t, said, total)
	}
}
