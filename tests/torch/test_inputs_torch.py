"""Inputs, batches and seeds of PyTorch."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import probe
from probe.errors import ConfigError
from probe.reproducibility import origins

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
]


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(origins, "_facts", {})
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_bits_of_the_arrays(dtype: str) -> None:
    text = f"{dtype}[3,4] < 100" if "int" in dtype else f"{dtype}[3,4]" if "float" in dtype else "bool[3,4] mask"
    plain = probe.make_inputs({"x": text})["x"]
    for to in ("torch", torch.nn.Linear(2, 2), torch.nn.ReLU()):
        made = probe.make_inputs({"x": text}, to=to)["x"]
        assert str(made.dtype) == f"torch.{dtype}" and tuple(made.shape) == (3, 4)
        bits = (
            made
            if dtype == "bool"
            else made.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[made.itemsize])
        )
        assert bits.numpy().tobytes() == plain.tobytes()


def test_a_tensor_does_not_write_into_an_array() -> None:
    from probe.adapters.torch.seeding import to_tensor

    array = np.zeros(3)
    to_tensor(array).fill_(1)
    assert not array.any()


def test_the_device_of_the_model() -> None:
    model = torch.nn.Linear(2, 2, device="meta")
    assert probe.make_inputs({"x": "float32[2]"}, to=model)["x"].is_meta


def test_dtypes_that_pytorch_lacks() -> None:
    from probe.reproducibility.inputs import tensor_maker

    with pytest.raises(
        ConfigError, match="no tensor of torch can be made from <U1|no tensor of torch can be made from str"
    ):
        tensor_maker("torch")(np.array(["a"]))


def loader(seed: int = 0) -> DataLoader:
    generator = torch.Generator().manual_seed(seed)
    data = [{"ids": torch.arange(3) + i, "x": torch.full((2,), float(i)).bfloat16(), "name": f"n{i}"} for i in range(8)]
    return DataLoader(data, batch_size=3, shuffle=True, generator=generator)


def test_a_data_loader_is_replayed(tmp_path: Path) -> None:
    assert probe.save_batches(loader(), tmp_path / "b.npz") == 3
    replayed = probe.load_batches(tmp_path / "b.npz", like=torch.nn.Linear(2, 2))
    for before, after in zip(loader(), replayed, strict=True):
        assert before.keys() == after.keys() and before["name"] == after["name"]
        for name in ("ids", "x"):
            assert before[name].dtype == after[name].dtype and torch.equal(before[name], after[name])
    assert probe.compare_batches(loader(), tmp_path / "b.npz").equal
    different = probe.compare_batches(loader(), loader(seed=1)).difference
    assert different is not None and (different.batch, different.field) == (0, "ids")


def test_tensors_that_need_gradients_and_those_that_cannot_be_saved(tmp_path: Path) -> None:
    needs = torch.ones(2, requires_grad=True)
    probe.save_batches([{"x": needs * 2, "y": torch.ones(2, 3).T}], tmp_path / "b.npz")
    (loaded,) = probe.load_batches(tmp_path / "b.npz", like="torch")
    assert loaded["x"].tolist() == [2, 2] and loaded["y"].shape == (3, 2) and not loaded["x"].requires_grad
    with pytest.raises(
        ConfigError, match="x of batch 0 is one of the tensors of sparse_coo layout, which cannot be written"
    ):
        probe.save_batches([{"x": torch.ones(2).to_sparse()}], tmp_path / "c.npz")


# Seeds


def drawn() -> tuple[object, ...]:
    dropped = torch.nn.functional.dropout(torch.ones(20)).tolist()
    return random.random(), np.random.rand(), torch.rand(1).item(), torch.nn.Linear(2, 2).weight.tolist(), dropped


def test_twice_the_same_seed() -> None:
    probe.seed_all(3, deterministic=False)
    first = drawn()
    probe.seed_all(3, deterministic=False)
    assert drawn() == first


def test_determinism_is_switched_on() -> None:
    seeding = probe.seed_all(3)
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert "torch.use_deterministic_algorithms" in seeding.done
    assert "PyTorch's operations that have no deterministic form: it warns when one runs" in seeding.missing


def test_a_switch_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "torch.backends.cudnn.enable, which was set: PyTorch reads torch.backends.cudnn.enabled"
    assert text not in probe.seed_all(3).missing
    monkeypatch.setattr(torch.backends.cudnn, "enable", False, raising=False)
    assert text in probe.seed_all(3).missing


def test_without_determinism_the_switches_stay() -> None:
    seeding = probe.seed_all(3, deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled() and "torch.manual_seed" in seeding.done
    assert not torch.backends.cudnn.deterministic


def test_cublas_has_to_be_told_before_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    late = probe.seed_all(3)
    assert "cuBLAS: CUDA is in use already, CUBLAS_WORKSPACE_CONFIG=:4096:8 has to be set before" in late.missing
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    early = probe.seed_all(3)
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in early.done and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")


def test_a_framework_that_is_not_imported_is_left_alone() -> None:
    code = "import sys, probe; probe.seed_all(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_seeds_stand_in_the_recording(tmp_path: Path) -> None:
    probe.seed_all(9)
    model = torch.nn.Linear(2, 2)
    x = probe.make_inputs({"x": "float32[3,2]"}, to=model)["x"]
    with probe.capture(model, tmp_path / "a.h5"):
        model(x).sum().backward()
    with probe.open(tmp_path / "a.h5") as run:
        facts = run._reader.environment
    assert int(facts["seed"]) == 9 and "make_inputs, seed 42: x float32[3,2] normal" in facts["inputs"]
    assert bool(facts["deterministic_algorithms"]) and facts["initial_seed"] == "9"
