#!/usr/bin/env bash
# All that a GPU can show, on the machine that has it. Prints one table last; exit status 1 when a line of it failed.
#   scripts/gpu_suite.sh [BUILD [tests|sanitize|bench|peers …]]      default: build/cuda, and all four
# Binaries are taken as they are; where there are none they are built, for the GPU at hand.
# LIMIT: seconds that one line may take (300; of the sanitizers 1200). FILTER: tests that the sanitizers
# take, without those to leave out (*).
# SHARDS: processes that a sanitizer's tests are spread over (half the processors, 8 at most). TOOLS: the sanitizers
# (memcheck racecheck). PYTHON: one that has torch and transformers, for the peers (python3).
set -uo pipefail
build=${1:-build/cuda}
shift $(($# > 0))
export MILES_TEST_DEVICE=cuda
logs=$(mktemp -d)
log=$logs/line
trap 'rm -rf "$logs"' EXIT
table=()

if [ ! -x "$build/tests/test_ops" ] || [ ! -x "$build/bench/colocate_bench" ]; then
  cmake --preset release -DBUILD_TESTING=ON -DMILES_BENCH=ON -DMILES_CUDA=ON -B "$build" &&
    cmake --build "$build" --parallel || exit 1
fi

# line NAME COMMAND…: runs it, shows what it says, and keeps a line for the table.
line() {
  local name=$1 started=$SECONDS status=0 verdict=ok detail
  shift
  if ! command -v "$1" >/dev/null; then
    table+=("$(printf '%-44s %-7s %4s    %s' "$name" absent - "$1")")
    return
  fi
  echo "== $name"
  timeout -k 10 "$limit" "$@" >"$log" 2>&1 || status=$?
  # A test passes where there is no GPU, by skipping: not here.
  grep -q 'no CUDA device' "$log" && status=5
  detail=$(grep -oE '^\[  (PASSED|SKIPPED) +\] [0-9]+ tests?|.*failures$|(train|generate)_tokens_per_s": [0-9]+' "$log" |
    sed -E 's/^\[ +([A-Z]+) +\]/\L\1\E/; s/^=+ //; s/, listed below:|\.$//' | paste -sd ';')
  if [ $status -ne 0 ]; then
    verdict=FAILED
    detail="exit $status; $detail"
    [ $status -eq 124 ] && detail="longer than $limit s; $detail"
  fi
  grep -vE '^\[( RUN|       OK|----------|==========|  SKIPPED)|^$' "$log" | tail -n "$([ $verdict = ok ] && echo 40 || echo 100)"
  table+=("$(printf '%-44s %-7s %4d s  %s' "$name" $verdict $((SECONDS - started)) "$detail")")
}

# sanitize TOOL: one line for all its shards. Each says what it found as it ends; the whole log of one that failed.
sanitize() {
  local tool=$1 started=$SECONDS i tests=0 verdict=ok pids=() failed=() detail skipped=
  # racecheck cannot run cuBLASLt's kernels: they end with an internal error of its own, or not at all.
  [ "$tool" = racecheck ] && skipped=:Products/*bf16*:*OnTensorCores*
  if ! command -v compute-sanitizer >/dev/null; then
    table+=("$(printf '%-44s %-7s %4s    %s' "$tool test_ops" absent - compute-sanitizer)")
    return
  fi
  echo "== $tool test_ops, $shards processes"
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout -k 10 "$limit" compute-sanitizer --tool "$tool" \
      --error-exitcode 9 "$build/tests/test_ops" --gtest_filter="$filter$skipped" >"$logs/$tool.$i" 2>&1 &
    pids+=($!)
  done
  for ((i = 0; i < shards; ++i)); do
    local status=0 ran
    wait "${pids[i]}" || status=$?
    ran=$(grep -c '^\[       OK' "$logs/$tool.$i")
    tests=$((tests + ran))
    # A test passes where there is no GPU, by skipping: not here.
    grep -q 'no CUDA device' "$logs/$tool.$i" && status=5
    # With fewer tests than processes there is nothing to watch in the last ones, which is no error.
    [ $status -eq 255 ] && grep -q '^\[==========\] Running 0 tests' "$logs/$tool.$i" && continue
    echo "$tool $i: exit $status, $ran tests; $(grep -E 'SUMMARY' "$logs/$tool.$i" | sed 's/^=* //' | paste -sd ';')"
    [ $status -eq 0 ] && continue
    failed+=("$i")
    [ $status -eq 124 ] && echo "  longer than $limit s"
    [ "$(grep -c '^\[ RUN' "$logs/$tool.$i")" -gt "$(grep -cE '^\[ +(OK|SKIPPED|FAILED) ' "$logs/$tool.$i")" ] &&
      echo "  ended in $(grep '^\[ RUN' "$logs/$tool.$i" | tail -n 1)"
    grep -vE '^\[( RUN|       OK|----------|==========|  SKIPPED)|^$' "$logs/$tool.$i" | tail -n 60
  done
  detail="$tests tests in $shards processes"
  [ ${#failed[@]} -eq 0 ] || { verdict=FAILED detail="$detail; failed: ${failed[*]}"; }
  [ "$tests" -gt 0 ] || { verdict=FAILED detail='no test ran'; }
  table+=("$(printf '%-44s %-7s %4d s  %s' "$tool test_ops" $verdict $((SECONDS - started)) "$detail")")
}

# peer NAME SCRIPT…: a line, where Python has what the script needs.
peer() {
  local name=$1
  shift
  if "$python" -c 'import torch, transformers' 2>/dev/null; then
    line "$name" "$python" "$@"
  else
    table+=("$(printf '%-44s %-7s %4s    %s' "$name" absent - "torch and transformers for $python")")
  fi
}

[ $# -gt 0 ] || set -- tests sanitize bench peers
for part; do
  limit=${LIMIT:-300}
  case $part in
    tests)
      for folder in device ops model actor rollout colocate program; do
        line "test_$folder" "$build/tests/test_$folder"
      done
      # What a card with 99 KB of shared memory a block would run.
      MILES_CUDA_SHARED_BYTES=101376 line "attention in 99 KB" "$build/tests/test_ops" --gtest_filter='*ttention*'
      # What a card runs whose products nobody has measured.
      MILES_CUDA_UNMEASURED=1 line "unmeasured products" "$build/tests/test_ops" --gtest_filter='Products*'
      MILES_CUDA_UNMEASURED=1 line "on policy with those" "$build/tests/test_colocate" --gtest_filter='*OnPolicy*'
      ;;
    sanitize)
      limit=${LIMIT:-1200} filter="${FILTER:-*}-*Death*:*Checks*:*_converted*:*_narrowest*:*_amx*"
      shards=${SHARDS:-$(($(nproc) < 16 ? ($(nproc) + 1) / 2 : 8))}
      for tool in ${TOOLS:-memcheck racecheck}; do sanitize $tool; done
      ;;
    bench)
      # A build without Hopper's kernels has none of its instructions.
      [ -z "${MILES_TEST_NO_HOPPER:-}" ] && [ "$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)" = 9.0 ] &&
        line "bits of Hopper's matrix instructions" "$build/bench/wgmma_bits"
      line "attention" "$build/bench/attention_cuda_bench"
      for what in rollout train handoff; do
        line "$what of qwen3-0.6b" "$build/bench/colocate_bench" --device cuda --model qwen3-0.6b $what
      done
      line "train of qwen3-0.6b, activations kept" "$build/bench/colocate_bench" --device cuda --model qwen3-0.6b \
        train --recompute-num-layers 0
      ;;
    peers)
      python=${PYTHON:-python3}
      peer "qwen3-0.6b is what transformers computes" scripts/check_against_transformers.py "$build/miles" \
        --model qwen3-0.6b --tokenizer "${MILES_SHARED:-../shared}/tokenizers/qwen3"
      transformers=(scripts/peer_transformers.py --device cuda --model qwen3-0.6b)
      peer "transformers trains qwen3-0.6b" "${transformers[@]}" --phases train --batch 8 --micro-batch 2 \
        --seq-len 4096 --gradient-checkpointing --optimizer plain --repeats 1
      peer "transformers generates, qwen3-0.6b" "${transformers[@]}" --phases generate --batch 256 --prompt-len 512 \
        --new-tokens 128 --warm-ups 0 --repeats 1
      ;;
    *)
      echo "unknown part $part: tests, sanitize, bench or peers" >&2
      exit 2
      ;;
  esac
done
printf '\n%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1 | head -n 1)"
printf '%s\n' "${table[@]}"
! printf '%s\n' "${table[@]}" | grep -q FAILED
