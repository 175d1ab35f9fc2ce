package digest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The digests are those of Python's xxhash 4.1: xxhash.xxh3_128_hexdigest(bytes(i % 251 for i in range(n))).
func TestTensor(t *testing.T) {
	for n, want := range map[int]string{
		0: "99aa06d3014798d86001c324468d497f", 1: "a6cd5e9392000f6ac44bdff4074eecdb", 16: "72950631827607e2842812cc870dcae2",
		100: "da95ef16fd9566f329b20ba5f03ec01e", 240: "65b5be86da5540e7c92b68e16f83bbb6", 241: "1da1cb61bcb8a2a102e8cd95421c6d02",
		1024: "d0ac1f7b93bf57b9e5d78bafa45b2aa5", 100000: "54182c58bbb1337c42c23aeead96750d",
	} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i % 251)
		}
		require.Equal(t, want, OfTensor(b), n)
		d := NewTensor()
		for len(b) > 0 {
			part := b[:min(len(b), 100)]
			_, err := d.Write(part)
			require.NoError(t, err)
			b = b[len(part):]
		}
		require.Equal(t, want, d.String(), n)
		d.Reset()
		require.Equal(t, OfTensor(nil), d.String())
	}
}
