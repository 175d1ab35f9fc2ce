package pipeline

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/lagquant/lagquant/quant"
)

// journal remembers the finished units of an unfinished job: a line of JSON each, synced after the unit's shard has its final name.
// A line that a crash cut short does not count.
type journal struct {
	mu   sync.Mutex
	file *os.File
	done map[string]*unitResult // by shard
}

// unitResult is what the manifest and the summary need to know of a finished unit.
type unitResult struct {
	Shard   string            `json:"shard"`
	Size    int64             `json:"size"`
	SHA256  string            `json:"sha256"`
	Tensors map[string]string `json:"tensors"` // digest of each tensor's bytes
	Errors  quant.Errors      `json:"errors"`
	// Measured is the number of modules that Errors are of.
	Measured int     `json:"measured"`
	Inputs   string  `json:"inputs"` // digest of the input scales in it, which may come from a donor
	Read     []stamp `json:"read"`   // the source files that went into it
}

// stamp tells a file's contents apart from later ones without reading them.
type stamp struct {
	File     string `json:"file"` // as the checkpoint calls it
	Size     int64  `json:"size"`
	Modified int64  `json:"modified_ns"`
}

func stampOf(name, path string) (stamp, error) {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	return stamp{name, info.Size(), info.ModTime().UnixNano()}, nil
}

// lockOutput takes the output folder for this process, making it and its work folder where they are missing.
func lockOutput(out string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Join(out, workDir), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(out, workDir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if free, err := lock(f); err != nil || !free {
		f.Close()
		if err == nil {
			err = &fault.Error{Kind: fault.Usage, File: out, Problem: "another lagquant is working on this output", Hint: "wait for it, or name another --out"}
		}
		return nil, err
	}
	return f, nil
}

// openJournal reads what an earlier run of the same plan finished, and goes on from there.
func openJournal(out string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(out, workDir, "journal"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	j := &journal{file: f, done: map[string]*unitResult{}}
	whole, err := j.replay()
	if err == nil {
		err = f.Truncate(whole) // what a crash cut short would spoil the next line
	}
	if err == nil {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// replay returns the length of the part of the file that is whole lines.
func (j *journal) replay() (whole int64, err error) {
	r := bufio.NewReader(j.file)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return whole, err
		}
		var u unitResult
		if json.Unmarshal(line, &u) != nil {
			return whole, nil
		}
		j.done[u.Shard] = &u
		whole += int64(len(line))
	}
}

// finished says whether a unit's result still stands: the output file is there in full, its input scales are still the same and none of the
// source files has changed since.
func (j *journal) finished(out, shard, inputs string, paths map[string]string) bool {
	u := j.done[shard]
	if u == nil || u.Inputs != inputs {
		return false
	}
	if info, err := os.Lstat(filepath.Join(out, shard)); err != nil || !info.Mode().IsRegular() || info.Size() != u.Size {
		return false
	}
	for _, was := range u.Read {
		if now, err := stampOf(was.File, paths[was.File]); err != nil || now != was {
			return false
		}
	}
	return true
}

// record makes a finished unit last.
func (j *journal) record(u *unitResult) error {
	line, err := json.Marshal(u)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done[u.Shard] = u
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return j.file.Sync()
}

func (j *journal) close() error { return j.file.Close() }
