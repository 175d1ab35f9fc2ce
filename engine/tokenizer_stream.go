package engine

import "unicode/utf8"

// Stream decodes ids one at a time and never cuts a character: bytes that may still become one wait for the next id. What it gives in all is what
// Decode gives.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	pending     []byte
}

// NewStream starts a decoder for one sequence. skipSpecial is Decode's.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	return &Stream{t: t, skipSpecial: skipSpecial, pending: make([]byte, 0, 2*utf8.UTFMax)}
}

// Append adds the text that id completes to dst.
func (s *Stream) Append(dst []byte, id int32) []byte {
	token, ok := s.t.TokenBytes(id)
	if !ok || s.skipSpecial && s.t.special[id] {
		return dst
	}
	s.pending = append(s.pending, token...)
	n := len(s.pending) - unfinished(s.pending)
	dst = appendValid(dst, s.pending[:n])
	s.pending = append(s.pending[:0], s.pending[n:]...)
	return dst
}

// Push returns the text that id completes.
func (s *Stream) Push(id int32) string { return string(s.Append(nil, id)) }

// AppendRest ends the sequence: the beginning of a character that never came whole becomes one U+FFFD.
func (s *Stream) AppendRest(dst []byte) []byte {
	dst = appendValid(dst, s.pending)
	s.pending = s.pending[:0]
	return dst
}

// Flush is AppendRest as a string.
func (s *Stream) Flush() string { return string(s.AppendRest(nil)) }

// unfinished returns how many bytes at the end of b begin a character without ending it.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// appendValid adds b to dst with each longest beginning of a character that breaks off replaced by one U+FFFD, as Rust's and Python's decoders do
// (Go's own gives one for each byte).
func appendValid(dst, b []byte) []byte {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			dst = utf8.AppendRune(dst, utf8.RuneError)
			b = b[characterStart(b):]
			continue
		}
		dst = append(dst, b[:n]...)
		b = b[n:]
	}
	return dst
}

// characterStart returns how many bytes of b, at least one, belong to a character that breaks off: FullRune calls a beginning that can still become
// a character short, and one that cannot full.
func characterStart(b []byte) int {
	n := 1
	for n < len(b) && !utf8.FullRune(b[:n+1]) {
		n++
	}
	return n
}
