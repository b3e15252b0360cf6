"""Makes tests/fixtures/actor: three optimizer steps of GRPO and of SFT by PyTorch on qwen3_tiny.

The formulas are Miles' (policy loss with asymmetric clipping, low-variance KL, entropy; per-sample
mean, or mean over all tokens for SFT). tests/fixtures/README.md states them and lists the tensors.
Run make_model_fixtures.py first.

    python scripts/make_actor_fixtures.py
"""

import argparse
import json

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from reference_model import (
    FIXTURES,
    SAMPLED_ENTRIES,
    Packed,
    make_reproducible,
    packed_logits,
    response_stats,
    save_tensors,
    scalar,
)

SEED = 20240611
MODEL = "qwen3_tiny"
STEPS = 3
GROUP_SIZE = 4  # samples of one prompt
PROMPT_LENGTHS = [6, 11]  # one prompt a group
RESPONSE_LENGTHS = [14, 3, 22, 9, 17, 1, 12, 60]
REWARDS = [1.0, 0.0, 1.0, 0.0, 0.25, 1.0, 0.0, 0.5]
CLIP_MARGIN = 1e-4  # no ratio or KL term may be nearer to a limit: rounding must not decide

# Named as the command line names them.
SETTINGS = {
    "steps": STEPS,
    "lr": 1e-3,
    "adam_beta1": 0.9,
    "adam_beta2": 0.98,
    "adam_eps": 1e-8,
    "weight_decay": 0.1,
    "clip_grad": 1.0,
    "n_samples_per_prompt": GROUP_SIZE,
    "global_batch_size": GROUP_SIZE * len(PROMPT_LENGTHS),
    "grpo": {
        "rollout_temperature": 0.8,
        "eps_clip": 0.2,
        "eps_clip_high": 0.28,
        "kl_loss_type": "low_var_kl",
        "kl_loss_coef": 0.05,
        "entropy_coef": 0.01,
    },
    "sft": {"rollout_temperature": 1.0, "calculate_per_token_loss": True},
}


def load_model() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(FIXTURES / "model" / MODEL, dtype=torch.float32)


def make_samples(model: torch.nn.Module, rng: np.random.Generator) -> Packed:
    """Responses drawn from the model, so that their log-probs are those of a rollout."""
    temperature = SETTINGS["grpo"]["rollout_temperature"]
    prompts = [rng.integers(4, model.config.vocab_size, n).tolist() for n in PROMPT_LENGTHS]
    samples = []
    for index, length in enumerate(RESPONSE_LENGTHS):
        ids = list(prompts[index // GROUP_SIZE])
        for _ in range(length):
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0, -1].double()
            cumulative = torch.softmax(logits / temperature, dim=-1).cumsum(dim=0)
            drawn = int(torch.searchsorted(cumulative, rng.random()))
            ids.append(min(drawn, model.config.vocab_size - 1))
        samples.append(ids)
    return Packed.of(samples, [PROMPT_LENGTHS[i // GROUP_SIZE] for i in range(len(samples))])


def make_loss_mask(packed: Packed) -> torch.Tensor:
    """[R] All ones, but for some tokens inside the third response and the whole of the seventh."""
    masks = [torch.ones(length) for length in packed.response_lengths]
    masks[2][5:11] = 0
    masks[6][:] = 0
    return torch.cat(masks)


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """[S] Rewards less their group's mean, over its standard deviation (n - 1) plus 1e-6."""
    groups = rewards.view(-1, GROUP_SIZE)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + 1e-6)).flatten()


def sample_mean(values: torch.Tensor, mask: torch.Tensor, packed: Packed) -> torch.Tensor:
    """Masked mean over each response, summed over samples, over the global batch size."""
    lengths = packed.response_lengths
    total = values.new_zeros(())
    for value, kept in zip(values.split(lengths), mask.split(lengths), strict=True):
        total = total + (value * kept).sum() / kept.sum().clamp(min=1)
    return total / SETTINGS["global_batch_size"]


def token_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Masked mean over all response tokens of the global batch."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def check_clip_margin(values: torch.Tensor, limits: list[float]) -> None:
    for limit in limits:
        if (values - limit).abs().min() < CLIP_MARGIN:
            raise SystemExit(f"a value is too near to the clipping limit {limit}: change the seed")


def grpo_loss(
    model: torch.nn.Module, packed: Packed, batch: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    settings = SETTINGS["grpo"]
    log_probs, entropies = response_stats(
        packed_logits(model, packed), packed, settings["rollout_temperature"]
    )
    old, mask = batch["rollout_log_probs"], batch["loss_mask"]
    advantages = batch["advantages"].repeat_interleave(torch.tensor(packed.response_lengths))

    ratio = (log_probs - old).clamp(-20, 20).exp()
    low, high = 1 - settings["eps_clip"], 1 + settings["eps_clip_high"]
    check_clip_margin(ratio, [low, high])
    plain = -ratio * advantages
    clipped = -ratio.clamp(low, high) * advantages
    # The reference policy is the initial model: its log-probs are the rollout's.
    reference_lead = (old - log_probs).clamp(-20, 20)
    unclipped_kl = reference_lead.exp() - 1 - reference_lead
    check_clip_margin(unclipped_kl, [10])
    kl = unclipped_kl.clamp(-10, 10)

    parts = {
        "pg_loss": sample_mean(torch.maximum(plain, clipped), mask, packed),
        "pg_clipfrac": sample_mean((clipped > plain).float(), mask, packed),
        "ppo_kl": sample_mean(old - log_probs, mask, packed),
        "kl_loss": sample_mean(kl, mask, packed),
        "entropy_loss": sample_mean(entropies, mask, packed),
    }
    parts["loss"] = (
        parts["pg_loss"]
        + settings["kl_loss_coef"] * parts["kl_loss"]
        - settings["entropy_coef"] * parts["entropy_loss"]
    )
    return parts | {"log_probs": log_probs}


def sft_loss(
    model: torch.nn.Module, packed: Packed, batch: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    temperature = SETTINGS["sft"]["rollout_temperature"]
    log_probs, _ = response_stats(packed_logits(model, packed), packed, temperature)
    return {"loss": token_mean(-log_probs, batch["loss_mask"]), "log_probs": log_probs}


def make_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    """Decay on matrices (the embedding is one), none on norm weights."""
    groups = [
        {
            "params": [p for p in model.parameters() if p.ndim > 1],
            "weight_decay": SETTINGS["weight_decay"],
        },
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    betas = (SETTINGS["adam_beta1"], SETTINGS["adam_beta2"])
    return torch.optim.AdamW(groups, lr=SETTINGS["lr"], betas=betas, eps=SETTINGS["adam_eps"])


def steady_entries(gradient: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Flat indices, ascending, among the larger half of the gradient: Adam's first step is the
    gradient's sign, so an entry near zero would follow the rounding."""
    flat = gradient.abs().flatten()
    larger = flat.argsort(descending=True, stable=True)[: (flat.numel() + 1) // 2]
    chosen = rng.permutation(larger.numel())[:SAMPLED_ENTRIES]
    return larger[torch.from_numpy(chosen)].sort().values


def train(loss_of, packed: Packed, batch: dict[str, torch.Tensor], rng: np.random.Generator):
    """STEPS steps, each over the whole batch: metrics per step, final weights and moments."""
    model = load_model()
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model)
    steps, indices = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        metrics = loss_of(model, packed, batch)
        metrics["loss"].backward()
        if step == 0:
            for name, parameter in model.named_parameters():
                indices[name] = steady_entries(parameter.grad, rng)
        metrics["grad_norm"] = torch.nn.utils.clip_grad_norm_(
            model.parameters(), SETTINGS["clip_grad"]
        )
        optimizer.step()
        steps.append({name: value.detach() for name, value in metrics.items()})

    out = {name: torch.stack([metrics[name] for metrics in steps]) for name in steps[0]}
    for name, parameter in model.named_parameters():
        index, state = indices[name], optimizer.state[parameter]
        weight = parameter.detach()
        out[f"weight_norm.{name}"] = scalar(weight.double().norm())
        out[f"delta_norm.{name}"] = scalar((weight.double() - initial[name].double()).norm())
        out[f"index.{name}"] = index
        out[f"weight.{name}"] = weight.flatten()[index]
        out[f"exp_avg.{name}"] = state["exp_avg"].flatten()[index]
        out[f"exp_avg_sq.{name}"] = state["exp_avg_sq"].flatten()[index]
    return out


def report(name: str, out: dict[str, torch.Tensor]) -> None:
    for key in ("loss", "pg_loss", "pg_clipfrac", "ppo_kl", "kl_loss", "entropy_loss", "grad_norm"):
        if key in out:
            print(f"  {name} {key}: " + " ".join(f"{value:.6f}" for value in out[key].tolist()))


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    make_reproducible()
    logging.disable_progress_bar()
    rng = np.random.default_rng(SEED)
    model = load_model()
    packed = make_samples(model, rng)
    rewards = torch.tensor(REWARDS)
    with torch.no_grad():
        rollout_log_probs, _ = response_stats(
            packed_logits(model, packed), packed, SETTINGS["grpo"]["rollout_temperature"]
        )
    batch = {
        "loss_mask": make_loss_mask(packed),
        "rollout_log_probs": rollout_log_probs,
        "rewards": rewards,
        "advantages": group_advantages(rewards),
    }
    stored = packed.tensors() | batch | {"loss_mask": batch["loss_mask"].to(torch.int32)}
    directory = FIXTURES / "actor"
    for name, loss_of in (("grpo", grpo_loss), ("sft", sft_loss)):
        out = train(loss_of, packed, batch, rng)
        report(name, out)
        save_tensors(directory / f"{name}.safetensors", stored | out)
    (directory / "settings.json").write_text(json.dumps(SETTINGS, indent=2) + "\n")


if __name__ == "__main__":
    main()
