package safetensors

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
)

// The Hugging Face cache, as much of it as reading needs:
//
//	models--org--name/refs/main            the commit that a branch or tag stands for
//	models--org--name/snapshots/<commit>/  the files of a commit: links into ../../blobs, or plain files where links are not to be had
//
// It may be read-only or shared, so that no lock is taken, though its own library would.
const (
	modelsPrefix  = "models--"
	snapshotsName = "snapshots"
	refsName      = "refs"

	minPrefix = 7 // least length of a shortened commit
)

// errNoRepo tells a repository that is not in the cache from a revision that is not.
var errNoRepo = errors.New("no such repository in the cache")

var shortCommit = regexp.MustCompile(`^[0-9a-fA-F]{1,40}$`)

// cacheDir is where the hub's library keeps its cache: HF_HUB_CACHE, HF_HOME/hub, or huggingface/hub below XDG_CACHE_HOME or ~/.cache.
func cacheDir() (string, error) {
	home, err := os.UserHomeDir()
	expand := func(dir string) string {
		if rest, ok := strings.CutPrefix(dir, "~"); ok && (rest == "" || os.IsPathSeparator(rest[0])) && err == nil {
			return home + rest
		}
		return dir
	}
	if dir := os.Getenv("HF_HUB_CACHE"); dir != "" {
		return expand(dir), nil
	}
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return filepath.Join(expand(dir), "hub"), nil
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return filepath.Join(expand(dir), "huggingface", "hub"), nil
	}
	return filepath.Join(home, ".cache", "huggingface", "hub"), err
}

// place is where in a cache a snapshot lies; empty for a folder that is in none.
type place struct{ cache, repo, revision string }

// findSnapshot places a folder by its path, or by the path that its links lead to.
func findSnapshot(dir string) place {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return place{}
	}
	if at := splitSnapshot(abs); at.repo != "" {
		return at
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return place{}
	}
	return splitSnapshot(abs)
}

// splitSnapshot places a snapshot, or something inside one, by its path alone.
func splitSnapshot(abs string) place {
	for dir, parent := abs, filepath.Dir(abs); dir != parent; dir, parent = parent, filepath.Dir(parent) {
		repoDir := filepath.Dir(parent)
		name, isRepo := strings.CutPrefix(filepath.Base(repoDir), modelsPrefix)
		if isRepo && filepath.Base(parent) == snapshotsName {
			return place{filepath.Dir(repoDir), strings.Replace(name, "--", "/", 1), filepath.Base(dir)}
		}
	}
	return place{}
}

// cachedRepo is a repository in a cache, and what the user typed to name a revision of it.
type cachedRepo struct {
	typed     string
	name      string // org/name
	dir       string
	snapshots []string // commits, sorted
}

// openRepo fails around errNoRepo where the cache does not have the repository.
func openRepo(typed, cache, name string) (*cachedRepo, error) {
	r := &cachedRepo{typed: typed, name: name, dir: filepath.Join(cache, modelsPrefix+strings.ReplaceAll(name, "/", "--"))}
	entries, err := os.ReadDir(filepath.Join(r.dir, snapshotsName))
	if isMissing(err) {
		return nil, usage(errors.Join(ErrNoSuchRef, errNoRepo), "download it first, or set HF_HUB_CACHE to the cache that has it",
			"%s: no such folder, and the Hugging Face cache %s has no %s", typed, cache, name)
	}
	if err != nil {
		return nil, ioFault(r.dir, err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			r.snapshots = append(r.snapshots, e.Name())
		}
	}
	return r, nil
}

// resolve finds the snapshot of a commit, a branch or tag, or a unique prefix of a commit, tried in git's own order.
func (r *cachedRepo) resolve(rev string) (Ref, error) {
	if slices.Contains(r.snapshots, rev) {
		return r.snapshot(rev), nil
	}
	commit, err := r.readRef(rev)
	switch {
	case err != nil:
		return Ref{}, err
	case commit == "":
		return r.resolvePrefix(rev)
	case !slices.Contains(r.snapshots, commit):
		return Ref{}, r.unknown("%s of %s is commit %s, which is not in the cache", rev, r.name, commit)
	}
	return r.snapshot(commit), nil
}

// resolveDefault finds main, or the only snapshot there is.
func (r *cachedRepo) resolveDefault() (Ref, error) {
	commit, err := r.readRef("main")
	switch {
	case err != nil:
		return Ref{}, err
	case commit != "":
		return r.resolve("main")
	case len(r.snapshots) != 1:
		return Ref{}, r.unknown("the cache has %d snapshots of it and no branch main that would choose one", len(r.snapshots))
	}
	return r.snapshot(r.snapshots[0]), nil
}

func (r *cachedRepo) resolvePrefix(rev string) (Ref, error) {
	var matches []string
	if shortCommit.MatchString(rev) {
		for _, s := range r.snapshots {
			if strings.HasPrefix(s, strings.ToLower(rev)) {
				matches = append(matches, s)
			}
		}
	}
	switch {
	case len(matches) == 0:
		return Ref{}, r.unknown("the cache has no revision %q of %s", rev, r.name)
	case len(rev) < minPrefix:
		return Ref{}, r.unknown("%q has %d characters, expected the first %d or more of a commit", rev, len(rev), minPrefix)
	case len(matches) > 1:
		return Ref{}, usage(ErrAmbiguousRef, "it may be "+strings.Join(matches, " or "),
			"%s: %q begins %d commits in the cache", r.typed, rev, len(matches))
	}
	return r.snapshot(matches[0]), nil
}

func (r *cachedRepo) snapshot(commit string) Ref {
	return Ref{Typed: r.typed, Dir: filepath.Join(r.dir, snapshotsName, commit), Repo: r.name, Revision: commit}
}

// maxRef is more than any refs file has: a commit has 40 characters.
const maxRef = 1024

// readRef reads the commit that a branch or tag stands for; "" where there is none. A name that leads out of refs is none.
func (r *cachedRepo) readRef(name string) (string, error) {
	local := filepath.FromSlash(name)
	if !filepath.IsLocal(local) {
		return "", nil
	}
	f, _, err := openRegular(filepath.Join(r.dir, refsName, local))
	if isMissing(err) || errors.Is(err, ErrNotAFile) { // a folder: feature, where there is feature/x
		return "", nil
	}
	if err != nil {
		return "", ioFault(name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRef))
	if err != nil {
		return "", ioFault(name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// unknown makes the error for a revision that is not there, with a hint at those that are.
func (r *cachedRepo) unknown(format string, args ...any) *fault.Error {
	e := usage(ErrNoSuchRef, "", "%s: "+format, append([]any{r.typed}, args...)...)
	if known := append(r.branches(), r.snapshots...); len(known) > 0 {
		e.Hint = "the cache has " + strings.Join(known, ", ")
	} else {
		e.Hint = "download it first"
	}
	return e
}

// branches lists branches and tags, those with slashes too.
func (r *cachedRepo) branches() []string {
	root := filepath.Join(r.dir, refsName)
	var names []string
	_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if name, err := filepath.Rel(root, path); err == nil {
				names = append(names, filepath.ToSlash(name))
			}
		}
		return nil
	})
	return names
}
