package spec

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

// Change is one place of an edited text, as whole lines.
type Change struct {
	Line   int      `json:"line"`   // of the first line of Before in the text before the edit, from 1
	Before []string `json:"before"` // lines that go, without their ends
	After  []string `json:"after"`  // lines that come in their stead
}

// edit replaces the bytes from begin to end.
type edit struct {
	begin, end int
	with       string
}

// apply carries out edits that do not overlap and tells the changes.
func apply(text []byte, edits []edit) ([]byte, []Change) {
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.begin, b.begin) })
	var (
		out     []byte
		changes []Change
		done    int
	)
	for len(edits) > 0 {
		// Edits that touch the same line make one change.
		n, end := 1, lineEnd(text, edits[0].end)
		for n < len(edits) && edits[n].begin <= end {
			end = lineEnd(text, edits[n].end)
			n++
		}
		begin := bytes.LastIndexByte(text[:edits[0].begin], '\n') + 1
		out = append(out, text[done:begin]...)
		from := len(out)
		at := begin
		for _, e := range edits[:n] {
			out = append(append(out, text[at:e.begin]...), e.with...)
			at = e.end
		}
		out = append(out, text[at:end]...)
		changes = append(changes, newChange(text, begin, text[begin:end], out[from:]))
		done, edits = end, edits[n:]
	}
	return append(out, text[done:]...), changes
}

func lineEnd(text []byte, at int) int {
	if n := bytes.IndexByte(text[at:], '\n'); n >= 0 {
		return at + n
	}
	return len(text)
}

// newChange leaves out the lines that two versions of a place have in common at its ends.
func newChange(text []byte, begin int, before, after []byte) Change {
	b, a := lines(before), lines(after)
	line := 1 + bytes.Count(text[:begin], []byte("\n"))
	for len(b) > 0 && len(a) > 0 && b[0] == a[0] {
		b, a, line = b[1:], a[1:], line+1
	}
	for len(b) > 0 && len(a) > 0 && b[len(b)-1] == a[len(a)-1] {
		b, a = b[:len(b)-1], a[:len(a)-1]
	}
	return Change{Line: line, Before: b, After: a}
}

func lines(b []byte) []string {
	l := strings.Split(string(b), "\n")
	for i := range l {
		l[i] = strings.TrimSuffix(l[i], "\r")
	}
	return l
}

// replaceItems edits an array: item i gives way to the strings in with[i], none for a removal. The separators that are left are those of the file.
func replaceItems(text []byte, array *node, with map[int][]string) (edits []edit) {
	last := -1 // the last item that survives in some form
	for i := range array.items {
		if w, changed := with[i]; !changed || len(w) > 0 {
			last = i
		}
	}
	if last < 0 {
		return []edit{{array.begin + 1, array.end - 1, ""}}
	}
	for i, item := range array.items[:last+1] {
		w, changed := with[i]
		switch {
		case !changed:
		case len(w) == 0:
			edits = append(edits, edit{item.begin, array.items[i+1].begin, ""})
		default:
			edits = append(edits, edit{item.begin, item.end, strings.Join(quoted(w), separator(text, array, i))})
		}
	}
	if last < len(array.items)-1 {
		edits = append(edits, edit{array.items[last].end, array.items[len(array.items)-1].end, ""})
	}
	return edits
}

// separator is what stands between items of an array around item i.
func separator(text []byte, array *node, i int) string {
	switch {
	case i > 0:
		return string(text[array.items[i-1].end:array.items[i].begin])
	case len(array.items) > 1:
		return string(text[array.items[0].end:array.items[1].begin])
	}
	return "," + string(text[array.begin+1:array.items[0].begin])
}

func quoted(texts []string) []string {
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = quote(t)
	}
	return out
}

// quote writes a JSON string in ASCII, as Python's json.dumps does.
func quote(s string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r >= ' ' && r < 0x7f:
			out.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		}
	}
	out.WriteByte('"')
	return out.String()
}
