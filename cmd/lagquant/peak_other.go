//go:build !linux

package main

// peakMemory is the largest resident size that the process had, in bytes; 0 where the system does not tell.
func peakMemory() int64 { return 0 }
