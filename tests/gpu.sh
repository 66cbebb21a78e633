#!/usr/bin/env bash
# The checks that need a GPU, in at most 5 minutes once the program is built: the device tests, short runs of the small
# Figure 3 (left) in three precisions, and the speed of the base shape. Builds first where the CUDA part is missing.
#   tests/gpu.sh
# Environment: ROFORMER_DATA  folder of the data sets; unset: the quickstart's text, build/data/foldoc.txt
#              ROFORMER_TEXT  text of the base shape; unset: the same text
#              PRESET         preset that is built and used (release)
# Exit status: 0 all is well, 1 something failed, 2 there is no GPU here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! nvidia-smi -L >/dev/null 2>&1 && [ ! -e /dev/nvidia0 ]; then
  echo 'gpu.sh: no NVIDIA GPU on this machine; nothing was checked' >&2
  exit 2
fi

build=build/${PRESET:-release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
results=$work/results.txt
failed=0

# Runs a step within its seconds; its output is shown when it fails.
step() {
  local name=$1 seconds=$2 log=$work/log.txt
  shift 2
  echo "gpu.sh: $name"
  if timeout "$seconds" "$@" >"$log" 2>&1; then return 0; fi
  tail -n 30 "$log" >&2
  printf '%s|FAILED||\n' "$name" >>"$results"
  failed=1
  return 1
}

# One line for the table from a run's metrics.jsonl; fails when the loss did not fall.
report() {
  local name=$1 folder=$2 least_drop=$3
  python3 - "$name" "$folder/metrics.jsonl" "$least_drop" >>"$results" <<'PYTHON' || failed=1
import json, sys
name, path, least_drop = sys.argv[1], sys.argv[2], float(sys.argv[3])
train = [r for r in map(json.loads, open(path)) if r["split"] == "train"]
first, half, last = train[0], train[len(train) // 2 - 1], train[-1]
speed = (last["tokens"] - half["tokens"]) / (last["seconds"] - half["seconds"])  # the start is left out
good = first["loss"] - last["loss"] >= least_drop  # false for NaN
print(f"{name}|{'ok' if good else 'FAILED'}|{first['loss']:.3f} -> {last['loss']:.3f}|{speed:,.0f}")
sys.exit(not good)
PYTHON
}

if [ ! -x "$build/roformer" ] || [ ! -x "$build/tests/torch_tests" ] || [ ! -f "$build/libroformer_cuda.so" ]; then
  make build CUDA=1
fi

text=$PWD/build/data/foldoc.txt
if [ -z "${ROFORMER_DATA:-}" ] || [ -z "${ROFORMER_TEXT:-}" ]; then
  [ -s "$text" ] || cmake/setup.sh corpus
fi
small=()
if [ -z "${ROFORMER_DATA:-}" ]; then small=(--set "data.train=$text"); fi
export ROFORMER_DATA=${ROFORMER_DATA:-$PWD/build/data} ROFORMER_TEXT=${ROFORMER_TEXT:-$text}
started=$SECONDS

if step 'device tests' 120 env ROFORMER_TEST_DEVICE=cuda OMP_NUM_THREADS=4 \
  "$build/tests/torch_tests" -\# '[#device_test]' -w NoTests; then
  printf 'device tests|ok|%s|\n' "$(sed -n 's/^All tests passed (\(.*\))$/\1/p' "$work/log.txt")" >>"$results"
fi

for precision in fp32 bf16 fp16; do
  name="small, $precision"
  if step "$name" 60 "$build/roformer" train configs/figure3-left-small.yaml "${small[@]}" --device cuda \
    --run "$work/$precision" --set trainer.precision=$precision --set trainer.steps=100; then
    report "$name" "$work/$precision" 1.5
  fi
done

name='base shape, bf16'
if step "$name" 120 "$build/roformer" train configs/figure3-left.yaml --device cuda --run "$work/base" \
  --set "data.train=$ROFORMER_TEXT" --set data.eval_sequences=256 --set trainer.steps=20 --set trainer.log_every=2; then
  report "$name" "$work/base" 0  # at this learning rate it falls slowly
fi

echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true
{ echo 'check|result|training loss|tokens/s'; cat "$results"; } |
  awk -F'|' '{ printf "%-18s %-7s %-34s %10s\n", $1, $2, $3, $4 }'
echo "gpu.sh: $((SECONDS - started)) s, $([ $failed = 0 ] && echo 'all is well' || echo 'something FAILED')"
exit $failed
