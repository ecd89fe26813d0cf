"""The clean pairs of the fifth held-out set: ports with other kernels, sums, batch splits, sizes, several steps."""

from __future__ import annotations

from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.seventh_making import right

_HALF = {"dtype": "fp16", "optimizer": "sgd"}
_EAGER = {"attention": "eager"}
_PORT, _SPLIT, _MICROS = "a port", "a port, sums in two parts", "a port, the batch split"

SEVENTH_CLEAN: tuple[Pair, ...] = (
    right("megatron-qwen2", _PORT, steps=3, **_EAGER),
    right("megatron-qwen2", _PORT, dtype="bf16", steps=2, clip=0.5),
    right("megatron-qwen2", _MICROS, {"micros": 2}, steps=2),
    right("megatron-qwen2", _PORT, width=2, layers=5, steps=2, seed=4),
    right("vllm-llama", _PORT, steps=4),
    right("vllm-llama", _PORT, dtype="autocast", steps=2),
    right("vllm-llama", _SPLIT, {"split": 2}, steps=2, clip=0.3),
    right("vllm-llama", _PORT, **_HALF, steps=3),
    right("meta-llama", _PORT, steps=3, micros=2),
    right("meta-llama", _PORT, dtype="bf16", steps=3),
    right("meta-llama", _PORT, width=2, layers=2, steps=2, **_EAGER),
    right("own-qwen3", _PORT, steps=3, clip=0.5),
    right("own-qwen3", _PORT, dtype="bf16", steps=2),
    right("own-qwen3", _SPLIT, {"split": 2}, dtype="autocast", steps=2),
    right("nano-gpt2", _PORT, steps=4, optimizer="sgd"),
    right("nano-gpt2", _PORT, dtype="bf16", steps=2, **_EAGER),
    right("nano-gpt2", _PORT, steps=2, layers=6, seed=2),
    right("own-mixtral", _PORT, steps=3),
    right("own-mixtral", _PORT, dtype="bf16", steps=2),
    right("own-mixtral", _MICROS, {"micros": 4}, micros=4, steps=2, clip=0.5),
    right("own-gemma2", _PORT, steps=3),
    right("own-gemma2", _PORT, dtype="autocast", steps=2),
    right("own-gemma2", _PORT, **_HALF, steps=2, layers=4),
    right("flat-bert", _PORT, steps=3, **_EAGER),
    right("flat-bert", _PORT, dtype="bf16", steps=3),
    right("flat-bert", _SPLIT, {"split": 4}, steps=2),
    right("own-vit", _PORT, steps=3),
    right("own-vit", _PORT, dtype="autocast", steps=3),
    right("own-vit", "a port, fp64 inside", {"doubled": True}, steps=2, clip=0.5),
    right("own-vit", _PORT, **_HALF, steps=2, **_EAGER),
    right("own-t5", _PORT, steps=3, **_EAGER),
    right("own-t5", _PORT, dtype="bf16", steps=2),
    right("own-t5", _MICROS, {"micros": 2}, steps=2, width=2),
    right("own-whisper", _PORT, steps=3),
    right("own-whisper", _PORT, dtype="autocast", steps=2, **_EAGER),
    right("own-whisper", _SPLIT, {"split": 2}, **_HALF, steps=2),
    right("own-mamba", _PORT, steps=3),
    right("own-mamba", _PORT, dtype="bf16", steps=2, clip=0.5),
    right("own-mamba", _PORT, steps=2, layers=5, seed=3),
    right("own-convnext", "a port, channels last on both sides", {}, steps=3, channels_last=True),
    right("own-convnext", _SPLIT, {"split": 4}, dtype="bf16", steps=3),
    right("own-convnext", "a port, fp64 inside", {"doubled": True}, steps=2),
)  # fmt: skip
