package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lagquant/lagquant/safetensors"
	"github.com/lagquant/lagquant/spec"
)

// checkTensorSet compares the tensors with those that the model's family has by its config: none missing, none extra, each with its shape.
func (c *checker) checkTensorSet() {
	if !c.readable {
		return
	}
	expected, ok, err := spec.ExpectedTensors(c.raw)
	if err != nil {
		c.find(Finding{Severity: Error, Check: CheckConfig, File: "config.json", Found: err.Error()})
		return
	}
	if !ok {
		return
	}
	family := map[string]bool{}
	for _, e := range expected {
		family[e.Name] = true
		if c.missing(e.Name) {
			c.find(Finding{
				Error, CheckTensorSet, "", e.Name, "missing", fmt.Sprintf("%s %s", e.DTypes[0], shape(e.Shapes[0])),
				"the model's config asks for it; take it from another copy of the checkpoint",
			})
			continue
		}
		t := c.inv.tensors[e.Name]
		if t != nil && !c.known[e.Name] && !e.Accepts(t.Tensor) {
			c.find(Finding{
				Error, CheckTensorSet, t.shard.Name, t.Name, fmt.Sprintf("%s %s", t.DType, shape(t.Shape)),
				fmt.Sprintf("%s %s by the model's config", e.DTypes[0], shape(e.Shapes[0])), turned(t.Shape, e.Shapes[0]),
			})
		}
	}
	for _, name := range c.ckpt.Names() {
		if t := c.inv.tensors[name]; t != nil && !family[name] && !c.known[name] {
			c.find(Finding{
				Error, CheckTensorSet, t.shard.Name, name, fmt.Sprintf("a tensor %s %s that the model's family does not have", t.DType, shape(t.Shape)),
				"", "strict loaders refuse it",
			})
		}
	}
}

func turned(found, want []uint64) string {
	if len(found) == 2 && len(want) == 2 && found[0] == want[1] && found[1] == want[0] {
		return "it looks transposed"
	}
	return ""
}

// checkHead looks at the output head, which is stored, tied to the embedding, or quantized by accident.
func (c *checker) checkHead() {
	head := c.head()
	switch {
	case head == nil || c.known[c.anyTensor(head)]:
		return
	case head.nvfp4() && c.model.tied:
		c.find(Finding{
			Error, CheckHead, c.file(c.anyTensor(head)), head.name, "NVFP4 tensors", "no head of its own, since tie_word_embeddings is true",
			"loaders take the embedding for it, or look for a plain weight",
		})
		c.explainModule(head.name)
	case head.nvfp4() && c.config != nil && c.predicted[head.name].group != nil:
		if byName, err := c.config.TargetedBy(head.name, ""); err == nil && len(byName) == 0 {
			c.find(Finding{
				Warning, CheckHead, c.file(c.anyTensor(head)), head.name, "NVFP4 tensors, by a target that names a class only",
				"a target that names it, or a plain weight", "not every loader counts the output head among the modules of class Linear",
			})
		}
	}
}

// head returns the module of the output head; nil where none is stored.
func (c *checker) head() *module {
	for _, name := range c.inv.names() {
		if name == "lm_head" || strings.HasSuffix(name, ".lm_head") {
			return c.inv.modules[name]
		}
	}
	return nil
}

// checkTiedBytes compares a stored head with the embedding that the config says it is tied to.
func (c *checker) checkTiedBytes(ctx context.Context) error {
	head := c.head()
	if head == nil || head.nvfp4() || !c.model.tied {
		return nil
	}
	w := head.tensors[slotWeight]
	var embedding *tensorAt
	for _, name := range c.inv.names() {
		if strings.HasSuffix("."+name, ".embed_tokens") {
			embedding = c.inv.modules[name].tensors[slotWeight]
		}
	}
	if w == nil || embedding == nil {
		return nil
	}
	same := w.DType == embedding.DType && slices.Equal(w.Shape, embedding.Shape)
	if same {
		err := c.open.streamPair(ctx, w, embedding, c.Options, func(x, y []byte) { same = same && differing(x, y) == 0 })
		if err != nil {
			return err
		}
	}
	f := Finding{
		Warning, CheckHead, w.shard.Name, w.Name, "stored again, with the bytes of " + embedding.Name,
		"once, since tie_word_embeddings is true", "",
	}
	if !same {
		f.Severity, f.Found = Error, "other values than "+embedding.Name
		f.Expected = "the same, since tie_word_embeddings is true"
		f.Hint = "loaders disagree about which of the two they use"
	}
	c.find(f)
	return nil
}

// checkUnindexed looks into a .safetensors file that is no part of the checkpoint: a loader that takes all files of the folder reads it too.
func (c *checker) checkUnindexed(name string) {
	f := Finding{
		Warning, CheckFiles, name, "", "a file that is no part of the checkpoint", "only files that the index names",
		"loaders that take every .safetensors file read it too: move it away",
	}
	header, err := readUnindexed(c.dir, name)
	if err != nil {
		f.Found += fmt.Sprintf(" and cannot be read (%v)", errors.Unwrap(err))
		c.find(f)
		return
	}
	again := 0
	for _, t := range header.Tensors {
		if _, ok := c.inv.tensors[t.Name]; ok {
			again++
		}
	}
	if again > 0 {
		f.Severity = Error
		f.Found = fmt.Sprintf("%d of its %s are in the checkpoint's own shards too", again, plural(len(header.Tensors), "tensor"))
	}
	c.find(f)
}

func readUnindexed(dir, name string) (*safetensors.Header, error) {
	file, size, err := openFile(dir, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return safetensors.ReadHeader(file, size)
}
