//go:build noasm || !(amd64 || arm64)

package quant

// Without assembly every kernel does nothing and leaves all of the work to its caller's portable form.

func paths() []string { return []string{"go"} }

func absMaxBlocks([]byte) (magnitude uint16, n int) { return 0, 0 }

func readBlocks([]byte) (sum uint16, n int) { return 0, 0 }

func quantizeBlocks(*kernelTables, []byte, []byte, []byte) int { return 0 }

func matVecBF16Blocks(dst, x []float32, w []byte, rows, cols int) bool { return false }

func matVecNVFP4Blocks(dst, x []float32, packed, scales []byte, step float32, rows, cols int) bool {
	return false
}

func stepsBlock(_, _ *[256]float32, _ float32, _ bool) bool { return false }

func dequantizeBlocks([]float32, []byte, []byte, *[256]float32) int { return 0 }

func dequantizeBF16Blocks(_, _, _ []byte, _ *[256]float32) int { return 0 }

func errorSumsBlocks(_ *errorLanes, _, _, _ []byte, _ *[256]float32) int { return 0 }

func matMulBlocks(dst, x Matrix, w *weights) bool { return false }

func dotRowsBlocks(dst, q, m Matrix) bool { return false }

func addRowsBlocks(dst, weights, m Matrix) bool { return false }
