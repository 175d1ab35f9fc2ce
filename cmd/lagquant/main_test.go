package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/lagquant/lagquant/cuda"
	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/testdata"
	"github.com/lagquant/lagquant/testdata/goldens"
)

// asCommand makes the test binary the command itself, for tests that need a process of their own; peakFile has it leave its peak memory
// in a file.
const (
	asCommand = "LAGQUANT_TEST_AS_COMMAND"
	peakFile  = "LAGQUANT_TEST_PEAK_FILE"
)

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		code := process()
		if path := os.Getenv(peakFile); path != "" {
			if err := os.WriteFile(path, []byte(strconv.FormatInt(peakMemory(), 10)), 0o644); err != nil {
				panic(err)
			}
		}
		os.Exit(code)
	}
	testscript.Main(m, map[string]func(){"lagquant": main})
}

// The scripts are what a user could type. Each finds the tiny checkpoints in $WORK/tiny.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			return testdata.UnpackTinyLaguna(filepath.Join(e.WorkDir, "tiny"))
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Getuid() == 0, nil
			case "gpu":
				devices, err := cuda.Devices()
				return err == nil && len(devices) > 0, nil
			}
			return false, fmt.Errorf("unknown condition %s", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"edit": edit, "cut": cut, "hub": hub, "exits": exits, "scale": scale, "swap": swap, "interrupt": interrupt, "document": document,
		},
	})
}

// edit FILE OLD NEW replaces a text that stands once in a file.
func edit(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	if n := strings.Count(string(b), args[1]); n != 1 {
		ts.Fatalf("%s: %q stands there %d times", args[0], args[1], n)
	}
	ts.Check(os.WriteFile(path, []byte(strings.Replace(string(b), args[1], args[2], 1)), 0o644))
}

// hub CHECKPOINT CACHE REPO COMMIT REF puts a checkpoint into a Hugging Face cache the way that its client does: files under blobs, links
// to them in the snapshot, the commit with a newline in refs. A REPO with a "+" in front gets plain files, as on Windows.
func hub(ts *testscript.TestScript, _ bool, args []string) {
	repo, plain := strings.CutPrefix(args[2], "+")
	root := filepath.Join(ts.MkAbs(args[1]), "models--"+strings.ReplaceAll(repo, "/", "--"))
	snapshot := filepath.Join(root, "snapshots", args[3])
	for _, dir := range []string{snapshot, filepath.Join(root, "blobs"), filepath.Join(root, "refs")} {
		ts.Check(os.MkdirAll(dir, 0o755))
	}
	ts.Check(os.WriteFile(filepath.Join(root, "refs", args[4]), []byte(args[3]+"\n"), 0o644))
	entries, err := os.ReadDir(ts.MkAbs(args[0]))
	ts.Check(err)
	for _, e := range entries {
		from := filepath.Join(ts.MkAbs(args[0]), e.Name())
		if plain {
			ts.Check(os.Rename(from, filepath.Join(snapshot, e.Name())))
			continue
		}
		blob := args[3][:8] + "-" + e.Name()
		ts.Check(os.Rename(from, filepath.Join(root, "blobs", blob)))
		ts.Check(os.Symlink(filepath.Join("..", "..", "blobs", blob), filepath.Join(snapshot, e.Name())))
	}
}

// exits CODE COMMAND... runs a command that must end with that code.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, expected %s", code, args[0])
	}
}

// cut FILE leaves out the last 100 bytes of a file.
func cut(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	info, err := os.Stat(path)
	ts.Check(err)
	ts.Check(os.Truncate(path, info.Size()-100))
}

// scale DIR TENSOR FACTOR multiplies a float32 scalar of a checkpoint; with the factor "inverse" its inverse takes its place.
func scale(ts *testscript.TestScript, _ bool, args []string) {
	rewrite(ts, args[0], func(read func(string) []byte) map[string][]byte {
		v := math.Float32frombits(binary.LittleEndian.Uint32(read(args[1])))
		if args[2] == "inverse" {
			v = 1 / v
		} else {
			factor, err := strconv.ParseFloat(args[2], 32)
			ts.Check(err)
			v *= float32(factor)
		}
		return map[string][]byte{args[1]: binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))}
	})
}

// swap DIR MODULE MODULE lets two NVFP4 modules of a checkpoint change places.
func swap(ts *testscript.TestScript, _ bool, args []string) {
	rewrite(ts, args[0], func(read func(string) []byte) map[string][]byte {
		b := map[string][]byte{}
		for _, kind := range []string{".weight_packed", ".weight_scale", ".weight_global_scale", ".input_global_scale"} {
			b[args[1]+kind], b[args[2]+kind] = read(args[2]+kind), read(args[1]+kind)
		}
		return b
	})
}

// rewrite puts other bytes in the place of some tensors.
func rewrite(ts *testscript.TestScript, dir string, change func(read func(string) []byte) map[string][]byte) {
	ckpt, err := safetensors.OpenCheckpoint(ts.MkAbs(dir))
	ts.Check(err)
	for name, b := range change(func(name string) []byte {
		b, err := ckpt.ReadTensor(name)
		ts.Check(err)
		return b
	}) {
		shard, tensor, _ := ckpt.Lookup(name)
		f, err := os.OpenFile(shard.Path, os.O_WRONLY, 0)
		ts.Check(err)
		_, err = f.WriteAt(b, shard.Header.DataStart+int64(tensor.Begin))
		ts.Check(errors.Join(err, f.Close()))
	}
}

// interrupt STDERR COMMAND... stops a command when it has begun to print: it must end with exit code 130 and say what STDERR matches.
func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	self, err := os.Executable() // os.Args[0] may be relative to another folder
	ts.Check(err)
	c := command(args[2:]...)
	c.Path, c.Dir = self, ts.MkAbs(".")
	var stderr strings.Builder
	c.Stderr = &stderr
	stdout, err := c.StdoutPipe()
	ts.Check(err)
	ts.Check(c.Start())
	_, err = stdout.Read(make([]byte, 1))
	ts.Check(err)
	ts.Check(c.Process.Signal(os.Interrupt))
	_, err = io.Copy(io.Discard, stdout)
	ts.Check(err)
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != exitInterrupted || !regexp.MustCompile(args[0]).MatchString(stderr.String()) {
		ts.Fatalf("exit code %d: %s", code, stderr.String())
	}
}

// document FIELD... looks at what the last command printed: it must be one JSON document with these fields, each as a.0.b or a.0.b=VALUE.
func document(ts *testscript.TestScript, _ bool, args []string) {
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	var doc any
	ts.Check(d.Decode(&doc))
	if _, err := d.Token(); err != io.EOF {
		ts.Fatalf("something stands after the document")
	}
	for _, field := range args {
		path, want, exact := strings.Cut(field, "=")
		at, ok := doc, true
		for step := range strings.SplitSeq(path, ".") {
			switch v := at.(type) {
			case map[string]any:
				at, ok = v[step]
			case []any:
				i, err := strconv.Atoi(step)
				if ok = err == nil && i < len(v); ok {
					at = v[i]
				}
			default:
				ok = false
			}
			if !ok {
				ts.Fatalf("the document has no %s: nothing at %s", path, step)
			}
		}
		if exact && fmt.Sprint(at) != want {
			ts.Fatalf("%s is %v, expected %s", path, at, want)
		}
	}
}

func command(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), asCommand+"=1")
	return c
}

// peakOf reads what a command left in its peak file.
func peakOf(t *testing.T, path string) int64 {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	peak, err := strconv.ParseInt(string(b), 10, 64)
	require.NoError(t, err)
	return peak
}

func digests(t *testing.T, dir string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		sum := sha256.Sum256(b)
		name, _ := filepath.Rel(dir, path)
		sums[name] = hex.EncodeToString(sum[:])
		return err
	}))
	return sums
}

// Killed at fifty random moments and started again each time, the job ends with the same bytes, and at no moment does the output look
// whole before it is.
func TestKilledAtRandomMoments(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	job := func(out string, jobs string) *exec.Cmd {
		return command("requantize", filepath.Join(dir, "nvfp4-0801"), "--layers", "6-7", "--input-scales", filepath.Join(dir, "nvfp4-0722"),
			"--out", out, "--jobs", jobs, "--progress", "none")
	}
	whole := filepath.Join(dir, "whole")
	began := time.Now()
	output, err := job(whole, "2").CombinedOutput()
	require.NoError(t, err, string(output))
	took := time.Since(began)
	want := digests(t, whole)

	seed := rand.Uint64()
	t.Logf("seed %d, an undisturbed run took %v", seed, took)
	random := rand.New(rand.NewPCG(seed, 0))
	killed, runs := 0, 0
	for killed < 50 {
		out := filepath.Join(t.TempDir(), "out")
		for {
			runs++
			require.Less(t, runs, 1000, "the job is never killed: it ends before the blow falls")
			c := job(out, []string{"1", "2", "7"}[runs%3])
			require.NoError(t, c.Start())
			blow := time.AfterFunc(time.Duration(random.Int64N(int64(took)*5/4)), func() { _ = c.Process.Kill() })
			err := c.Wait()
			blow.Stop()
			if err == nil {
				break
			}
			require.Equal(t, -1, c.ProcessState.ExitCode(), "it ended by the signal and by nothing else")
			killed++
			if _, err := os.Stat(filepath.Join(out, "config.json")); err == nil {
				require.NoError(t, os.RemoveAll(filepath.Join(out, ".lagquant")), "config.json comes last: all the rest is there")
				require.Equal(t, want, digests(t, out))
				break
			}
		}
		require.Equal(t, want, digests(t, out))
	}
	t.Logf("%d runs, %d of them killed", runs, killed)
}

// An interrupt stops cleanly, says how to go on, and exits with 130.
func TestInterrupt(t *testing.T) {
	dir := goldens.TinyLaguna(t)
	for range 200 {
		out := filepath.Join(t.TempDir(), "out")
		c := command("requantize", filepath.Join(dir, "nvfp4-0801"), "--input-scales", filepath.Join(dir, "nvfp4-0722"), "--out", out, "--json")
		var stdout, stderr strings.Builder
		c.Stdout, c.Stderr = &stdout, &stderr
		require.NoError(t, c.Start())
		for i := 0; i < 1000; i++ { // the first shard is there: the job is in the middle
			if shards, _ := filepath.Glob(filepath.Join(out, "*.safetensors")); len(shards) > 0 {
				break
			}
			time.Sleep(50 * time.Microsecond)
		}
		require.NoError(t, c.Process.Signal(os.Interrupt))
		if c.Wait() == nil {
			continue // it was quicker than the signal
		}
		if c.ProcessState.ExitCode() == -1 {
			continue // the signal came before the program listened or while it was ending
		}
		require.Equal(t, 130, c.ProcessState.ExitCode(), stderr.String())
		require.Contains(t, stderr.String(), "lagquant: interrupted\nlagquant: hint: finished shards are kept")
		require.Contains(t, stdout.String(), `"exit": 130`)
		output, err := command("verify", out).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(output), "is the unfinished output of lagquant requantize")
		return
	}
	t.Fatal("no run could be interrupted in its middle")
}
