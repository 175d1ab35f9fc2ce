# make demo    build and run the main job on the small checkpoints that the binary carries
# make test    every test
# make lint    vet, staticcheck, gofumpt
# make race    the concurrent packages under the race detector
# make noasm   the kernels and what stands on them in portable Go
# make arm64   the kernels' tests as arm64 code (needs qemu-aarch64, Debian package qemu-user)
# make generate   write the assembly again from its generator
# make ptx     compile the CUDA kernels again (Linux on x86-64; fetches the compiler from PyPI, needs no GPU)
# make test-clients   third-party programs load the requantized checkpoint (installs them: 8 GB of disk)

GO          ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0

.PHONY: build demo test race noasm arm64 generate ptx test-clients lint clean

build:
	$(GO) build -trimpath -o bin/lagquant ./cmd/lagquant

demo: build
	rm -rf demo
	bin/lagquant demo demo

test:
	$(GO) test ./...

race:
	$(GO) test -race ./safetensors ./pipeline ./verify ./quant ./cuda ./engine
	$(GO) test -race -run Bar ./cmd/lagquant

noasm:
	$(GO) test -tags noasm ./quant ./pipeline ./engine

arm64:
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -exec qemu-aarch64 ./quant

generate:
	$(GO) generate ./quant

ptx:
	cuda/kernels/ptx.sh

test-clients: build
	rm -rf demo
	bin/lagquant demo demo
	testdata/clients/run.sh --self-test demo

lint:
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	@unformatted=$$($(GO) run $(GOFUMPT) -l .) && test -z "$$unformatted" || { echo "not gofumpt-clean:"; echo "$$unformatted"; exit 1; }

clean:
	rm -rf bin demo
