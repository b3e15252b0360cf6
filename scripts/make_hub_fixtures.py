#!/usr/bin/env python3
"""Writes tests/fixtures/hub: files made by the libraries whose formats src/hub and src/model read.

Run it in an environment with safetensors, numpy, ml_dtypes and transformers, once with transformers 4 and once
with 5: each run writes the safetensors file and the config.json files of its own version.

    pip install safetensors numpy ml_dtypes "transformers<5"  && scripts/make_hub_fixtures.py
    pip install safetensors numpy ml_dtypes "transformers>=5" && scripts/make_hub_fixtures.py
"""

import pathlib

import ml_dtypes
import numpy as np
import safetensors.numpy
import transformers

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "hub"

# The values that tests/hub/safetensors_test.cpp expects, chosen to be exact in all three types.
VALUES = [0.0, -0.0, 1.0, -2.5, 0.15625, 384.0]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def write_tensors():
    tensors = {
        "float32": np.array(VALUES, np.float32).reshape(2, 3),
        "bfloat16": np.array(VALUES, ml_dtypes.bfloat16).reshape(2, 3),
        "float16": np.array(VALUES, np.float16).reshape(2, 3),
        "int64": np.array([7, -8], np.int64),
        "float64": np.array(0.5, np.float64),
        "empty": np.zeros((0, 4), np.float32),
    }
    safetensors.numpy.save_file(tensors, FIXTURES / "types.safetensors", {"format": "pt"})


def write_configs():
    major = transformers.__version__.split(".")[0]
    dtype = {"torch_dtype" if major == "4" else "dtype": "bfloat16"}
    qwen3 = transformers.Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960,
        tie_word_embeddings=True, bos_token_id=151643, eos_token_id=151645, max_window_layers=28,
        architectures=["Qwen3ForCausalLM"], **rope(major, 1000000.0), **dtype)
    llama = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072,
        rms_norm_eps=1e-5, bos_token_id=128000, eos_token_id=[128001, 128008, 128009],
        architectures=["LlamaForCausalLM"], **rope(major, 500000.0, LLAMA3_ROPE), **dtype)
    for name, config in (("qwen3", qwen3), ("llama3", llama)):
        directory = FIXTURES / f"{name}-transformers{major}"
        directory.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(directory)


def rope(major, theta, scaling=None):
    if major == "4":
        return {"rope_theta": theta, "rope_scaling": scaling}
    return {"rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": theta}}


if __name__ == "__main__":
    FIXTURES.mkdir(parents=True, exist_ok=True)
    write_tensors()
    write_configs()
