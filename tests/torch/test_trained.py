"""Models with what trained ones have are aligned with themselves under other kernels, and faults in them are named."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import probe
from benchmarks.trained.__main__ import FAULTED, FAULTS
from benchmarks.trained.models import LOOKS, batches_of, made, record
from probe.comparison.result import Verdict


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "look", "dtype"),
    [("qwen2", "biases", "bf16"), ("gpt2", "biases, massive", "autocast"), ("qwen2", "norms, massive", "fp32"),
     ("qwen2", "norms, massive", "bf16")],
)  # fmt: skip
def test_other_kernels_are_noise(tmp_path: Path, name: str, look: str, dtype: str) -> None:
    batches = batches_of(1)
    a = record(tmp_path / "a.h5", made(name, "sdpa", look, 1), dtype, batches)
    b = record(tmp_path / "b.h5", made(name, "eager", look, 1), dtype, batches, threads=2)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED


@pytest.mark.parametrize(("look", "fault"), [*zip(LOOKS, itertools.cycle(FAULTS), strict=False)])
def test_a_fault_is_named_in_any_look(tmp_path: Path, look: str, fault: str) -> None:
    batches = batches_of(2)[:1]
    a = record(tmp_path / "a.h5", made("qwen2", "sdpa", look, 2), "fp32", batches)
    net = made("qwen2", "eager", look, 2)
    place = FAULTS[fault](net)
    first = probe.compare(a, record(tmp_path / "b.h5", net, "fp32", batches)).first_divergence
    assert first is not None and first.path == f"model.layers.{FAULTED}.{place}"
