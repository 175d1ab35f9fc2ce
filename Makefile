# make demo    build and run the main job on the small checkpoints that the binary carries
# make test    every test
# make lint    vet, staticcheck, gofumpt
# make race    the concurrent packages under the race detector

GO          ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@2026.2.2
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0

.PHONY: build demo test race lint fuzz clean

build:
	$(GO) build -trimpath -o bin/lagquant ./cmd/lagquant

demo: build
	rm -rf demo
	bin/lagquant demo demo

test:
	$(GO) test ./...

race:
	$(GO) test -race ./safetensors ./pipeline ./verify ./quant

lint:
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	@unformatted=$$($(GO) run $(GOFUMPT) -l .) && test -z "$$unformatted" || { echo "not gofumpt-clean:"; echo "$$unformatted"; exit 1; }

clean:
	rm -rf bin demo
