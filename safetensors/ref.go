package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
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
	revision = regexp.MustCompile(`^[A-Za-z0-9._/-]+$`)
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
	if !repoName.MatchString(repo) {
		if hasRev {
			return Ref{}, noSuchFolder(typed)
		}
		return resolveBeside(typed, beside)
	}
	if hasRev {
		return resolveInCache(typed, repo, &rev)
	}
	ref, err := resolveInCache(typed, repo, nil)
	if errors.Is(err, errNoRepo) {
		if branch, err := resolveBeside(typed, beside); err == nil { // feature/x
			return branch, nil
		}
	}
	return ref, err
}

// resolveBeside resolves a bare revision in the repository of another checkpoint.
func resolveBeside(typed string, beside *Ref) (Ref, error) {
	if !revision.MatchString(typed) {
		return Ref{}, noSuchFolder(typed)
	}
	var at place
	if beside != nil {
		at = findSnapshot(beside.Dir)
	}
	if at.repo == "" {
		err := noSuchFolder(typed)
		if !strings.Contains(typed, "/") {
			err.Hint = "a revision alone needs another checkpoint of the command to lie in a Hugging Face cache; else type org/name@" + typed
		}
		return Ref{}, err
	}
	repo, err := openRepo(typed, at.cache, at.repo)
	if err != nil {
		return Ref{}, err
	}
	ref, err := repo.resolve(typed)
	if e, ok := errors.AsType[*fault.Error](err); ok && errors.Is(err, ErrNoSuchRef) {
		if strings.Contains(typed, "/") {
			return Ref{}, noSuchFolder(typed)
		}
		e.Problem = strings.Replace(e.Problem, typed+": ", typed+": no such folder, and ", 1)
	}
	return ref, err
}

// resolveInCache resolves org/name, where rev is nil, and org/name@rev.
func resolveInCache(typed, name string, rev *string) (Ref, error) {
	cache, err := cacheDir()
	if err != nil {
		return Ref{}, usage(ErrNoSuchRef, "set HF_HUB_CACHE", "%s: no such folder, and the Hugging Face cache cannot be located: %v", typed, err)
	}
	repo, err := openRepo(typed, cache, name)
	switch {
	case err != nil:
		return Ref{}, err
	case rev == nil:
		return repo.resolveDefault()
	}
	return repo.resolve(*rev)
}

// looksLikePath tells what can only be meant as a path, so that it is reported as typed: ./main is never the branch main.
func looksLikePath(typed string) bool {
	return typed != "" && (path.Clean(typed) != typed || strings.HasPrefix(typed, "."))
}

func isMissing(err error) bool {
	for _, missing := range []error{fs.ErrNotExist, syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.EINVAL} {
		if errors.Is(err, missing) {
			return true
		}
	}
	return false
}

const hintRef = "a checkpoint is named by its folder, or by org/name@revision in the Hugging Face cache"

func noSuchFolder(typed string) *fault.Error {
	return usage(ErrNoSuchRef, hintRef, "%s: no such folder", typed)
}

func usage(cause error, hint, format string, args ...any) *fault.Error {
	return &fault.Error{Kind: fault.Usage, Problem: fmt.Sprintf(format, args...), Hint: hint, Err: cause}
}

// refOfDir tells repository and revision of a folder by where it lies.
func refOfDir(dir string) Ref {
	at := findSnapshot(dir)
	return Ref{Typed: dir, Dir: filepath.Clean(dir), Repo: at.repo, Revision: at.revision}
}
