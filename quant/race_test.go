//go:build race

package quant

const testRace = true // the race detector allocates
