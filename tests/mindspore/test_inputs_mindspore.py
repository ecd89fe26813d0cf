"""Inputs and seeds of MindSpore."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

import probe  # noqa: E402
from probe.adapters.mindspore.seeding import to_tensor  # noqa: E402
from probe.reproducibility.inputs import tensor_maker  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    for framework in ("torch", "paddle"):
        monkeypatch.delitem(sys.modules, framework, raising=False)
    yield


DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_bits_of_the_arrays(dtype: str) -> None:
    text = f"{dtype}[3,4] < 100" if "int" in dtype else f"{dtype}[3,4]" if "float" in dtype else "bool[3,4] mask"
    plain = probe.make_inputs({"x": text})["x"]
    made = probe.make_inputs({"x": text}, to="mindspore")["x"]
    assert str(made.dtype).lower() == dtype and made.asnumpy().tobytes() == plain.tobytes()


def test_bfloat16_keeps_its_bits() -> None:
    plain = probe.make_inputs({"x": "bfloat16[3,4]"})["x"]
    made = to_tensor(plain, mindspore.nn.Dense(2, 2))
    assert made.dtype == mindspore.bfloat16
    assert made.float().asnumpy().tolist() == plain.astype("float32").tolist()


def test_dtypes_that_mindspore_lacks() -> None:
    small = np.arange(4).astype("float32").astype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(probe.errors.ConfigError, match="MindSpore has no float8_e4m3fn that it makes from an array"):
        tensor_maker("mindspore")(small)


def test_a_tensor_does_not_write_into_an_array() -> None:
    array = np.zeros(3, "float32")
    made = to_tensor(array)
    array[:] = 1
    assert made.asnumpy().tolist() == [0, 0, 0]


def test_shapes_without_elements_and_without_axes() -> None:
    assert to_tensor(np.zeros((0, 3), "int64")).shape == (0, 3) and to_tensor(np.array(2.5)).shape == ()


def test_twice_the_same_seed() -> None:
    def drawn() -> list[object]:
        drop = mindspore.nn.Dropout(p=0.5).set_train(True)
        return [mindspore.ops.rand(3).asnumpy().tolist(), mindspore.nn.Dense(2, 2).weight.asnumpy().tolist(),
                drop(mindspore.ops.ones((20,))).asnumpy().tolist(), np.random.rand()]  # fmt: skip

    probe.seed_all(3)
    first = drawn()
    assert drawn() != first
    probe.seed_all(3)
    assert drawn() == first


def test_determinism_is_switched_on_once() -> None:
    done = "mindspore.set_deterministic, with HCCL_DETERMINISTIC and TE_PARALLEL_COMPILER"
    for _ in range(2):
        seeding = probe.seed_all(3)
        assert done in seeding.done and mindspore.get_context("deterministic") == "ON"
    assert done not in probe.seed_all(3, deterministic=False).done
