//go:build !race

package quant

const testRace = false
