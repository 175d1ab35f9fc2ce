package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestReadRate(t *testing.T) {
	require.Greater(t, readRate(1<<20, time.Millisecond), 1e6, "bytes a second")
}
