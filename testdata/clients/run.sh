#!/usr/bin/env bash
# Lets programs that share no code with lagquant read the tiny checkpoints, and prints what each of them found.
#
# usage: run.sh [--self-test] DIR
#
# DIR holds bf16, nvfp4-0722 and nvfp4-0804, the last as `lagquant requantize` wrote it. --self-test then also damages copies of them, one
# place at a time, and demands that the clients notice. Exits 1 when a row fails; a client that cannot be installed is a row that fails.
#
# Each client has a virtual environment of its own below LAGQUANT_CLIENTS_CACHE (default: lagquant-clients in the user's cache folder),
# made on first use with the versions in requirements/ and then kept until those change. torch, most of it CUDA libraries that the Linux
# wheel cannot be loaded without, stands there once for the two clients that need it. Needs Linux on x86-64, Python 3.11 to 3.13 (PYTHON
# names another than python3), a C compiler for modelvet, 8 GB of disk, and pip's package index on first use only.
set -u

self_test=
if [ "${1:-}" = --self-test ]; then
  self_test=yes
  shift
fi
if [ $# -ne 1 ] || [ ! -d "$1" ]; then
  echo "usage: run.sh [--self-test] DIR (with bf16, nvfp4-0722 and nvfp4-0804)" >&2
  exit 2
fi

dir=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cache=${LAGQUANT_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lagquant-clients}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
export HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# install NAME [BASE]: the virtual environment NAME, which also sees the packages of BASE. The requirements are copied in last, so that an
# interrupted installation is made anew.
install() {
  local home=$cache/$1 wanted=$here/requirements/$1.txt base=${2:-}
  if [ -n "$base" ]; then install "$base" || return; fi
  if cmp -s "$wanted" "$home/requirements.txt" && "$home/bin/python" -c ''; then return; fi
  echo "installing $1 into $home" >&3
  rm -rf "$home"
  mkdir -p "$cache" && "${PYTHON:-python3}" -m venv "$home" || return
  if [ -n "$base" ]; then packages "$base" >"$(packages "$1")/$base.pth" || return; fi
  nice "$home/bin/pip" install --quiet --no-deps --requirement "$wanted" && cp "$wanted" "$home/requirements.txt"
}

# packages NAME: the folder that holds the packages of a virtual environment
packages() { "$cache/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# prepare NAME [BASE]: installs, and keeps what was said where it failed
prepare() { if ! install "$@" >"$work/log" 2>&1; then mv "$work/log" "$work/$1.failed"; fi; } 3>&2

# row CLIENT SUBJECT pass|FAIL FIGURE
row() {
  if [ "$3" = pass ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  printf '%-13s %-37s %-5s %s\n' "$@"
}

# last FILE: its last line that says something
last() { grep -v '^[[:space:]]*$' "$1" | tail -n 1; }

# python CLIENT SCRIPT ARGUMENTS...: the script's standard output is its figure, or the last words of whatever went wrong
python() {
  local client=$1
  shift
  "$cache/$client/bin/python" "$here/$@" >"$work/out" 2>"$work/err"
  local code=$?
  figure=$(last "$work/out")
  if [ -z "$figure" ]; then figure="exit $code: $(last "$work/err")"; fi
  return $code
}

# check SUBJECT CLIENT SCRIPT ARGUMENTS...
check() {
  local subject=$1 client=$2
  shift
  if python "$@"; then row "$client" "$subject" pass "$figure"; else row "$client" "$subject" FAIL "$figure"; fi
}

# control SUBJECT HOW CHECKPOINT TENSOR CLIENT SCRIPT ARGUMENTS...: passes when the client reports (exit 3, see check.py) the damage done to
# $work/damaged
control() {
  local subject=$1 how=$2 checkpoint=$3 tensor=$4 client=$5 code
  shift 4
  rm -rf "$work/damaged"
  cp -RL "$dir/$checkpoint" "$work/damaged" && chmod -R u+w "$work/damaged"
  if ! "${PYTHON:-python3}" "$here/damage.py" "$how" "$work/damaged" "$tensor"; then
    row "$client" "$subject" FAIL "could not damage the copy"
    return
  fi
  python "$@"
  code=$?
  if [ $code -eq 3 ]; then row "$client" "$subject" pass "noticed: $figure"; else row "$client" "$subject" FAIL "exit $code: $figure"; fi
}

# client NAME: its rows, or the reason why it could not be installed
client() {
  if [ -e "$work/$1.failed" ]; then row "$1" installation FAIL "$(last "$work/$1.failed")"; else "$1"; fi
}

goldens() {
  "$cache/goldens/bin/python" - "$here/../goldens/goldens.tar.zst" "$work/goldens" <<'PY'
import sys, tarfile, zstandard
with open(sys.argv[1], "rb") as f, tarfile.open(fileobj=zstandard.ZstdDecompressor().stream_reader(f), mode="r|") as archive:
    archive.extractall(sys.argv[2], filter="data")
PY
}

# Where the controls strike. The lowest bit of this one byte moves the logits by 0.006.
scale=model.layers.7.mlp.experts.4.down_proj.weight_scale
tiny=$work/goldens/tiny

structure() {
  check bf16 structure structure.py "$dir/bf16"
  check nvfp4-0722 structure structure.py "$dir/nvfp4-0722"
  check nvfp4-0804 structure structure.py "$dir/nvfp4-0804" "$tiny/expected-0804.json"
  if [ -n "$self_test" ]; then
    control "nvfp4-0804, shard cut by a byte" truncate nvfp4-0804 $scale structure structure.py "$work/damaged"
    control "nvfp4-0804, a name not in the index" unlist nvfp4-0804 $scale structure structure.py "$work/damaged"
    control "nvfp4-0804, one scale bit flipped" flip nvfp4-0804 $scale structure structure.py "$work/damaged" "$tiny/expected-0804.json"
  fi
}

# logits CLIENT SCRIPT: the last-position logits of all prompts
logits() {
  check bf16 "$@" "$dir/bf16" "$tiny/logits-bf16.f32" "$tiny/generation.json"
  check nvfp4-0722 "$@" "$dir/nvfp4-0722" "$tiny/logits-0722-w4a16.f32" "$tiny/generation.json"
  check nvfp4-0804 "$@" "$dir/nvfp4-0804" "$tiny/logits-0804-w4a16.f32" "$tiny/generation.json"
  if [ -n "$self_test" ]; then
    control "nvfp4-0804, one scale bit flipped" flip nvfp4-0804 $scale "$@" "$work/damaged" "$tiny/logits-0804-w4a16.f32" "$tiny/generation.json"
  fi
}
transformers() { logits transformers llm_dequant_transformers.py; }
mlx() { logits mlx mlx_lm_logits.py; }

freetoken() {
  check nvfp4-0722 freetoken freetoken_banks.py "$dir/nvfp4-0722" "$tiny/freetoken-banks-0722.json"
  check nvfp4-0804 freetoken freetoken_banks.py "$dir/nvfp4-0804"
  if [ -n "$self_test" ]; then
    control "nvfp4-0722, one scale bit flipped" flip nvfp4-0722 $scale \
      freetoken freetoken_banks.py "$work/damaged" "$tiny/freetoken-banks-0722.json"
    control "nvfp4-0804, a name not in the index" unlist nvfp4-0804 $scale freetoken freetoken_banks.py "$work/damaged"
  fi
}

prepare goldens
prepare structure
prepare transformers torch
prepare mlx
prepare freetoken torch

if [ -e "$work/goldens.failed" ] || ! goldens 2>"$work/goldens.failed"; then
  row goldens unpacking FAIL "$(last "$work/goldens.failed")"
fi
for name in structure transformers mlx freetoken; do client $name; done
printf '%d passed, %d failed\n' $passed $failed
[ $failed -eq 0 ]
