package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lockedBuffer is a terminal that the ticker may write to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// What is printed after a bar stands on a line of its own: the bar is overwritten, whether or not it had come to its end.
func TestBarGoesAway(t *testing.T) {
	var screen lockedBuffer
	term := &terminal{stderr: &screen, bar: true}
	p, err := newProgress(term, "auto", "verify")
	require.NoError(t, err)
	p.Start(1000)
	p.Add(970)
	require.Eventually(t, func() bool { return strings.Contains(screen.String(), "97%") }, 10*time.Second, 10*time.Millisecond)
	term.note("warning")
	require.Regexp(t, `\r *\rlagquant: warning\n`, screen.String())
	p.end()
	p.end()
	lines := strings.Split(strings.TrimSuffix(screen.String(), "\r"), "\r")
	require.Empty(t, strings.TrimSpace(lines[len(lines)-1]))
	require.True(t, strings.HasSuffix(screen.String(), "\r"))
}
