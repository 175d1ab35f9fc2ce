package safetensors

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/lagquant/lagquant/internal/fault"
)

const (
	singleName = "model.safetensors"
	configName = "config.json"
	suffix     = ".safetensors"
)

// Checkpoint is a folder of safetensors files, known by their headers.
type Checkpoint struct {
	Dir           string            // as given
	Shards        []*Shard          // by name
	WeightMap     map[string]string // tensor to shard name, as the index says; nil without an index
	IndexMetadata []byte            // the index's "metadata", raw JSON; nil where there is none
	Config        []byte            // config.json, raw; nil where there is none
	Unindexed     []string          // .safetensors files of the folder that are no part of the checkpoint, such as consolidated.safetensors

	byName map[string]*Shard
}

// OpenCheckpoint reads all headers of a checkpoint and refuses the first thing that is wrong with it: see ScanCheckpoint.
func OpenCheckpoint(dir string) (*Checkpoint, error) {
	c, found, err := ScanCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return nil, found[0]
	}
	return c, nil
}

// ScanCheckpoint reads all headers of a checkpoint and lists everything that is wrong, each a *fault.Error; shards that could not be read are
// left out of the result. It fails only where nothing can be read at all.
//
// The index names the shards. Without one it is model.safetensors, else the numbered files (model-00001-of-00003.safetensors), which must be
// complete, else every .safetensors file. Other such files are listed in Unindexed and not read.
func ScanCheckpoint(dir string) (*Checkpoint, []error, error) {
	files, err := safetensorsFiles(dir)
	if err != nil {
		return nil, nil, err
	}
	c := &Checkpoint{Dir: dir}
	var found []error
	report := func(err error) {
		if err != nil {
			found = append(found, err)
		}
	}

	c.Config, err = ReadFile(dir, configName)
	report(err)
	ix, err := readIndex(dir)
	report(err)
	var names []string
	if ix != nil && err == nil {
		c.WeightMap, c.IndexMetadata = ix.weightMap, ix.metadata
		names = shardNames(ix.weightMap)
	} else {
		names, err = unindexedShards(files)
		report(err)
	}
	for _, f := range files {
		if !slices.Contains(names, f) {
			c.Unindexed = append(c.Unindexed, f)
		}
	}
	found = append(found, c.readShards(names)...)
	if c.WeightMap != nil {
		found = append(found, c.checkIndex()...)
	} else {
		found = append(found, c.checkDuplicates()...)
	}
	return c, found, nil
}

// safetensorsFiles lists the .safetensors files of a folder by name. Hidden ones are the leavings of file managers and downloads.
func safetensorsFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, ioFault(dir, err)
	}
	var files []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) && !strings.HasPrefix(e.Name(), ".") {
			files = append(files, e.Name())
		}
	}
	return files, nil
}

// shardNames lists the distinct shards of a weight map, sorted.
func shardNames(weightMap map[string]string) []string {
	distinct := map[string]bool{}
	for _, shard := range weightMap {
		distinct[shard] = true
	}
	names := make([]string, 0, len(distinct))
	for name := range distinct {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

var numbered = regexp.MustCompile(`^(.*)-([0-9]{5})-of-([0-9]{5})\.safetensors$`)

// unindexedShards chooses the shards of a folder without an index.
func unindexedShards(files []string) ([]string, error) {
	if slices.Contains(files, singleName) {
		return []string{singleName}, nil
	}
	if len(files) == 0 {
		return nil, refuse(ErrNoShards, "give the folder that holds the model's .safetensors files", "the folder holds no .safetensors file")
	}
	var set []string
	for _, f := range files {
		if numbered.MatchString(f) {
			set = append(set, f)
		}
	}
	if set == nil {
		return files, nil
	}
	return set, checkNumbers(set)
}

// checkNumbers looks for gaps in 00001-of-00003, 00003-of-00003.
func checkNumbers(set []string) error {
	for _, f := range set {
		part := numbered.FindStringSubmatch(f)
		total, _ := strconv.Atoi(part[3])
		for i := 1; i <= total; i++ {
			want := fmt.Sprintf("%s-%05d-of-%s%s", part[1], i, part[3], suffix)
			if _, ok := slices.BinarySearch(set, want); !ok {
				return fault.In(want, refuse(ErrShardMissing, "download the missing file",
					"the file is not there, though %s says that there are %d", f, total))
			}
		}
	}
	return nil
}

// readShards reads the headers, several at a time: on a network file system each costs a round trip or two.
func (c *Checkpoint) readShards(names []string) []error {
	shards := make([]*Shard, len(names))
	faults := make([]error, len(names))
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, name := range names {
		if faults[i] = checkShardName(name); faults[i] != nil {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			shards[i], faults[i] = openShard(name, filepath.Join(c.Dir, name))
		})
	}
	wg.Wait()

	c.byName = make(map[string]*Shard, len(names))
	var found []error
	for i, s := range shards {
		if faults[i] != nil {
			found = append(found, faults[i])
			continue
		}
		c.Shards = append(c.Shards, s)
		c.byName[s.Name] = s
	}
	return found
}

// checkIndex compares index and headers both ways. Entries whose shard could not be read are passed over, since the shard was reported.
func (c *Checkpoint) checkIndex() []error {
	var found []error
	agreed := 0
	for _, s := range c.Shards {
		for _, t := range s.Header.Tensors {
			home, ok := c.WeightMap[t.Name]
			if ok && home == s.Name {
				agreed++
				continue
			}
			found = append(found, c.strayTensor(s, t.Name, home))
		}
	}
	if agreed == len(c.WeightMap) {
		return found
	}
	for _, name := range c.Names() {
		home, ok := c.byName[c.WeightMap[name]]
		if !ok {
			continue
		}
		if _, ok := home.Header.Lookup(name); ok {
			continue
		}
		if _, _, elsewhere := c.find(name); !elsewhere { // else it was reported as a stray
			found = append(found, fault.In(home.Name, inTensor(name, refuse(ErrTensorMissing, hintIndex,
				"the index says that this tensor is here, but no shard has it"))))
		}
	}
	return found
}

const hintIndex = "index and shards come from different versions; download both again"

// strayTensor says what is wrong with a tensor found in s, where the index does not have it; home is where the index has it, "" for nowhere.
func (c *Checkpoint) strayTensor(s *Shard, name, home string) error {
	var e *fault.Error
	switch other := c.byName[home]; {
	case home == "":
		e = refuse(ErrNotInIndex, hintIndex, "the tensor is in this shard, but not in the index")
	case other != nil && other.has(name):
		e = refuse(ErrTwoShards, hintIndex, "the tensor is in two shards, here and in %s, where the index has it", home)
	default:
		e = refuse(ErrWrongShard, hintIndex, "the tensor is in this shard, but the index says %s", home)
	}
	return fault.In(s.Name, inTensor(name, e))
}

func (s *Shard) has(name string) bool {
	_, ok := s.Header.Lookup(name)
	return ok
}

// checkDuplicates looks for tensors that stand in two shards, where no index says which one counts.
func (c *Checkpoint) checkDuplicates() []error {
	if len(c.Shards) < 2 {
		return nil
	}
	var found []error
	home := map[string]*Shard{}
	for _, s := range c.Shards {
		for _, t := range s.Header.Tensors {
			if first, ok := home[t.Name]; ok {
				found = append(found, fault.In(s.Name, inTensor(t.Name, refuse(ErrTwoShards,
					"without an index nothing says which one counts; remove the file that is no part of the model",
					"the tensor is in two shards, here and in %s", first.Name))))
				continue
			}
			home[t.Name] = s
		}
	}
	return found
}

// Lookup finds a tensor and its shard: the one that the index names, where there is an index.
func (c *Checkpoint) Lookup(name string) (*Shard, Tensor, bool) {
	if c.WeightMap == nil {
		return c.find(name)
	}
	s, ok := c.byName[c.WeightMap[name]]
	if !ok {
		return nil, Tensor{}, false
	}
	t, ok := s.Header.Lookup(name)
	return s, t, ok
}

// find looks for a tensor in every shard.
func (c *Checkpoint) find(name string) (*Shard, Tensor, bool) {
	for _, s := range c.Shards {
		if t, ok := s.Header.Lookup(name); ok {
			return s, t, true
		}
	}
	return nil, Tensor{}, false
}

// Names returns the names of all tensors, sorted: those of the index, where there is one.
func (c *Checkpoint) Names() []string {
	names := make([]string, 0, len(c.WeightMap))
	if c.WeightMap != nil {
		for name := range c.WeightMap {
			names = append(names, name)
		}
	} else {
		for _, s := range c.Shards {
			for _, t := range s.Header.Tensors {
				names = append(names, t.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// ReadTensor reads the bytes of one tensor into memory; meant for small ones.
func (c *Checkpoint) ReadTensor(name string) ([]byte, error) {
	s, t, ok := c.Lookup(name)
	if !ok {
		return nil, inTensor(name, refuse(ErrUnknownTensor, "", "the checkpoint has no such tensor"))
	}
	return s.ReadTensor(t)
}

// TotalSize returns total_size of the index, which should be the bytes of all tensors, and false where the index does not say.
func (c *Checkpoint) TotalSize() (uint64, bool) { return totalSize(c.IndexMetadata) }
