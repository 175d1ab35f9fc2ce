//go:build amd64 && !noasm

package quant

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestAssemblyIsVEX: one legacy SSE instruction among AVX ones costs half a kernel's speed, and a missing VZEROUPPER that of its caller.
func TestAssemblyIsVEX(t *testing.T) {
	source, err := os.ReadFile("asm_amd64.s")
	require.NoError(t, err)
	vector := regexp.MustCompile(`\b[XYZ][0-9]+\b`)
	lines := strings.Split(string(source), "\n")
	vectors, returns := 0, 0
	for i, line := range lines {
		line = strings.TrimSpace(line)
		if vector.MatchString(line) && !strings.HasPrefix(line, "//") {
			vectors++
			require.Regexp(t, "^V", line, "line %d is not a VEX instruction", i+1)
		}
		if line == "RET" {
			returns++
			require.Equal(t, "VZEROUPPER", strings.TrimSpace(lines[i-1]), "line %d", i)
		}
	}
	require.Greater(t, vectors, 1000)
	require.Equal(t, strings.Count(string(source), "TEXT ·"), returns)
}

// TestTableLayout holds the offsets that the generator knows.
func TestTableLayout(t *testing.T) {
	var k kernelTables
	for want, got := range map[uintptr]uintptr{
		0: unsafe.Offsetof(k.ladder.rise), 128: unsafe.Offsetof(k.ladder.row), 256: unsafe.Offsetof(k.ladder.low), 384: unsafe.Offsetof(k.ladder.high),
		512: unsafe.Offsetof(k.ladder.origin), 768: unsafe.Offsetof(k.stairCode), 784: unsafe.Offsetof(k.multiplier), 788: unsafe.Offsetof(k.factor),
		792: unsafe.Offsetof(k.lower), 796: unsafe.Offsetof(k.zeroScale), 800: unsafe.Offsetof(k.divide), 804: unsafe.Offsetof(k.bf16),
	} {
		require.Equal(t, want, got)
	}
	var d dotTile
	for i, got := range []uintptr{
		unsafe.Offsetof(d.dst), unsafe.Offsetof(d.dstStride), unsafe.Offsetof(d.x), unsafe.Offsetof(d.xStride), unsafe.Offsetof(d.xStep),
		unsafe.Offsetof(d.w), unsafe.Offsetof(d.wStride), unsafe.Offsetof(d.wStep), unsafe.Offsetof(d.quadStep), unsafe.Offsetof(d.quads),
		unsafe.Offsetof(d.vectors), unsafe.Offsetof(d.add), unsafe.Offsetof(d.scale), unsafe.Offsetof(d.prefetch), unsafe.Offsetof(d.prefetchStride),
		unsafe.Offsetof(d.prefetchStep),
	} {
		require.EqualValues(t, 8*i, got)
	}
	var a addTile
	for i, got := range []uintptr{
		unsafe.Offsetof(a.dst), unsafe.Offsetof(a.dstStride), unsafe.Offsetof(a.weights), unsafe.Offsetof(a.weightsStride), unsafe.Offsetof(a.m),
		unsafe.Offsetof(a.mStride), unsafe.Offsetof(a.rows),
	} {
		require.EqualValues(t, 8*i, got)
	}
}
