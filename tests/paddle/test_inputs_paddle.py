"""Inputs and seeds of PaddlePaddle."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

import probe  # noqa: E402
from probe.adapters.paddle.seeding import to_tensor  # noqa: E402
from probe.reproducibility.inputs import tensor_maker  # noqa: E402


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    for framework in ("torch", "mindspore"):
        monkeypatch.delitem(sys.modules, framework, raising=False)
    yield


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_tensors_have_the_bits_of_the_arrays(dtype: str) -> None:
    text = f"{dtype}[3,4] < 100" if "int" in dtype else f"{dtype}[3,4]" if "float" in dtype else "bool[3,4] mask"
    plain = probe.make_inputs({"x": text})["x"]
    made = probe.make_inputs({"x": text}, to="paddle")["x"]
    assert str(made.dtype) == f"paddle.{dtype}" and made.numpy().tobytes() == plain.tobytes()
    assert made.stop_gradient


def test_bfloat16_keeps_its_bits() -> None:
    plain = probe.make_inputs({"x": "bfloat16[3,4]"})["x"]
    made = to_tensor(plain, paddle.nn.Linear(2, 2))
    assert made.dtype == paddle.bfloat16 and made.numpy().view(np.uint16).tobytes() == plain.tobytes()
    small = np.arange(4).astype("float32").astype(ml_dtypes.float8_e4m3fn)
    made = to_tensor(small)
    assert made.dtype == paddle.float8_e4m3fn and made.astype("float32").numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_dtypes_that_paddle_lacks(dtype: str) -> None:
    with pytest.raises(
        probe.errors.ConfigError, match=f"no tensor of paddle can be made from {dtype}: PaddlePaddle has no"
    ):
        tensor_maker("paddle")(np.zeros(2, dtype))


def test_shapes_without_elements_and_without_axes() -> None:
    assert to_tensor(np.zeros((0, 3), "int64")).shape == [0, 3] and to_tensor(np.array(2.5)).shape == []


def test_twice_the_same_seed() -> None:
    def drawn() -> list[object]:
        return [paddle.rand([3]).tolist(), paddle.nn.Linear(2, 2).weight.tolist(),
                paddle.nn.functional.dropout(paddle.ones([20])).tolist(), np.random.rand()]  # fmt: skip

    probe.seed_all(3)
    first = drawn()
    assert drawn() != first
    probe.seed_all(3)
    assert drawn() == first


def test_variables_that_have_no_effect_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "FLAGS_shard_norm_align_dp", "Flags_mp_aysnc_allreduce", "FLAGS_check_nan_inf"
    for name in names:
        monkeypatch.setenv(name, "1")
    missing = [text for text in probe.seed_all(3).missing if text.startswith(names)]
    assert missing == [
        f"FLAGS_shard_norm_align_dp, set in the environment: no flag of this build of paddlepaddle {paddle.__version__} has this name",
        "Flags_mp_aysnc_allreduce, set in the environment: PaddlePaddle reads only names that begin with FLAGS_",
    ]


def test_flags_that_this_build_does_not_read_are_named() -> None:
    seeding = probe.seed_all(3)
    assert "paddle.seed" in seeding.done
    if not paddle.is_compiled_with_cuda():
        text = f"FLAGS_cudnn_deterministic: this build of paddlepaddle {paddle.__version__} does not read it"
        assert text in seeding.missing
    assert probe.seed_all(3, deterministic=False).done == ("random", "numpy.random", "paddle.seed")
