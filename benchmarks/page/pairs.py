"""Pairs of recordings of a Qwen2 with any number of layers: another kernel of attention, so that rounding differs, and one wrong eps."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
import transformers

import probe
from probe.answer.comparison import Comparison

PER_LAYER = 13
"""modules of a layer, itself among them"""
IDS = torch.arange(16).reshape(2, 8)
WRONG_EPS = 1e-4
_STACK = 1 << 29
"""bytes: PyTorch frees a graph that has hooks by calls in calls, thousands of layers deep"""


def compared(layers: int, folder: Path) -> Comparison:
    """Record one step of training of both models, and compare them."""
    paths = folder / f"a-{layers}.h5", folder / f"b-{layers}.h5"
    if not all(path.exists() for path in paths):
        old = threading.stack_size(_STACK)
        recording = threading.Thread(target=_record_both, args=(layers, *paths))
        recording.start()
        threading.stack_size(old)
        recording.join()
    return probe.compare(*paths)


def _record_both(layers: int, a: Path, b: Path) -> None:
    _record(_qwen2(layers, "sdpa"), a)
    wrong = _qwen2(layers, "eager")
    wrong.model.layers[layers // 2].post_attention_layernorm.variance_epsilon = WRONG_EPS
    _record(wrong, b)


def _qwen2(layers: int, attention: str) -> transformers.Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.Qwen2ForCausalLM(config)


def _record(model: transformers.Qwen2ForCausalLM, path: Path) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, quiet=True, overwrite=True):
        loss = model(input_ids=IDS, labels=IDS, use_cache=False).loss
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)
