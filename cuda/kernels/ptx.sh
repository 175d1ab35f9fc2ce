#!/bin/sh
# Compiles the kernels to the PTX that is committed beside them and embedded in the program; needs Linux on x86-64, python3 and gcc, no GPU.
#
#   ptx.sh          writes *.ptx
#   ptx.sh --check  writes nothing, and fails where a file is not what its source gives
#
# The compiler lands in .venv/ptx at the top of the repository (100 MB, once). It writes PTX of its own version, 9.0, which drivers before
# 580 refuse, so the version line is lowered to 7.0, what the instructions used need; the assembler then holds the text to that.
set -eu
cd "$(dirname "$0")"
venv=../../.venv/ptx
if ! cmp -s requirements.txt "$venv/installed"; then
	python3 -m venv --clear "$venv"
	"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r requirements.txt
	cp requirements.txt "$venv/installed"
fi
bin=$(echo "$venv"/lib/python3*/site-packages/nvidia/cu13/bin)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

for source in *.cu; do
	kernel=${source%.cu}
	"$bin/nvcc" -ptx -arch=compute_80 -I. "$source" -o "$out/$kernel.full"
	sed 's/^\.version .*/.version 7.0/' "$out/$kernel.full" >"$out/$kernel.ptx"
	for arch in sm_80 sm_90 sm_120; do
		"$bin/ptxas" -arch=$arch "$out/$kernel.ptx" -o "$out/cubin"
	done
	if [ "${1:-}" = --check ]; then
		cmp "$out/$kernel.ptx" "$kernel.ptx"
	else
		cp "$out/$kernel.ptx" "$kernel.ptx"
	fi
done
