"""Makes tests/fixtures/model: small models in Hugging Face's layout, and what transformers gives.

For each model a `reference.safetensors`: logits, hidden states, log-probs, entropies, gradients of
a fixed loss, and a greedy continuation. tests/fixtures/README.md lists the tensors.

    python scripts/make_model_fixtures.py --shared ../shared
"""

import argparse
import copy
import json
import pathlib

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen3Config
from transformers.utils import logging

from reference_model import (
    FIXTURES,
    REPOSITORY,
    SAMPLED_ENTRIES,
    Packed,
    make_reproducible,
    packed_logits,
    response_stats,
    save_tensors,
    scalar,
)

SEED = 20240607
LENGTHS = [70, 9, 33]  # one sample is longer than a key/value tile of 64
PROMPT_LENGTHS = [5, 1, 12]
LOGIT_POSITIONS = 24  # positions whose logits and hidden states are kept
LOSS_TEMPERATURE = 0.7
GREEDY_PROMPTS = 32  # candidates; the one whose choices are the clearest is taken
GREEDY_PROMPT_LENGTH = 7
GREEDY_TOKENS = 24


def qwen3_config() -> Qwen3Config:
    return Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        vocab_size=320,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # not hidden_size / num_attention_heads
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )


def llama3_config() -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=256,
        hidden_size=32,
        intermediate_size=172,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        # Head size 16 has eight wavelengths; these limits leave some of them alone, blend some, and
        # stretch the others.
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )


def random_model(config: PretrainedConfig, rng: np.random.Generator) -> torch.nn.Module:
    """Weights that keep activations of order one and logits apart; norm weights not all one."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.from_numpy(rng.standard_normal(parameter.shape)).float()
            if parameter.ndim == 1:
                parameter.copy_((2.0 if name == "model.norm.weight" else 1.0) + 0.1 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(0.15 * noise)
            else:
                parameter.copy_(noise * parameter.shape[1] ** -0.5)
    model.generation_config.eos_token_id = [2, 3]  # one more than config.json names
    return model.eval()


def v4_spelling(config: dict) -> dict:
    """transformers 5 writes `rope_parameters` and `dtype`; version 4 and most files on the hub say
    `rope_theta`, `rope_scaling` and `torch_dtype`."""
    config = copy.deepcopy(config)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    for key in ("layer_types", "transformers_version"):
        config.pop(key, None)
    return config


def save_model(model: torch.nn.Module, directory: pathlib.Path) -> None:
    """save_pretrained; config.json in the older spelling, config_v5.json as transformers 5 has it.

    Checks that the directory as it is then read gives the same logits.
    """
    model.save_pretrained(directory)
    (directory / "model.safetensors").chmod(0o644)
    written = directory / "config.json"
    config = json.loads(written.read_text())
    written.rename(directory / "config_v5.json")
    written.write_text(json.dumps(v4_spelling(config), indent=2, sort_keys=True) + "\n")
    again = AutoModelForCausalLM.from_pretrained(directory, dtype=model.dtype)
    ids = torch.arange(80)[None] % model.config.vocab_size
    with torch.no_grad():
        if not torch.equal(model(ids).logits, again(ids).logits):
            raise SystemExit(f"{directory}: the saved model differs from the one in memory")


def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """`count` ids (the end of sequence does not stop it), and each id's lead on the runner-up."""
    ids, margins = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            best = model(torch.tensor([ids])).logits[0, -1].float().topk(2)
            margins.append((best.values[0] - best.values[1]).item())
            ids.append(best.indices[0].item())
    return ids[len(prompt) :], margins


def clearest_greedy(model: torch.nn.Module, rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Of random prompts, the one whose closest call is the least close: rounding cannot flip it."""
    best = None
    for _ in range(GREEDY_PROMPTS):
        prompt = rng.integers(4, model.config.vocab_size, GREEDY_PROMPT_LENGTH).tolist()
        tokens, margins = greedy(model, prompt, GREEDY_TOKENS)
        varied = len(set(tokens)) >= GREEDY_TOKENS // 2
        if varied and (best is None or min(margins) > min(best[2])):
            best = (prompt, tokens, margins)
    if best is None:
        raise SystemExit("every greedy continuation is monotonous: change the weights")
    return greedy_tensors(*best)


def greedy_tensors(
    prompt: list[int], tokens: list[int], margins: list[float]
) -> dict[str, torch.Tensor]:
    return {
        "greedy_prompt": torch.tensor(prompt),
        "greedy_tokens": torch.tensor(tokens),
        "greedy_margins": torch.tensor(margins, dtype=torch.float32),
    }


def random_samples(vocab_size: int, rng: np.random.Generator) -> list[list[int]]:
    return [rng.integers(4, vocab_size, length).tolist() for length in LENGTHS]


def logit_positions(rng: np.random.Generator) -> torch.Tensor:
    """Packed positions: ends of the samples, both sides of the tile border, and random others."""
    total = sum(LENGTHS)
    ends = np.cumsum(LENGTHS)
    chosen = {0, 1, 62, 63, 64, 65} | {int(e) - 1 for e in ends} | {int(e) for e in ends[:-1]}
    others = [int(p) for p in rng.permutation(total) if int(p) not in chosen]
    return torch.tensor(sorted(chosen | set(others[: LOGIT_POSITIONS - len(chosen)])))


def hidden_states(model: torch.nn.Module, packed: Packed) -> list[torch.Tensor]:
    """[T, H] each: what enters block 0, 1, …, and last what enters the head, after the norm."""
    runs = [
        model(input_ids=sample[None], output_hidden_states=True).hidden_states
        for sample in packed.samples()
    ]
    return [torch.cat([state[0] for state in states]) for states in zip(*runs, strict=True)]


def sampled_gradient(gradient: torch.Tensor, rng: np.random.Generator) -> tuple[torch.Tensor, ...]:
    """Flat indices, ascending, and values: half of them the largest, half random."""
    flat = gradient.flatten()
    count = min(SAMPLED_ENTRIES, flat.numel())
    chosen = set(flat.abs().topk(count // 2).indices.tolist())
    others = [int(i) for i in rng.permutation(flat.numel()) if int(i) not in chosen]
    index = torch.tensor(sorted(chosen | set(others[: count - len(chosen)])))
    return index, flat[index]


def gradients(
    model: torch.nn.Module, packed: Packed, rng: np.random.Generator
) -> dict[str, torch.Tensor]:
    """Of the sum over response tokens of c * log_prob + e * entropy, at LOSS_TEMPERATURE."""
    log_probs, entropies = response_stats(packed_logits(model, packed), packed, LOSS_TEMPERATURE)
    count = log_probs.numel()
    c = torch.from_numpy(rng.standard_normal(count)).float()
    e = torch.from_numpy(0.5 * rng.standard_normal(count)).float()
    loss = (c * log_probs + e * entropies).sum()
    model.zero_grad()
    loss.backward()
    out = {"coef_log_prob": c, "coef_entropy": e, "loss": scalar(loss)}
    for name, parameter in model.named_parameters():
        index, value = sampled_gradient(parameter.grad, rng)
        out[f"grad_norm.{name}"] = scalar(parameter.grad.double().norm())
        out[f"grad_index.{name}"] = index
        out[f"grad_value.{name}"] = value
    return out


def forward_reference(
    model: torch.nn.Module, packed: Packed, positions: torch.Tensor
) -> dict[str, torch.Tensor]:
    out = packed.tensors() | {"logit_positions": positions}
    with torch.no_grad():
        logits = packed_logits(model, packed)
        out["logits"] = logits[positions]
        for layer, hidden in enumerate(hidden_states(model, packed)):
            out[f"hidden.{layer}"] = hidden[positions]
        for name, temperature in (("t07", 0.7), ("t10", 1.0)):
            log_probs, entropies = response_stats(logits, packed, temperature)
            out[f"log_probs_{name}"] = log_probs
            out[f"entropies_{name}"] = entropies
    return out


def make_random(name: str, config: PretrainedConfig, dtype: torch.dtype, seed: int) -> None:
    """The reference is float32 arithmetic on the weights as saved, whatever their type."""
    directory = FIXTURES / "model" / name
    model = random_model(config, np.random.default_rng(seed))
    for parameter in model.parameters():  # model.to() would round the rotary frequencies too
        parameter.data = parameter.data.to(dtype)
    save_model(model, directory)
    rng = np.random.default_rng(seed + 1)
    packed = Packed.of(random_samples(config.vocab_size, rng), PROMPT_LENGTHS)
    positions = logit_positions(rng)
    extra = {}
    if dtype != torch.float32:
        with torch.no_grad():
            extra["logits_bf16"] = packed_logits(model, packed)[positions].float()
    model = model.float()
    out = forward_reference(model, packed, positions) | gradients(model, packed, rng) | extra
    out |= clearest_greedy(model, rng)
    report(name, out)
    save_tensors(directory / "reference.safetensors", out)


def make_stories(source: pathlib.Path) -> None:
    """The trained model stays where it is; one sample is its own story, the others random ids."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    rng = np.random.default_rng(SEED + 100)
    prompt = [model.config.bos_token_id]
    tokens, margins = greedy(model, prompt, 120)
    samples = random_samples(model.config.vocab_size, rng)
    samples[0] = (prompt + tokens)[: LENGTHS[0]]
    packed = Packed.of(samples, PROMPT_LENGTHS)
    out = forward_reference(model, packed, logit_positions(rng)) | gradients(model, packed, rng)
    out |= greedy_tensors(prompt, tokens, margins)
    report("stories260K", out)
    save_tensors(FIXTURES / "model" / "stories260K" / "reference.safetensors", out)


def report(name: str, out: dict[str, torch.Tensor]) -> None:
    print(
        f"{name}: logits' standard deviation {out['logits'].std():.3f}, mean entropy "
        f"{out['entropies_t10'].mean():.3f}, loss {out['loss'].item():.4f}, closest greedy choice "
        f"{out['greedy_margins'].min():.4f}, distinct {len(set(out['greedy_tokens'].tolist()))}"
    )
    if "logits_bf16" in out:
        difference = (out["logits_bf16"] - out["logits"]).abs()
        print(f"  bf16 arithmetic differs by at most {difference.max():.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--shared",
        type=pathlib.Path,
        default=REPOSITORY.parent / "shared",
        help="folder with models/stories260K (default: beside the checkout)",
    )
    arguments = parser.parse_args()
    make_reproducible()
    logging.disable_progress_bar()
    make_stories(arguments.shared / "models" / "stories260K")
    make_random("qwen3_tiny", qwen3_config(), torch.float32, SEED)
    make_random("qwen3_tiny_bf16", qwen3_config(), torch.bfloat16, SEED)
    make_random("llama3_tiny", llama3_config(), torch.float32, SEED + 10)


if __name__ == "__main__":
    main()
