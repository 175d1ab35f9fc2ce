package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/lagquant/lagquant/internal/fault"
)

// Ref is a checkpoint as the user named it and where it lies. Repo and Revision (the full commit) are set where that is inside a Hugging Face
// cache, also when it was named by its path.
type Ref struct {
	Typed    string
	Dir      string
	Repo     string
	Revision string

	cache string // the cache that holds the repository
}

// String names the checkpoint so that it can be found again: org/name@commit, or the path.
func (r Ref) String() string {
	if r.Repo != "" {
		return r.Repo + "@" + r.Revision
	}
	return r.Dir
}

var (
	repoName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)
	drive    = regexp.MustCompile(`^[A-Za-z]:`)
	remote   = regexp.MustCompile(`^[a-z0-9]+://`)
)

// ResolveRef finds the checkpoint that typed names: a folder; org/name or org/name@rev in the Hugging Face cache; or a bare rev, which is the
// same repository as beside, the command's other checkpoint, at that revision. A folder that exists always wins, whatever its name looks like.
//
// Nothing is written, locked or downloaded. What cannot be found is a *fault.Error around ErrNoSuchRef or ErrAmbiguousRef.
func ResolveRef(typed string, beside *Ref) (Ref, error) {
	info, err := os.Stat(typed)
	switch {
	case err == nil && !info.IsDir():
		return Ref{}, usage(ErrNoSuchRef, "name the folder that holds config.json and the .safetensors files", "%s: is a file, expected a folder", typed)
	case err == nil:
		return refOfDir(typed), nil
	case !isMissing(err):
		return Ref{}, ioFault(typed, err)
	case remote.MatchString(typed):
		return Ref{}, usage(ErrNoSuchRef, "download the checkpoint and name its folder", "%s: remote checkpoints are not supported", typed)
	case looksLikePath(typed):
		return Ref{}, noSuchFolder(typed)
	}
	repo, rev, hasRev := strings.Cut(typed, "@")
	if repoName.MatchString(repo) {
		ref, err := resolveInCache(typed, repo, rev, hasRev)
		if err == nil || hasRev || beside == nil || beside.Repo == "" || !errors.Is(err, errNoRepo) {
			return ref, err
		}
		if ref, besideErr := resolveBeside(typed, *beside); besideErr == nil { // a branch such as feature/x
			return ref, nil
		}
		return Ref{}, err
	}
	if hasRev || typed == "" {
		return Ref{}, noSuchFolder(typed)
	}
	if beside == nil || beside.Repo == "" {
		err := noSuchFolder(typed)
		err.Hint = "a revision alone needs another checkpoint of the command to lie in a Hugging Face cache; else type org/name@" + typed
		return Ref{}, err
	}
	return resolveBeside(typed, *beside)
}

// looksLikePath tells what can only be meant as a path, so that it is reported as typed and never looked up as a repository or a revision.
func looksLikePath(typed string) bool {
	return strings.HasPrefix(typed, ".") || strings.HasPrefix(typed, "~") || strings.HasPrefix(typed, "/") || strings.HasSuffix(typed, "/") ||
		strings.Contains(typed, `\`) || strings.Contains(typed, "//") || drive.MatchString(typed)
}

func isMissing(err error) bool {
	for _, missing := range []error{fs.ErrNotExist, syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.EINVAL} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}

func noSuchFolder(typed string) *fault.Error {
	return usage(ErrNoSuchRef, "", "%s: no such folder", typed)
}

func usage(cause error, hint, format string, args ...any) *fault.Error {
	return &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf(format, args...), Hint: hint, Err: cause}
}

// refOfDir tells repository and revision of a folder by its path, or by the path that its links lead to.
func refOfDir(dir string) Ref {
	ref := Ref{Typed: dir, Dir: filepath.Clean(dir)}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return ref
	}
	paths := []string{abs}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		paths = append(paths, real)
	}
	for _, p := range paths {
		if cache, repo, revision, ok := splitSnapshot(p); ok {
			ref.cache, ref.Repo, ref.Revision = cache, repo, revision
			break
		}
	}
	return ref
}
