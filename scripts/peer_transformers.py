"""The benchmark's peer: PyTorch and transformers training and generating, on the CPU or a GPU.

Makes a random Qwen3-shaped model and measures, after a warm-up,
  train     forward, backward and AdamW over `batch` sequences of `seq-len` tokens;
  generate  greedy decoding with a key/value cache of `new-tokens` after `prompt-len`, never
            stopping at the end of sequence; prefill alone is timed too, and decode is what remains.
Prints one line of JSON with tokens per second (the median over `--repeats`).

    python scripts/peer_transformers.py --model qwen3-0.6b --threads 2
    python scripts/peer_transformers.py --model tiny --hidden 128 --layers 4 --dtype float32
    python scripts/peer_transformers.py --device cuda --phases train --batch 8 --micro-batch 2 \
        --seq-len 4096 --gradient-checkpointing --optimizer plain
    python scripts/peer_transformers.py --device cuda --phases generate --batch 256 \
        --min-len 100 --max-len 1024 --warm-ups 0 --repeats 1
"""

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3Config

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

MODELS = {
    "qwen3-0.6b": {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "qwen3-1.7b": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "tiny": {
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}


def make_config(arguments: argparse.Namespace) -> Qwen3Config:
    shape = dict(MODELS[arguments.model])
    overrides = {
        "hidden_size": arguments.hidden,
        "intermediate_size": arguments.intermediate,
        "num_hidden_layers": arguments.layers,
        "vocab_size": arguments.vocab,
    }
    shape.update({key: value for key, value in overrides.items() if value is not None})
    return Qwen3Config(
        **shape,
        max_position_embeddings=40960,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
    )


def make_model(arguments: argparse.Namespace) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_config(
        make_config(arguments),
        dtype=DTYPES[arguments.dtype],
        attn_implementation=arguments.attention,
    )
    if arguments.gradient_checkpointing:
        # The newer name, then the older.
        enable = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)()
    return model


class MasterAdamW:
    """AdamW on float32 copies of the weights, which is how low-precision weights are trained."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.masters = [p.detach().float().requires_grad_() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-6)

    def step(self) -> None:
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                parameter.copy_(master)
                master.grad = None


class PlainAdamW:
    """AdamW on the weights themselves; its moments have their type. One fused kernel on a GPU."""

    def __init__(self, model: torch.nn.Module) -> None:
        fused = model.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=fused)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def median_seconds(work: Callable[[], None], warm_ups: int, repeats: int) -> float:
    for _ in range(warm_ups):
        work()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def measure_train(model: torch.nn.Module, arguments: argparse.Namespace) -> dict[str, float]:
    shape = (arguments.batch, arguments.seq_len)
    ids = torch.randint(model.config.vocab_size, shape, device=model.device)
    parts = ids.split(arguments.micro_batch or arguments.batch)
    master = arguments.optimizer == "master" and model.dtype != torch.float32
    optimizer = MasterAdamW(model) if master else PlainAdamW(model)
    model.train()

    def step() -> None:
        for part in parts:
            loss = model(input_ids=part, labels=part, use_cache=False).loss
            (loss * len(part) / len(ids)).backward()
        optimizer.step()

    seconds = median_seconds(step, arguments.warm_ups, arguments.repeats)
    return {"train_seconds": seconds, "train_tokens_per_s": ids.numel() / seconds}


def measure_generate(model: torch.nn.Module, arguments: argparse.Namespace) -> dict[str, float]:
    shape = (arguments.batch, arguments.prompt_len)
    ids = torch.randint(model.config.vocab_size, shape, device=model.device)
    mask = torch.ones_like(ids)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def generate(count: int) -> None:
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=count, do_sample=False, use_cache=True
        )
        if out.shape[1] != arguments.prompt_len + count:
            raise SystemExit(f"generated {out.shape[1] - arguments.prompt_len} tokens, not {count}")

    prefill = median_seconds(lambda: generate(1), arguments.warm_ups, arguments.repeats)
    total = median_seconds(
        lambda: generate(arguments.new_tokens), arguments.warm_ups, arguments.repeats
    )
    generated = arguments.batch * arguments.new_tokens
    return {
        "generate_seconds": total,
        "generate_tokens_per_s": generated / total,
        "prefill_tokens_per_s": ids.numel() / prefill,
        # The first token comes with the prefill.
        "decode_tokens_per_s": (generated - arguments.batch) / (total - prefill),
    }


def measure_ragged(model: torch.nn.Module, arguments: argparse.Namespace) -> dict[str, float]:
    """Prompts and responses of lengths uniform in between: generate() pads the one on the left and
    runs the others to the longest; counted is what was asked for."""
    draw = torch.Generator().manual_seed(arguments.seed)
    prompts, responses = torch.randint(
        arguments.min_len, arguments.max_len + 1, (2, arguments.batch), generator=draw
    )
    shape = (arguments.batch, int(prompts.max()))
    ids = torch.randint(model.config.vocab_size, shape, device=model.device)
    place = torch.arange(shape[1])
    mask = (place[None, :] >= shape[1] - prompts[:, None]).long().to(model.device)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    seconds = median_seconds(
        lambda: model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=int(responses.max()),
            do_sample=False,
            use_cache=True,
        ),
        arguments.warm_ups,
        arguments.repeats,
    )
    asked = int(responses.sum())
    return {"generate_seconds": seconds, "generate_tokens_per_s": asked / seconds}


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="qwen3-0.6b", help="shape to start from")
    parser.add_argument("--hidden", type=positive, help="hidden size instead of the shape's")
    parser.add_argument("--intermediate", type=positive, help="MLP width instead of the shape's")
    parser.add_argument("--layers", type=positive, help="blocks instead of the shape's")
    parser.add_argument("--vocab", type=positive, help="vocabulary instead of the shape's")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the weights")
    parser.add_argument("--attention", choices=["sdpa", "eager"], default="sdpa")
    parser.add_argument(
        "--optimizer",
        choices=["master", "plain"],
        default="master",
        help="master: float32 weights and moments beside bfloat16 weights; plain: all as --dtype",
    )
    parser.add_argument("--gradient-checkpointing", action="store_true", help="recompute blocks")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--micro-batch", type=positive, help="sequences a backward; default: all")
    parser.add_argument("--phases", choices=["both", "train", "generate"], default="both")
    parser.add_argument("--batch", type=positive, default=4, help="sequences, in both phases")
    parser.add_argument("--seq-len", type=positive, default=256, help="tokens a trained sequence")
    parser.add_argument("--prompt-len", type=positive, default=64, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=positive, default=64, help="tokens to generate, >= 2")
    parser.add_argument("--min-len", type=positive, help="of prompts and responses, drawn uniformly")
    parser.add_argument("--max-len", type=positive, help="the same; only for --phases generate")
    parser.add_argument("--threads", type=positive, default=1, help="PyTorch's threads")
    parser.add_argument("--warm-ups", type=int, default=1, help="untimed runs")
    parser.add_argument("--repeats", type=positive, default=3, help="timed runs")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and ids")
    arguments = parser.parse_args()
    if arguments.new_tokens < 2:
        parser.error("--new-tokens must be at least 2: the first one is the prefill's")
    if (arguments.min_len is None) != (arguments.max_len is None):
        parser.error("--min-len and --max-len go together")
    if arguments.max_len is not None and arguments.phases != "generate":
        parser.error("--min-len and --max-len need --phases generate")
    if arguments.max_len is not None and arguments.max_len < arguments.min_len:
        parser.error("--max-len is below --min-len")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    model = make_model(arguments).to(arguments.device)
    result = {
        "peer": "transformers",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    } | vars(arguments)
    # Generation first: the optimizer's state is not there yet.
    if arguments.max_len is not None:
        result |= measure_ragged(model, arguments)
    elif arguments.phases != "train":
        result |= measure_generate(model, arguments)
    if arguments.phases != "generate":
        result |= measure_train(model, arguments)
    result["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(result))


if __name__ == "__main__":
    main()
