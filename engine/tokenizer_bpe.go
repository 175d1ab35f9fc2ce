package engine

import (
	"fmt"
	"strings"

	"github.com/lagquant/lagquant/internal/fault"
)

const (
	cachedWords   = 1 << 16 // words kept with their ids, some 10 MB
	longestCached = 64      // bytes; longer words rarely come again
)

// bpe merges bytes to tokens. Not safe for concurrent use: it keeps its working memory and a cache of words.
type bpe struct {
	bytes        [256]int32 // id of each byte's symbol, -1 where the vocabulary has none
	words        map[string]int32
	ignoreMerges bool             // a word that is a token stays one, whether or not merges lead there
	merges       map[uint64]merge // by the pair's ids

	symbols []symbol
	queue   mergeQueue
	cache   map[string][]int32
}

// merge is what becomes of two neighbouring symbols. The lower rank goes first.
type merge struct {
	rank int32
	id   int32
}

func mergeKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// symbol is an element of the doubly linked list that a word is while it is merged. id -1: swallowed by its left neighbour.
type symbol struct {
	id         int32
	prev, next int32 // -1: none
}

// appendWord adds the ids of one word to ids. A word of n bytes takes O(n log n), also a line of a million equal letters.
func (m *bpe) appendWord(ids []int32, word string) ([]int32, error) {
	if m.ignoreMerges {
		if id, ok := m.words[word]; ok {
			return append(ids, id), nil
		}
	}
	if known, ok := m.cache[word]; ok {
		return append(ids, known...), nil
	}
	from := len(ids)
	if err := m.load(word); err != nil {
		return nil, err
	}
	m.mergeAll()
	for i := int32(0); i >= 0 && len(m.symbols) > 0; i = m.symbols[i].next {
		ids = append(ids, m.symbols[i].id)
	}
	if len(word) <= longestCached && len(m.cache) < cachedWords {
		m.cache[strings.Clone(word)] = append([]int32(nil), ids[from:]...)
	}
	return ids, nil
}

func (m *bpe) load(word string) error {
	m.symbols = m.symbols[:0]
	for i := range len(word) {
		id := m.bytes[word[i]]
		if id < 0 {
			return &fault.Error{
				Kind: fault.Refused, File: tokenizerFile,
				Problem: fmt.Sprintf("the vocabulary has no symbol for byte %#02x, needed for %.40q", word[i], word),
			}
		}
		m.symbols = append(m.symbols, symbol{id: id, prev: int32(i) - 1, next: int32(i) + 1})
	}
	if n := len(m.symbols); n > 0 {
		m.symbols[n-1].next = -1
	}
	return nil
}

// mergeAll merges by rank, and from left to right within a rank, until no pair has a merge.
func (m *bpe) mergeAll() {
	m.queue = m.queue[:0]
	for i := range m.symbols {
		m.offer(int32(i))
	}
	for len(m.queue) > 0 {
		c := m.queue.pop()
		left := &m.symbols[c.at]
		if left.id < 0 || left.next < 0 {
			continue
		}
		right := &m.symbols[left.next]
		// The pair may have changed since it was queued. The reference compares what it would become, not which pair it was.
		if now, ok := m.merges[mergeKey(left.id, right.id)]; !ok || now.id != c.id {
			continue
		}
		left.id, right.id = c.id, -1
		if left.next = right.next; left.next >= 0 {
			m.symbols[left.next].prev = c.at
		}
		if left.prev >= 0 {
			m.offer(left.prev)
		}
		m.offer(c.at)
	}
}

// offer queues the pair that begins at symbol i, if it has a merge.
func (m *bpe) offer(i int32) {
	s := m.symbols[i]
	if s.next < 0 {
		return
	}
	if to, ok := m.merges[mergeKey(s.id, m.symbols[s.next].id)]; ok {
		m.queue.push(candidate{merge: to, at: i})
	}
}

// candidate is a merge at a place.
type candidate struct {
	merge
	at int32
}

func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// mergeQueue is a binary heap. container/heap would put each candidate into an interface, an allocation apiece.
type mergeQueue []candidate

func (q *mergeQueue) push(c candidate) {
	h := append(*q, c)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !c.before(h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = c
	*q = h
}

func (q *mergeQueue) pop() candidate {
	h := *q
	top, last := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].before(h[down]) {
			down++
		}
		if !h[down].before(last) {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = last
	return top
}
