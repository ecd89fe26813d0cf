"""`probe.noise_run`: it moves weights by rounding, reproducibly, and puts everything back."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import probe
from probe.answer.result import Verdict
from probe.errors import ConfigError
from probe.reproducibility.perturbing import move
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import batch, gpt, loss_of, plain_step, record, rounding_otherwise


def bits(model: nn.Module, optimizer: nn.Optimizer) -> list[bytes]:
    """Return all that a step changes."""
    found = [parameter.data.tobytes() for parameter in model.parameters()]
    found += [b"" if p.grad is None else p.grad.data.tobytes() for p in model.parameters()]
    for state in optimizer.state.values():
        found += [v.data.tobytes() if isinstance(v, Tensor) else str(v).encode() for v in state.values()]
    found.append(str([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]).encode())
    return [
        *found,
        str(nn.random_state()).encode(),
        str(random.getstate()).encode(),
        np.random.get_state()[1].tobytes(),
    ]


def trained() -> tuple[nn.Module, nn.Optimizer]:
    """Return a model in the middle of its training, with gradients that wait for a step."""
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    plain_step(model, optimizer, 0)
    loss_of(model(batch(1)), batch(1)).backward()
    return model, optimizer


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_it_was(tmp_path: Path, fails: bool) -> None:
    model, optimizer = trained()
    before = bits(model, optimizer)
    objects = [p.grad for p in model.parameters()]
    inside = before
    with contextlib.suppress(ZeroDivisionError):
        with probe.noise_run(model, tmp_path / "a2.h5"):
            inside = bits(model, optimizer)
            plain_step(model, optimizer, 2)
            optimizer.param_groups[0]["weight_decay"] = 0.5
            random.random(), np.random.random(), nn.Dropout(0.5)(Tensor(np.ones(3)))
            if fails:
                raise ZeroDivisionError
    assert inside != before
    assert bits(model, optimizer) == before
    assert all(p.grad is mine for p, mine in zip(model.parameters(), objects, strict=True))


def test_an_optimizer_without_state_has_none_behind_it(tmp_path: Path) -> None:
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.noise_run(model, tmp_path / "a2.h5"):
        plain_step(model, optimizer, 0)
    assert optimizer.state == {} and all(p.grad is None for p in model.parameters())


def test_a_seed_says_which_run_it_is(tmp_path: Path) -> None:
    weights = []
    for number, seed in enumerate((3, 3, 4)):
        model = gpt()
        with probe.noise_run(model, tmp_path / f"{number}.h5", seed=seed):
            weights.append([p.data.copy() for p in model.parameters()])
    same, other = [all(np.array_equal(x, y) for x, y in zip(weights[0], each, strict=True)) for each in weights[1:]]
    assert same and not other
    for seed in (-1, True, 2**32, "1"):
        with pytest.raises(ConfigError, match="expected an integer from 0 to 4294967295"):
            with probe.noise_run(gpt(), tmp_path / "no.h5", seed=seed):  # type: ignore[arg-type]
                pass


@pytest.mark.thorough
def test_the_floor_is_one_of_rounding(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", task="tensor")
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.noise_run(model, tmp_path / "a2.h5", task="tensor"):
        probe.step(loss=plain_step(model, optimizer, 0))
    floor = probe.compare(a, tmp_path / "a2.h5")
    assert floor.verdict is Verdict.ALIGNED
    assert 1e-8 < max(slot.metrics.rel_l2 for slot in floor["head"] if slot.phase.label == "forward") < 1e-6
    b = record(tmp_path / "b.h5", rounding_otherwise(gpt()), task="tensor")
    found = probe.compare(a, b, noise=tmp_path / "a2.h5")
    assert (found.verdict, found.noise) == (Verdict.ALIGNED, "1 further run of A (a2.h5)")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_elements_move_to_their_neighbours(dtype: type) -> None:
    values = np.concatenate(
        [np.random.default_rng(0).standard_normal(4000), [0.0, -0.0, np.inf, -np.inf, np.nan]]
    ).astype(dtype)
    values = np.append(values, np.array([ml_dtypes.finfo(dtype).max], dtype))
    before = values.copy()
    assert move(values, np.random.default_rng(1))
    u = float(ml_dtypes.finfo(dtype).eps)
    finite = np.isfinite(before.astype(np.float64)) & (before != 0)
    change = np.abs(values[finite].astype(np.float64) / before[finite].astype(np.float64) - 1)
    assert change.max() <= u and np.isfinite(values[-1].astype(np.float64))
    share = np.mean(change > 0)
    assert share == pytest.approx(1 / 16, abs=0.02) if np.dtype(dtype).itemsize == 2 else share > 0.99
    assert values[~finite].tobytes() == before[~finite].tobytes()


def test_integers_do_not_move() -> None:
    values = np.arange(5)
    assert not move(values, np.random.default_rng(0)) and list(values) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2.0**-7), ("float16", 2.0**-10)])
def test_weights_that_autocast_casts_move_by_a_unit_of_that(dtype: str, unit: float) -> None:
    values = np.append(np.random.default_rng(0).standard_normal(4000), [0.0, np.inf, np.nan, 1e-44, 3e38]).astype(
        np.float32
    )
    before = values.copy()
    assert move(values, np.random.default_rng(1), dtype)
    change = np.abs(values[:4000] / before[:4000] - 1)
    assert unit / 2 <= change[change > 0].min() and change.max() <= unit
    assert np.mean(change > 0) == pytest.approx(1 / 16, abs=0.02)
    assert np.isfinite(values[-2:]).all() and values[4000:4003].tobytes() == before[4000:4003].tobytes()


def test_a_dtype_that_is_none_of_autocast(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="dtype='fp8' cannot be used; expected 'bfloat16' or 'float16', or none without"
    ):
        with probe.noise_run(gpt(), tmp_path / "no.h5", dtype="fp8"):
            pass
