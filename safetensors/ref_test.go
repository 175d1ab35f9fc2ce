package safetensors

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lagquant/lagquant/internal/fault"
	"github.com/stretchr/testify/require"
)

const (
	commitA = "07614121b3c0de000000000000000000000000aa"
	commitB = "07614121b3ff00000000000000000000000000bb" // shares ten characters with A
	commitC = "c7a9f1d2e3b4a5968778695a4b3c2d1e0f102132"
	lagunaS = "poolside/Laguna-S"
)

// fakeCache makes a Hugging Face cache and points the environment at it.
func fakeCache(t *testing.T) string {
	t.Helper()
	cache := t.TempDir()
	repo := filepath.Join(cache, "models--poolside--Laguna-S")
	for _, commit := range []string{commitA, commitB, commitC} {
		writeFile(t, filepath.Join(repo, "snapshots", commit, "config.json"), "{}")
	}
	writeFile(t, filepath.Join(repo, "refs", "main"), commitC+"\n")
	writeFile(t, filepath.Join(repo, "refs", "v1.0"), commitA)
	writeFile(t, filepath.Join(repo, "refs", "refs", "pr", "7"), commitB+"\r\n")
	writeFile(t, filepath.Join(repo, "refs", "gone"), strings.Repeat("9", 40))
	writeFile(t, filepath.Join(repo, "refs", "c7a9f1d"), commitA) // a branch that looks like a commit: git takes the branch
	writeFile(t, filepath.Join(repo, "refs", "feature", "x"), commitB)
	writeFile(t, filepath.Join(cache, "models--org--odd", "snapshots", "local-build", "config.json"), "{}")
	writeFile(t, filepath.Join(cache, "models--org--odd", "snapshots", "other", "config.json"), "{}")
	writeFile(t, filepath.Join(cache, "models--org--single", "snapshots", commitA, "config.json"), "{}")
	writeFile(t, filepath.Join(cache, "models--org--many", "snapshots", commitA, "config.json"), "{}")
	writeFile(t, filepath.Join(cache, "models--org--many", "snapshots", commitC, "config.json"), "{}")
	require.NoError(t, os.MkdirAll(filepath.Join(cache, "models--org--none", "snapshots"), 0o755))
	t.Setenv("HF_HUB_CACHE", cache)
	t.Chdir(t.TempDir())
	return cache
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func TestResolveRefInTheCache(t *testing.T) {
	cache := fakeCache(t)
	snapshot := func(commit string) string {
		return filepath.Join(cache, "models--poolside--Laguna-S", "snapshots", commit)
	}
	beside, err := ResolveRef(snapshot(commitC), nil)
	require.NoError(t, err)
	require.Equal(t, lagunaS, beside.Repo)
	require.Equal(t, commitC, beside.Revision)

	for typed, c := range map[string]struct {
		beside *Ref
		commit string
	}{
		lagunaS:                              {nil, commitC},
		lagunaS + "@main":                    {nil, commitC},
		lagunaS + "@v1.0":                    {nil, commitA},
		lagunaS + "@refs/pr/7":               {nil, commitB},
		lagunaS + "@feature/x":               {nil, commitB},
		lagunaS + "@" + commitB:              {nil, commitB},
		lagunaS + "@07614121b3c":             {nil, commitA},
		lagunaS + "@07614121B3FF":            {nil, commitB},
		lagunaS + "@c7a9f1d":                 {nil, commitA},
		lagunaS + "@c7a9f1d2":                {nil, commitC},
		"07614121b3c":                        {&beside, commitA},
		"main":                               {&beside, commitC},
		"v1.0":                               {&beside, commitA},
		commitB:                              {&beside, commitB},
		"feature/x":                          {&beside, commitB},
		"refs/pr/7":                          {&beside, commitB},
		"org/single":                         {nil, commitA},
		"org/odd@local-build":                {nil, "local-build"},
		snapshot(commitA):                    {nil, commitA},
		snapshot(commitA) + "/":              {nil, commitA},
		snapshot(commitA) + "/../" + commitB: {nil, commitB},
	} {
		t.Run(typed, func(t *testing.T) {
			ref, err := ResolveRef(typed, c.beside)
			require.NoError(t, err)
			require.Equal(t, typed, ref.Typed)
			if repo, _, _ := strings.Cut(typed, "@"); strings.HasPrefix(repo, "org/") {
				require.Equal(t, repo+"@"+c.commit, ref.String())
				return
			}
			require.Equal(t, snapshot(c.commit), ref.Dir)
			require.Equal(t, lagunaS+"@"+c.commit, ref.String())
		})
	}
}

func TestResolveRefPaths(t *testing.T) {
	cache := fakeCache(t)
	for _, name := range []string{"model", "a[b]*", "main", "org/name", "org/name@main", "poolside/Laguna-S", "~x", "x@y"} {
		require.NoError(t, os.MkdirAll(filepath.FromSlash(name), 0o755))
		beside := Ref{Dir: filepath.Join(cache, "models--poolside--Laguna-S", "snapshots", commitC)}
		for _, b := range []*Ref{nil, &beside} {
			ref, err := ResolveRef(name, b)
			require.NoError(t, err)
			require.Equal(t, Ref{Typed: name, Dir: filepath.FromSlash(name)}, ref, "a folder that exists wins")
		}
	}
	ref, err := ResolveRef("a[b]*/..//model/", nil)
	require.NoError(t, err)
	require.Equal(t, "model", ref.Dir)

	inside := filepath.Join(cache, "models--poolside--Laguna-S", "snapshots", commitA)
	require.NoError(t, os.Mkdir(filepath.Join(inside, "sub"), 0o755))
	ref, err = ResolveRef(filepath.Join(inside, "sub"), nil)
	require.NoError(t, err)
	require.Equal(t, lagunaS+"@"+commitA, ref.String())

	t.Chdir(inside)
	ref, err = ResolveRef(".", nil)
	require.NoError(t, err)
	require.Equal(t, Ref{Typed: ".", Dir: ".", Repo: lagunaS, Revision: commitA}, ref)
	ref, err = ResolveRef("main", &ref)
	require.NoError(t, err)
	require.Equal(t, commitC, ref.Revision)

	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(inside, link); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	ref, err = ResolveRef(link, nil)
	require.NoError(t, err)
	require.Equal(t, link, ref.Dir)
	require.Equal(t, lagunaS+"@"+commitA, ref.String())
}

func TestResolveRefRefuses(t *testing.T) {
	cache := fakeCache(t)
	beside := &Ref{Dir: filepath.Join(cache, "models--poolside--Laguna-S", "snapshots", commitC)}
	known := "the cache has c7a9f1d, feature/x, gone, main, refs/pr/7, v1.0, " + strings.Join([]string{commitA, commitB, commitC}, ", ")
	writeFile(t, "file", "")
	for _, c := range []struct {
		typed   string
		beside  *Ref
		problem string
		hint    string
	}{
		{"", nil, ": no such folder", hintRef},
		{"./x", beside, "./x: no such folder", hintRef},
		{"../main", beside, "../main: no such folder", hintRef},
		{"/no/such", nil, "/no/such: no such folder", hintRef},
		{"./main", beside, "./main: no such folder", hintRef},
		{".main", beside, ".main: no such folder", hintRef},
		{"/main", beside, "/main: no such folder", hintRef},
		{"main/", beside, "main/: no such folder", hintRef},
		{"feature//x", beside, "feature//x: no such folder", hintRef},
		{"feature/../main", beside, "feature/../main: no such folder", hintRef},
		{"x/", beside, "x/: no such folder", hintRef},
		{"x//y", nil, "x//y: no such folder", hintRef},
		{"~/x", nil, "~/x: no such folder", hintRef},
		{"x/y/z", nil, "x/y/z: no such folder", hintRef},
		{"x/y/z", beside, "x/y/z: no such folder", hintRef},
		{"x/y/z@main", nil, "x/y/z@main: no such folder", hintRef},
		{`x\y`, nil, `x\y: no such folder`, hintRef},
		{"C:/x", nil, "C:/x: no such folder", hintRef},
		{"org/na*me", nil, "org/na*me: no such folder", hintRef},
		{"a\x00b", nil, `a\x00b: no such folder`, hintRef},
		{"file", nil, "file: is a file, expected a folder", "name the folder that holds config.json and the .safetensors files"},
		{"file/x", nil, "file/x: no such folder, and the Hugging Face cache " + cache + " has no file/x", "download it first, or set HF_HUB_CACHE to the cache that has it"},
		{"hf://org/name", nil, "hf://org/name: remote checkpoints are not supported", "download the checkpoint and name its folder"},
		{"main", nil, "main: no such folder", "a revision alone needs another checkpoint of the command to lie in a Hugging Face cache; else type org/name@main"},
		{"org/name", beside, "org/name: no such folder, and the Hugging Face cache " + cache + " has no org/name", "download it first, or set HF_HUB_CACHE to the cache that has it"},
		{"org/name@main", nil, "org/name@main: no such folder, and the Hugging Face cache " + cache + " has no org/name", "download it first, or set HF_HUB_CACHE to the cache that has it"},
		{lagunaS + "@", nil, lagunaS + `@: the cache has no revision "" of ` + lagunaS, known},
		{lagunaS + "@nope", nil, lagunaS + `@nope: the cache has no revision "nope" of ` + lagunaS, known},
		{"nope", beside, `nope: no such folder, and the cache has no revision "nope" of ` + lagunaS, known},
		{lagunaS + "@feature", nil, lagunaS + `@feature: the cache has no revision "feature" of ` + lagunaS, known},
		{lagunaS + "@abcdef0", nil, lagunaS + `@abcdef0: the cache has no revision "abcdef0" of ` + lagunaS, known},
		{lagunaS + "@c7a9f1", nil, lagunaS + `@c7a9f1: "c7a9f1" has 6 characters, expected the first 7 or more of a commit`, known},
		{lagunaS + "@../refs/main", nil, lagunaS + `@../refs/main: the cache has no revision "../refs/main" of ` + lagunaS, known},
		{lagunaS + "@gone", nil, lagunaS + "@gone: gone of " + lagunaS + " is commit " + strings.Repeat("9", 40) + ", which is not in the cache", known},
		{"org/many", nil, "org/many: the cache has 2 snapshots of it and no branch main that would choose one", "the cache has " + commitA + ", " + commitC},
		{"org/none", nil, "org/none: the cache has 0 snapshots of it and no branch main that would choose one", "download it first"},
		{lagunaS + "@07614121b3", nil, lagunaS + `@07614121b3: "07614121b3" begins 2 commits in the cache`, "it may be " + commitA + " or " + commitB},
	} {
		t.Run(c.typed, func(t *testing.T) {
			_, err := ResolveRef(c.typed, c.beside)
			require.EqualError(t, err, c.problem)
			require.Equal(t, fault.Usage, fault.KindOf(err))
			var e *fault.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.hint, e.Hint)
			if strings.HasSuffix(c.typed, "07614121b3") {
				require.ErrorIs(t, err, ErrAmbiguousRef)
			} else {
				require.ErrorIs(t, err, ErrNoSuchRef)
			}
		})
	}
}

func TestCacheDir(t *testing.T) {
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	for _, c := range []struct{ hub, home, xdg, want string }{
		{"/a", "/b", "/c", "/a"},
		{"~/a", "", "", filepath.Join(home, "a")},
		{"~", "", "", home},
		{"~user/a", "", "", "~user/a"},
		{"", "/b", "/c", "/b/hub"},
		{"", "~/b", "/c", filepath.Join(home, "b/hub")},
		{"", "", "/c", "/c/huggingface/hub"},
		{"", "", "~/c", filepath.Join(home, "c/huggingface/hub")},
		{"", "", "", filepath.Join(home, ".cache/huggingface/hub")},
	} {
		t.Setenv("HF_HUB_CACHE", c.hub)
		t.Setenv("HF_HOME", c.home)
		t.Setenv("XDG_CACHE_HOME", c.xdg)
		got, err := cacheDir()
		require.NoError(t, err)
		require.Equal(t, filepath.FromSlash(c.want), got)
	}
}

// Both layouts of the cache: links into blobs, and plain files where links are not to be had. Nothing is written into either.
func TestCacheLayouts(t *testing.T) {
	for _, links := range []bool{true, false} {
		cache := t.TempDir()
		t.Setenv("HF_HUB_CACHE", cache)
		snapshot := filepath.Join(cache, "models--org--name", "snapshots", commitA)
		blobs := filepath.Join(cache, "models--org--name", "blobs")
		for i, name := range []string{one, two, IndexName} {
			data := []byte(indexOf(goodMap)[IndexName])
			if name != IndexName {
				data, _ = os.ReadFile(filepath.Join(folder{goodShards, nil}.write(t), name))
			}
			if !links {
				writeFile(t, filepath.Join(snapshot, name), string(data))
				continue
			}
			blob := strings.Repeat(string(rune('a'+i)), 64)
			writeFile(t, filepath.Join(blobs, blob), string(data))
			require.NoError(t, os.MkdirAll(snapshot, 0o755))
			if err := os.Symlink(filepath.Join("..", "..", "blobs", blob), filepath.Join(snapshot, name)); err != nil {
				t.Skip("no symbolic links here: ", err)
			}
		}
		writeFile(t, filepath.Join(cache, "models--org--name", "refs", "main"), commitA)
		before := tree(t, cache)
		ref, err := ResolveRef("org/name", nil)
		require.NoError(t, err)
		c, err := OpenCheckpoint(ref.Dir)
		require.NoError(t, err)
		require.Equal(t, []string{"a", "b", "c"}, c.Names())
		require.Equal(t, before, tree(t, cache))
	}
}

func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	}))
	return names
}
