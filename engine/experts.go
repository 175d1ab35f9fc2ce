package engine

// expert is one routed expert: three matrices that are read, kept and dropped together.
type expert struct {
	layer, id      int
	gate, up, down *matrix

	class      *expertClass
	buf        []byte // holds all six byte runs while the expert is in the cache
	prev, next *expert
	scaled     bool // the scalars are read
	err        error

	// The same expert of the model that this one is compared with, and whether it is known to hold the same bytes.
	twin *expert
	same knowledge
}

type knowledge int8

const (
	unknown knowledge = iota
	equal
	different
)

func (e *expert) matrices() [3]*matrix { return [3]*matrix{e.gate, e.up, e.down} }

func (e *expert) bytes() (n int) {
	for _, m := range e.matrices() {
		n += m.bytes()
	}
	return n
}

// load reads the expert into its buffer; it runs on a worker, so the error is kept for the caller of the job.
func (e *expert) load() {
	buf := e.buf
	for _, m := range e.matrices() {
		buf = m.place(buf)
		if e.err == nil {
			e.err = m.fill()
		}
		if e.err == nil && !e.scaled {
			e.err = m.scalars()
		}
	}
	e.scaled = e.err == nil
}

// expertCache keeps the experts used last, within a number of bytes. Experts of one size form a class with a share of the budget and a list of
// its own: the buffer of the one dropped then fits the one read, so that a warm cache allocates nothing and leaves nothing to the collector,
// which would let the heap grow to twice the budget before it runs.
type expertCache struct {
	budget  int64
	classes map[int]*expertClass // by the bytes of an expert

	hits, reads int64
}

type expertClass struct {
	size         int
	total        int64 // of all experts of this size
	budget, used int64
	root         expert // of the ring of cached experts: root.next was used last, root.prev is the next to go
	spare        []byte // of the expert dropped last
}

// add makes experts known and gives every class its part of the budget.
func (c *expertCache) add(experts []*expert) {
	if c.classes == nil {
		c.classes = map[int]*expertClass{}
	}
	for _, e := range experts {
		n := e.bytes()
		k := c.classes[n]
		if k == nil {
			k = &expertClass{size: n}
			k.root.prev, k.root.next = &k.root, &k.root
			c.classes[n] = k
		}
		k.total += int64(n)
		e.class = k
	}
	var all int64
	for _, k := range c.classes {
		all += k.total
	}
	for _, k := range c.classes {
		k.budget = int64(float64(c.budget) * (float64(k.total) / float64(all)))
	}
}

// touch makes an expert the one used last. It reports whether the caller must load it.
func (c *expertCache) touch(e *expert) (load bool) {
	if e.buf != nil {
		c.hits++
		e.unlink()
		e.class.link(e)
		return false
	}
	c.reads++
	e.class.makeRoom()
	if e.buf = e.class.spare; e.buf == nil {
		e.buf = make([]byte, e.class.size)
	}
	e.class.spare = nil
	e.class.used += int64(e.class.size)
	e.class.link(e)
	return true
}

// makeRoom drops what was used longest ago until one more expert fits. Waves are cut to fit into the budget, so none of the wave's own is dropped.
func (k *expertClass) makeRoom() {
	for k.root.prev != &k.root && k.used+int64(k.size) > k.budget {
		k.root.prev.drop()
	}
}

func (e *expert) drop() {
	e.class.used -= int64(e.class.size)
	e.class.spare, e.buf = e.buf, nil
	for _, m := range e.matrices() {
		m.code, m.group = nil, nil
	}
	e.unlink()
}

func (k *expertClass) link(e *expert) {
	e.prev, e.next = &k.root, k.root.next
	e.prev.next, e.next.prev = e, e
}

func (e *expert) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
}

// fetch brings a wave of experts of one layer into memory. An expert that holds the bytes of its twin is replaced
// by the twin, so that two models that are compared keep one copy.
func (s *Session) fetch(wave []*expert) error {
	cache := &s.model.shared.cache
	s.loads = s.loads[:0]
	for i, e := range wave {
		if e.twin != nil && e.same == unknown {
			if err := e.compareTwin(); err != nil {
				return err
			}
		}
		if e.same == equal {
			e = e.twin
			wave[i] = e
		}
		if cache.touch(e) {
			s.loads = append(s.loads, e)
			s.Stats.FileBytes += int64(e.class.size)
		}
	}
	return s.load()
}

// load reads s.loads on all workers.
func (s *Session) load() (err error) {
	s.model.shared.pool.run(s, len(s.loads), func(s *Session, _, i int) { s.loads[i].load() })
	for _, e := range s.loads {
		if e.err != nil {
			err, e.err = e.err, nil
			e.drop()
		}
	}
	s.loads = s.loads[:0]
	return err
}

// compareTwin finds out whether an expert and its twin hold the same weights, reading no more than it takes to know.
func (e *expert) compareTwin() error {
	a, b := e.matrices(), e.twin.matrices()
	for i := range a {
		for _, m := range []*matrix{a[i], b[i]} {
			if err := m.scalars(); err != nil {
				return err
			}
		}
		same, err := a[i].sameAs(b[i])
		if err != nil {
			return err
		}
		if !same {
			e.same = different
			return nil
		}
	}
	e.same = equal
	return nil
}
