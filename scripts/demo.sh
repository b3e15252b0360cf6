#!/usr/bin/env bash
# The demo: a small Qwen3-architecture model learns to add, in minutes, on the CPU or a GPU.
#   scripts/demo.sh MILES_BINARY [OUTPUT_DIRECTORY]
# 1. from random weights, supervised on sums of which a quarter are wrong, until it is right about half the time;
# 2. GRPO, colocated with --colocate-memory-peak-device gpu, until it is right more than 95% of the time on sums that
#    it has never seen;
# 3. the same job, a few rollouts each, with nothing offloaded and with the cpu peak: what the device holds at most.
set -euo pipefail
# Threads that wait for others sleep: on cores that are shared, spinning would cost ten times as much.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
miles=$1
out=${2:-runs/demo}
here=$(cd "$(dirname "$0")/.." && pwd)
rm -rf "$out"
mkdir -p "$out"

lengths=(--rollout-max-prompt-len 16 --rollout-max-response-len 4)
eval=(--eval-prompt-data held_out "synthetic:addition?max=49&split=eval&count=250")
sums="synthetic:addition?max=49&count=200000"

echo "== 1/3 supervised, on noisy sums (log: $out/sft.log)"
"$miles" train --model "$here/examples/addition" --init-random --loss-type sft_loss \
  --prompt-data "$sums&noise=25" --rollout-batch-size 128 --num-rollout 400 \
  --lr 5e-3 --lr-decay-style cosine --lr-warmup-iters 20 --lr-decay-iters 700 \
  "${lengths[@]}" --eval-interval 400 --skip-eval-before-train "${eval[@]}" \
  --save "$out/sft" --run-dir "$out/sft-run" 2>&1 | tee "$out/sft.log" | grep -a --line-buffered -E ' (1|10|[0-9]*[05]0)/400 |eval|error'

# All blocks are recomputed, in every memory mode and on every device: what differs is what the modes take.
grpo=(train --hf-checkpoint "$out/sft/iter_0000399/hf" --rm-type exact --prompt-data "$sums" --recompute-num-layers 3
      --rollout-batch-size 64 --n-samples-per-prompt 8 "${lengths[@]}"
      --max-tokens-per-gpu 1024 --lr 1e-3 --lr-decay-style linear --adam-beta2 0.95 --weight-decay 0)

echo "== 2/3 GRPO (log: $out/grpo.log)"
"$miles" "${grpo[@]}" --num-rollout 250 --colocate --colocate-memory-peak-device gpu \
  --eval-interval 50 "${eval[@]}" --save "$out/grpo" --run-dir "$out/run" 2>&1 |
  tee "$out/grpo.log" | grep -a --line-buffered -E ' (1|10|[0-9]*[05]0)/250 |eval|error'

echo "== 3/3 what the device holds at most, by memory mode"
"$miles" "${grpo[@]}" --num-rollout 3 --run-dir "$out/none" >"$out/none.log" 2>&1
"$miles" "${grpo[@]}" --num-rollout 3 --colocate --run-dir "$out/cpu" >"$out/cpu.log" 2>&1
"$miles" report "$out/run" --compare "nothing offloaded=$out/none" "cpu peak=$out/cpu" "gpu peak=$out/run"
