"""Both programs' tokens per second in one table: bench/step_bench and scripts/peer_transformers.py
with the same model, batch, lengths and threads, taking turns on the same cores.

    python scripts/compare_peer.py --threads 2 --cpus 0,1
    python scripts/compare_peer.py --layers 2 --batch 2 --seq-len 64        a quick try

Prints step_bench's ratios (a step over its bare matrix products) and the table last. With
--assert-ratio or --assert-speedup it exits with 1 when a number misses. Both keep all activations
for the backward. Our side draws from the distribution with log-probs, the peer takes the likeliest
token: both do what they do by default.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RATES = {
    "train": "train_tokens_per_s",
    "generate": "generate_tokens_per_s",
    "prefill": "prefill_tokens_per_s",
    "decode": "decode_tokens_per_s",
}


def run(command: list[str], arguments: argparse.Namespace) -> dict:
    """The JSON line that a program ends with."""
    threads = str(arguments.threads)
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if arguments.cpus:
        command = ["taskset", "-c", arguments.cpus, *command]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}")
    print(f"[{time.perf_counter() - start:.0f} s] {' '.join(command)}", file=sys.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def flags(arguments: argparse.Namespace, names: list[str]) -> list[str]:
    words = []
    for name in names:
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None:
            words += [f"--{name}", str(value)]
    return words


SHARED = ["model", "layers", "dtype", "batch", "seq-len", "prompt-len", "new-tokens", "repeats"]


def run_miles(arguments: argparse.Namespace) -> dict:
    result = run([arguments.bench, "--json", *flags(arguments, SHARED)], arguments)
    result["train_tokens_per_s"] = result["train"]["tokens_per_s"]
    result["decode_tokens_per_s"] = result["decode"]["tokens_per_s"]
    return result


def run_peer(arguments: argparse.Namespace) -> dict:
    script = str(ROOT / "scripts" / "peer_transformers.py")
    return run(
        [arguments.python, script, *flags(arguments, [*SHARED, "threads", "optimizer"])], arguments
    )


def median_of(results: list[dict], key: str) -> float:
    return statistics.median(result[key] for result in results)


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "?")


def print_ops(miles: dict) -> None:
    for phase in ("decode", "train"):
        seconds = miles[phase]["op_seconds"]
        total = sum(seconds.values())
        print(f"\n{phase}, one traced step: {total:.4f} s in ops")
        for name, spent in seconds.items():
            print(f"  {name:<24}{spent:>10.4f}{spent / total:>8.1%}")


def print_tables(arguments: argparse.Namespace, miles: list[dict], peer: list[dict]) -> bool:
    """Whether all that was asserted holds."""
    print_ops(miles[-1])
    print(f"\n{cpu_name()}, {arguments.threads} threads, {miles[0]['gemm']}; "
          f"{arguments.model}, {miles[0]['layers']} layers, {arguments.dtype}; "
          f"batch {arguments.batch}, trained {arguments.seq_len} tokens, "
          f"generated {arguments.prompt_len} + {arguments.new_tokens}; "
          f"medians of {arguments.rounds} rounds")
    holds = True
    print(f"\n{'phase':<10}{'step s':>10}{'bare GEMMs s':>14}{'ratio':>8}")
    for phase in ("train", "decode"):
        step = statistics.median(x[phase]["step_seconds"] for x in miles)
        bare = statistics.median(x[phase]["bare_gemm_seconds"] for x in miles)
        print(f"{phase:<10}{step:>10.4f}{bare:>14.4f}{step / bare:>8.3f}")
        holds &= arguments.assert_ratio is None or step / bare <= arguments.assert_ratio
    if not peer:
        return holds
    name = f"torch {peer[0]['torch']}, transformers {peer[0]['transformers']}"
    print(f"\n{'tokens/s':<10}{'miles':>10}{'peer':>10}{'speedup':>9}   peer: {name}")
    for phase, key in RATES.items():
        ours, theirs = median_of(miles, key), median_of(peer, key)
        print(f"{phase:<10}{ours:>10.1f}{theirs:>10.1f}{ours / theirs:>9.2f}")
        if arguments.assert_speedup is not None and phase in ("train", "generate"):
            holds &= ours / theirs >= arguments.assert_speedup
    return holds


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default=str(ROOT / "build/release/bench/step_bench"))
    parser.add_argument("--python", default=sys.executable, help="one that has torch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpus", help="cores to stay on, as taskset -c takes them: 0,1")
    parser.add_argument("--model", default="qwen3-0.6b")
    parser.add_argument("--layers", type=int, help="blocks instead of the model's")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--optimizer", choices=["master", "plain"], help="the peer's")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1, help="timed runs of a phase in a round")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each program")
    parser.add_argument("--no-peer", action="store_true", help="step_bench alone")
    parser.add_argument("--assert-ratio", type=float, help="a step over its bare products, at most")
    parser.add_argument("--assert-speedup", type=float, help="over the peer, at least")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    miles, peer = [], []
    for _ in range(arguments.rounds):
        miles.append(run_miles(arguments))
        if not arguments.no_peer:
            peer.append(run_peer(arguments))
    if not print_tables(arguments, miles, peer):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
