#!/usr/bin/env bash
# All that a GPU can show, on the machine that has it. Prints one table last; exit status 1 when a line of it failed.
#   scripts/gpu_suite.sh BUILD [tests|sanitize|bench …]      default: all three
# Binaries are taken as they are: cmake --preset cuda -DBUILD_TESTING=ON -DMILES_BENCH=ON && cmake --build --preset cuda
# LIMIT: seconds that one line may take (300; of the sanitizers 500). FILTER: GoogleTest's, of the sanitizers' tests.
set -uo pipefail
build=${1:?"usage: $0 BUILD [tests|sanitize|bench …]"}
shift
export MILES_TEST_DEVICE=cuda
log=$(mktemp)
trap 'rm -f "$log"' EXIT
table=()

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
  detail=$(grep -E '^\[  (PASSED|SKIPPED) +\] [0-9]+ tests?|ERROR SUMMARY|RACECHECK SUMMARY|failures$' "$log" |
    sed -E 's/^\[ +([A-Z]+) +\]/\L\1\E/; s/^=+ //; s/, listed below:|\.$//' | paste -sd ';')
  if [ $status -ne 0 ]; then
    verdict=FAILED
    detail="exit $status; $detail"
    [ $status -eq 124 ] && detail="longer than $limit s; $detail"
  fi
  grep -vE '^\[( RUN|       OK|----------|==========|  SKIPPED)|^$' "$log" | tail -n "$([ $verdict = ok ] && echo 40 || echo 100)"
  table+=("$(printf '%-44s %-7s %4d s  %s' "$name" $verdict $((SECONDS - started)) "$detail")")
}

[ $# -gt 0 ] || set -- tests sanitize bench
for part; do
  limit=${LIMIT:-300}
  case $part in
    tests)
      for folder in device memory ops model actor rollout colocate; do
        line "test_$folder" "$build/tests/test_$folder"
      done
      # What a card with 99 KB of shared memory a block would run.
      MILES_CUDA_SHARED_BYTES=101376 line "attention in 99 KB" "$build/tests/test_ops" --gtest_filter='*ttention*'
      ;;
    sanitize)
      limit=${LIMIT:-500}
      for tool in memcheck racecheck; do
        line "$tool test_ops" compute-sanitizer --tool $tool --error-exitcode 9 \
          "$build/tests/test_ops" --gtest_filter="${FILTER:--*Death*}"
      done
      ;;
    bench)
      line "attention" "$build/bench/attention_cuda_bench"
      for what in rollout train handoff; do
        line "$what of qwen3-0.6b" "$build/bench/colocate_bench" --device cuda --model qwen3-0.6b $what
      done
      line "train of qwen3-0.6b, activations kept" "$build/bench/colocate_bench" --device cuda --model qwen3-0.6b \
        train --recompute-num-layers 0
      ;;
    *)
      echo "unknown part $part: tests, sanitize or bench" >&2
      exit 2
      ;;
  esac
done
printf '\n%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1 | head -n 1)"
printf '%s\n' "${table[@]}"
! printf '%s\n' "${table[@]}" | grep -q FAILED
