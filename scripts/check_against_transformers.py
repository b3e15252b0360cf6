"""Is the whole model, at a real shape and on the device at hand, the one that transformers computes?

miles makes one rollout of GRPO from random weights: with a learning rate of 0 the checkpoint holds
the weights that everything was computed on, and with AdamW's beta1 at 0 and no clipping its first
moments are the gradient. PyTorch then computes the same samples' log-probs and gradient twice: in a
wider type on the same weights, which is the truth, and in the run's own, which shows how far off is
normal. Compared are each drawn token's log-prob, as the rollout recorded it, and every parameter's
gradient; the exit code is 1 where miles is further off than FACTOR times transformers.

    python scripts/check_against_transformers.py build/release/miles --model examples/addition \
        --device cpu
    python scripts/check_against_transformers.py build/cuda/miles --model qwen3-0.6b --device cuda \
        --tokenizer ../shared/tokenizers/qwen3
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open

FACTOR = 1.5  # times transformers' own error
WIDER = {"float32": torch.float64, "bfloat16": torch.float32}
ALIGNMENT = 64  # elements: where a parameter starts (src/model/layout.h)
ADJACENT = ("k_proj", "v_proj", "up_proj")  # follow the one before without padding
REWARD = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    reward = sum(request["response"].encode()) % 97 / 97
    print(json.dumps({"id": request["id"], "reward": reward}), flush=True)
"""


@dataclasses.dataclass
class Result:
    """What was computed on the samples."""

    log_probs: torch.Tensor  # [R] of the responses' tokens, one response after another
    gradient: dict[str, torch.Tensor]  # by Hugging Face's name


def run_miles(arguments: argparse.Namespace, directory: pathlib.Path) -> None:
    """One rollout and one step into directory / "run" and directory / "save"."""
    reward = directory / "reward.py"
    reward.write_text(REWARD)
    command = [arguments.miles, "train", "--model", arguments.model, "--init-random"]
    if arguments.tokenizer:
        command += ["--tokenizer", arguments.tokenizer]
    command += [
        "--prompt-data",
        "synthetic:addition",
        "--custom-rm-command",
        f"{sys.executable} {reward}",
    ]
    command += ["--rollout-batch-size", "2", "--n-samples-per-prompt", "4", "--num-rollout", "1"]
    command += ["--rollout-max-response-len", str(arguments.response_len), "--colocate"]
    command += ["--lr", "0", "--weight-decay", "0", "--adam-beta1", "0", "--clip-grad", "0"]
    command += ["--dtype", arguments.dtype, "--device", arguments.device]
    command += ["--save", str(directory / "save"), "--run-dir", str(directory / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def read_samples(directory: pathlib.Path) -> list[dict]:
    with open(directory / "run" / "samples.jsonl", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def flat_order(model: torch.nn.Module) -> list[str]:
    """Parameters in the order of miles' flat vector."""
    given = dict(model.named_parameters())
    layer = ["input_layernorm"] + [f"self_attn.{x}_proj" for x in "qkv"]
    layer += [
        "self_attn.q_norm",
        "self_attn.k_norm",
        "self_attn.o_proj",
        "post_attention_layernorm",
    ]
    layer += [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    order = ["model.embed_tokens.weight"]
    for i in range(model.config.num_hidden_layers):
        order += [f"model.layers.{i}.{name}.weight" for name in layer]
    order += ["model.norm.weight", "lm_head.weight"]
    return [name for name in order if name in given]


def miles_result(directory: pathlib.Path, samples: list[dict], model: torch.nn.Module) -> Result:
    log_probs = torch.tensor(
        [x for sample in samples for x in sample["rollout_log_probs"]], dtype=torch.float64
    )
    with safe_open(directory / "save" / "iter_0000000" / "trainer.safetensors", "pt") as file:
        chunks = sum(1 for name in file.keys() if name.endswith(".m"))
        flat = torch.cat([file.get_tensor(f"optimizer.{c}.m") for c in range(chunks)])
    given, gradient, at = dict(model.named_parameters()), {}, 0
    for name in flat_order(model):
        if name.split(".")[-2] not in ADJACENT:
            at = (at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        gradient[name] = flat[at : at + given[name].numel()].view(given[name].shape)
        at += given[name].numel()
    return Result(log_probs, gradient)


def torch_result(model: torch.nn.Module, samples: list[dict]) -> Result:
    """The policy gradient where the policy is the one that drew: the ratio is 1."""
    device = next(model.parameters()).device
    log_probs = []
    model.zero_grad()
    for sample in samples:
        ids = torch.tensor(sample["tokens"], device=device)
        response = ids[-sample["response_length"] :]
        logits = model(input_ids=ids[None]).logits[0, -len(response) - 1 : -1]
        wide = logits if logits.dtype == torch.float64 else logits.float()
        of_response = torch.log_softmax(wide, dim=-1).gather(1, response[:, None])[:, 0]
        weight = -sample["advantage"] / len(response) / len(samples)
        (weight * of_response.sum()).backward()
        log_probs.append(of_response.detach().double().cpu())
    gradient = {name: p.grad.cpu() for name, p in model.named_parameters()}
    return Result(torch.cat(log_probs), gradient)


def load(directory: pathlib.Path, dtype: torch.dtype, device: str) -> torch.nn.Module:
    path = directory / "save" / "iter_0000000" / "hf"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager"
    )
    return model.to(device).eval()


def kind_of(name: str) -> str:
    """A parameter's name without the number of its block."""
    return ".".join(part for part in name.split(".")[:-1] if not part.isdigit())


def errors(result: Result, truth: Result) -> dict[str, float]:
    """By what they are of: of log-probs in nats, of gradients relative to their norm."""
    apart = result.log_probs - truth.log_probs
    measured = {"log-probs, rms": apart.square().mean().sqrt().item()}
    measured["log-probs, largest"] = apart.abs().max().item()
    squares: dict[str, list[float]] = {}
    for name, exact in truth.gradient.items():
        sums = squares.setdefault(kind_of(name), [0.0, 0.0])
        sums[0] += (result.gradient[name].double() - exact.double()).square().sum().item()
        sums[1] += exact.double().square().sum().item()
    for kind, (error, whole) in squares.items():
        measured[f"gradient of {kind}"] = (error / whole) ** 0.5
    return measured


def compare(miles: Result, peer: Result, truth: Result) -> bool:
    """Prints a line for each error; whether all of miles' are within FACTOR of the peer's."""
    ours, theirs = errors(miles, truth), errors(peer, truth)
    within = {what: ours[what] <= FACTOR * theirs[what] for what in ours}
    print(f"{'error':<52}{'miles':>12}{'transformers':>14}")
    for what, ok in within.items():
        verdict = "" if ok else "  TOO LARGE"
        print(f"{what:<52}{ours[what]:>12.3e}{theirs[what]:>14.3e}{verdict}")
    parameters = sum(gradient.numel() for gradient in truth.gradient.values())
    print(f"{len(truth.log_probs)} tokens drawn, {parameters} parameters")
    return all(within.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("miles", help="the program")
    parser.add_argument(
        "--model", default="qwen3-0.6b", help="a preset, or a directory with a config.json"
    )
    parser.add_argument(
        "--tokenizer", help="a directory with a tokenizer.json (default: the model's)"
    )
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(WIDER))
    parser.add_argument("--response-len", type=int, default=256)
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        print(f"miles draws and learns: {arguments.model}", flush=True)
        run_miles(arguments, directory)
        samples = read_samples(directory)
        print(f"transformers in {WIDER[arguments.dtype]} and {arguments.dtype}", flush=True)
        model = load(directory, WIDER[arguments.dtype], arguments.device)
        miles = miles_result(directory, samples, model)
        truth = torch_result(model, samples)
        del model
        peer = torch_result(
            load(directory, getattr(torch, arguments.dtype), arguments.device), samples
        )
    sys.exit(0 if compare(miles, peer, truth) else 1)


if __name__ == "__main__":
    main()
