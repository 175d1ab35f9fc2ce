package pipeline

// Progress hears how far a job has come. Its methods are called from several goroutines.
type Progress interface {
	// Start tells how many bytes there are to read and hash before the first of them is.
	Start(total int64)
	// Add tells that n more bytes are done.
	Add(n int64)
}

// Silent is a Progress that tells nobody.
type Silent struct{}

// Start does nothing.
func (Silent) Start(int64) {}

// Add does nothing.
func (Silent) Add(int64) {}
