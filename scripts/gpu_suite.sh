#!/usr/bin/env bash
# All that a GPU can show, on the machine that has it: the tests on CUDA, the sanitizers over the ops, the
# benchmarks. Prints one table last.
#   scripts/gpu_suite.sh build/cuda [tests|sanitize|bench …]      default: all three
# Binaries are taken as they are; build them with `cmake --preset cuda && cmake --build build/cuda`.
set -uo pipefail
build=${1:?build folder}
shift
parts=("${@:-tests sanitize bench}")
export MILES_TEST_DEVICE=cuda
rows=()

row() { rows+=("$(printf '%-44s %-8s %s' "$1" "$2" "$3")"); }

# The last line of gtest's count, and whether it passed.
run_tests() {
  local name=$1 log
  shift
  log=$(mktemp)
  if timeout "${LIMIT:-300}" "$@" >"$log" 2>&1; then
    row "$name" passed "$(grep -E '^\[  PASSED  \]' "$log" | tail -n 1 | cut -c 14-)$(grep -E '^\[  SKIPPED \]' "$log" | head -n 1 | cut -c 14-)"
  else
    row "$name" FAILED "exit $?: $(grep -cE '^\[  FAILED  \].*(ms)' "$log") tests"
    grep -vE '^\[ (RUN|      OK)' "$log" | tail -n "${TAIL:-60}"
  fi
  rm -f "$log"
}

for part in ${parts[@]}; do
  case $part in
    tests)
      for folder in device memory ops model actor rollout colocate; do
        [ -x "$build/tests/test_$folder" ] && run_tests "test_$folder" "$build/tests/test_$folder" --gtest_brief=0
      done
      ;;
    sanitize)
      for tool in memcheck racecheck; do
        LIMIT=400 run_tests "compute-sanitizer $tool test_ops" compute-sanitizer --tool $tool --error-exitcode 9 \
          "$build/tests/test_ops" --gtest_filter="${SANITIZE_FILTER:-*}"
      done
      ;;
    bench)
      [ -x "$build/bench/step_bench" ] && "$build/bench/step_bench" --device cuda
      ;;
    *)
      echo "unknown part $part: tests, sanitize or bench" >&2
      exit 2
      ;;
  esac
done
printf '\n%s\n' "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader)"
printf '%s\n' "${rows[@]}"
! printf '%s\n' "${rows[@]}" | grep -q FAILED
