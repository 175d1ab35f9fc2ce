package quant

// path is the code path that kernels take: the best of paths, unless a test forces another.
var path = paths()[0]

// Path names the code path that the kernels take on this machine: "avx512", "avx2", "neon" or "go".
func Path() string { return path }
