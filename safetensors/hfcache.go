package safetensors

import (
	"errors"
	"io"
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

// splitSnapshot finds cache, repository and revision in the path of a snapshot or of something inside one.
func splitSnapshot(abs string) (cache, repo, revision string, ok bool) {
	for dir := abs; ; {
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", "", "", false
		}
		repoDir := filepath.Dir(parent)
		name, isRepo := strings.CutPrefix(filepath.Base(repoDir), modelsPrefix)
		if filepath.Base(parent) == snapshotsName && isRepo {
			return filepath.Dir(repoDir), strings.Replace(name, "--", "/", 1), filepath.Base(dir), true
		}
		dir = parent
	}
}

// resolveInCache resolves org/name and org/name@rev.
func resolveInCache(typed, repo, rev string, hasRev bool) (Ref, error) {
	if hasRev && rev == "" {
		return Ref{}, usage(ErrNoSuchRef, "", "%s: no revision after the @", typed)
	}
	cache, err := cacheDir()
	if err != nil {
		return Ref{}, usage(ErrNoSuchRef, "set HF_HUB_CACHE", "%s: no such folder, and the Hugging Face cache cannot be located: %v", typed, err)
	}
	if hasRev {
		return resolveRevision(typed, cache, repo, rev)
	}
	return resolveRevision(typed, cache, repo, "")
}

// resolveBeside resolves a bare revision in the repository of another checkpoint.
func resolveBeside(typed string, beside Ref) (Ref, error) {
	return resolveRevision(typed, beside.cache, beside.Repo, typed)
}

// resolveRevision finds the snapshot of a revision; "" stands for main, or for the only snapshot there is.
func resolveRevision(typed, cache, repo, rev string) (Ref, error) {
	repoDir := filepath.Join(cache, modelsPrefix+strings.ReplaceAll(repo, "/", "--"))
	snapshots, err := listSnapshots(repoDir)
	if err != nil {
		if !isMissing(err) {
			return Ref{}, ioFault(repo, err)
		}
		return Ref{}, usage(errors.Join(ErrNoSuchRef, errNoRepo), "download it first, or set HF_HUB_CACHE to the cache that has it",
			"%s: no such folder, and the Hugging Face cache %s has no %s", typed, cache, repo)
	}
	commit, err := findCommit(typed, repoDir, rev, snapshots)
	if err != nil {
		return Ref{}, err
	}
	dir := filepath.Join(repoDir, snapshotsName, commit)
	return Ref{Typed: typed, Dir: dir, Repo: repo, Revision: commit, cache: cache}, nil
}

func listSnapshots(repoDir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(repoDir, snapshotsName))
	if err != nil {
		return nil, err
	}
	var commits []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			commits = append(commits, e.Name())
		}
	}
	return commits, nil
}

// findCommit tries a full commit, then a branch or tag, then a unique prefix of a commit: git's own order.
func findCommit(typed, repoDir, rev string, snapshots []string) (string, error) {
	if slices.Contains(snapshots, rev) {
		return rev, nil
	}
	named := rev
	if rev == "" {
		named = "main"
	}
	commit, err := readRef(repoDir, named)
	if err != nil {
		return "", err
	}
	switch {
	case commit != "" && slices.Contains(snapshots, commit):
		return commit, nil
	case commit != "":
		return "", unknownRevision(typed, repoDir, snapshots, "%s is commit %s, which is not in the cache", named, commit)
	case rev == "" && len(snapshots) == 1:
		return snapshots[0], nil
	case rev == "":
		return "", unknownRevision(typed, repoDir, snapshots, "the cache has no branch main of it and %d snapshots", len(snapshots))
	}
	return findPrefix(typed, repoDir, rev, snapshots)
}

func findPrefix(typed, repoDir, rev string, snapshots []string) (string, error) {
	if !shortCommit.MatchString(rev) {
		return "", unknownRevision(typed, repoDir, snapshots, "the cache has no revision %q of it", rev)
	}
	var matches []string
	for _, s := range snapshots {
		if strings.HasPrefix(s, strings.ToLower(rev)) {
			matches = append(matches, s)
		}
	}
	switch {
	case len(matches) == 0:
		return "", unknownRevision(typed, repoDir, snapshots, "the cache has no revision %q of it", rev)
	case len(rev) < minPrefix:
		return "", unknownRevision(typed, repoDir, snapshots, "%q has %d characters, expected a commit's first %d or more", rev, len(rev), minPrefix)
	case len(matches) > 1:
		return "", usage(ErrAmbiguousRef, "it may be "+strings.Join(matches, " or "), "%s: %q begins %d commits in the cache", typed, rev, len(matches))
	}
	return matches[0], nil
}

// maxRef is more than any refs file has: a commit has 40 characters.
const maxRef = 1024

// readRef reads the commit that a branch or tag stands for; "" where there is none. A name that leads out of refs is none.
func readRef(repoDir, name string) (string, error) {
	local := filepath.FromSlash(name)
	if !filepath.IsLocal(local) {
		return "", nil
	}
	f, _, err := openRegular(filepath.Join(repoDir, refsName, local))
	if err != nil {
		if isMissing(err) || errors.Is(err, ErrNotAFile) { // a folder: feature, where there is feature/x
			return "", nil
		}
		return "", ioFault(name, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRef))
	if err != nil {
		return "", ioFault(name, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// unknownRevision hints at what the cache does have.
func unknownRevision(typed, repoDir string, snapshots []string, format string, args ...any) *fault.Error {
	e := usage(ErrNoSuchRef, "", "%s: "+format, append([]any{typed}, args...)...)
	known := append(listRefs(repoDir), snapshots...)
	if len(known) == 0 {
		e.Hint = "the cache has no revision of it; download it first"
	} else {
		e.Hint = "the cache has " + strings.Join(known, ", ")
	}
	return e
}

// listRefs lists branches and tags, those with slashes too.
func listRefs(repoDir string) []string {
	root := filepath.Join(repoDir, refsName)
	var names []string
	_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if name, err := filepath.Rel(root, path); err == nil {
				names = append(names, filepath.ToSlash(name))
			}
		}
		return nil
	})
	return names
}
