"""What the fixture scripts share: reproducible PyTorch, packed samples, log-probs and entropies.

Samples are *packed*: the ids of all of them stand one after another in one array, with an array of
their lengths. A response is the last `response_length` ids of a sample. Arrays over response tokens
hold the responses one after another too; the value for the token at position p of a sample comes
from the logits at position p - 1.
"""

import dataclasses
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FIXTURES = REPOSITORY / "tests" / "fixtures"
SAMPLED_ENTRIES = 64  # entries of a parameter (or gradient) that a reference keeps


def make_reproducible() -> None:
    """One thread and deterministic kernels: the same versions give the same bits."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


@dataclasses.dataclass
class Packed:
    """Samples one after another."""

    tokens: torch.Tensor  # [T] ids
    lengths: list[int]  # [S] ids of each sample
    response_lengths: list[int]  # [S] how many of them, at the end, are the response

    @staticmethod
    def of(samples: list[list[int]], prompt_lengths: list[int]) -> "Packed":
        return Packed(
            tokens=torch.tensor([token for sample in samples for token in sample]),
            lengths=[len(sample) for sample in samples],
            response_lengths=[len(s) - p for s, p in zip(samples, prompt_lengths, strict=True)],
        )

    def samples(self) -> list[torch.Tensor]:
        return list(self.tokens.split(self.lengths))

    def response_positions(self) -> torch.Tensor:
        """[R] packed position of each response token."""
        ends = np.cumsum(self.lengths)
        return torch.cat(
            [torch.arange(e - r, e) for e, r in zip(ends, self.response_lengths, strict=True)]
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """As they are stored in a fixture."""
        return {
            "tokens": self.tokens.to(torch.int32),
            "lengths": torch.tensor(self.lengths, dtype=torch.int32),
            "response_lengths": torch.tensor(self.response_lengths, dtype=torch.int32),
            "response_positions": self.response_positions().to(torch.int32),
        }


def packed_logits(model: torch.nn.Module, packed: Packed) -> torch.Tensor:
    """[T, V] logits; every sample runs alone, so nothing is padded or masked."""
    return torch.cat([model(input_ids=sample[None]).logits[0] for sample in packed.samples()])


def response_stats(
    logits: torch.Tensor, packed: Packed, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[R] each: log-prob of a response token, and entropy of the distribution it came from."""
    positions = packed.response_positions()
    log_softmax = torch.log_softmax(logits[positions - 1].float() / temperature, dim=-1)
    log_probs = log_softmax.gather(1, packed.tokens[positions][:, None])[:, 0]
    entropies = -(log_softmax.exp() * log_softmax).sum(dim=-1)
    return log_probs, entropies


def scalar(value: float | torch.Tensor) -> torch.Tensor:
    """[1] float32."""
    return torch.as_tensor(value).detach().to(torch.float32).reshape(1)


def save_tensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a safetensors file, integers as int32, and says how large it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        stored[name] = tensor if tensor.is_floating_point() else tensor.to(torch.int32)
    save_file(stored, path)
    path.chmod(0o644)
    print(f"{path.relative_to(FIXTURES)}: {len(stored)} tensors, {path.stat().st_size} bytes")
