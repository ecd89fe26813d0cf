"""Initial weights as distributions: two seeds of one initialisation pass, another gain, spread or form is named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.checks.initial import check_init
from probe.checks.initial.checking import Kind, Trait
from probe.checks.initial.distributions import (
    combined,
    drawn_from,
    kolmogorov_smirnov,
    p_of_means,
    p_of_peaks,
    p_of_stds,
)
from probe.checks.initial.known import like
from probe.checks.outcome import State, Status
from probe.demo import FOLDER, MAPPING, RECORDINGS
from probe.errors import ConfigError
from tests.cli.running import run as run_command
from tests.golden_files import golden
from tests.toy import nn
from tests.toy.tensor import Tensor

WIDTH, LAYERS = 48, 4
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(std: float) -> Draw:
    return lambda rng, shape: rng.standard_normal(shape) * std


def uniform(std: float) -> Draw:
    return lambda rng, shape: rng.uniform(-std * math.sqrt(3), std * math.sqrt(3), shape)


def model(seed: int, **special: Draw) -> nn.Module:
    """Return layers of normal weights of 0.02; those that are named (``layer_2`` or ``all``) are drawn otherwise."""
    rng = np.random.default_rng(seed)
    layers = []
    for at in range(LAYERS):
        draw = special.get(f"layer_{at}", special.get("all", normal(0.02)))
        layer = nn.Linear(WIDTH, WIDTH)
        layer.weight.data[...] = draw(rng, layer.weight.shape)
        layer.bias.data[...] = special["bias"](rng, layer.bias.shape) if "bias" in special and at == 1 else 0.0
        layers.append(layer)
    return nn.Sequential(*layers)


def recorded(path: Path, made: nn.Module, task: str = "tensor") -> Path:
    with probe.capture(made, path, task=task):
        made(Tensor(np.ones((2, WIDTH), np.float32)))
        probe.step()
    return path


def pair(folder: Path, task: str = "tensor", **special: Draw) -> tuple[Path, Path]:
    return recorded(folder / "a.h5", model(1), task), recorded(folder / "b.h5", model(2, **special), task)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_two_seeds_pass(tmp_path: Path, task: str) -> None:
    found = check_init(*pair(tmp_path, task))
    assert found.status is Status.CLEAN and not found.differing
    assert [each.kind for each in found.parameters].count(Kind.ALIKE) == LAYERS  # biases are 0 on both sides
    assert found.level == pytest.approx(1e-3 / (3 * LAYERS + 3))


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("special", "failed"),
    [
        ({"layer_2": normal(0.02 * math.sqrt(2))}, Trait.STD), ({"layer_2": normal(0.024)}, Trait.STD),
        ({"layer_2": lambda rng, shape: normal(0.02)(rng, shape) + 0.01}, Trait.MEAN), ({"bias": normal(0.02)}, Trait.CONSTANT),
        ({"bias": lambda rng, shape: np.ones(shape)}, Trait.CONSTANT),
    ],
)  # fmt: skip
def test_what_one_layer_draws_otherwise_is_named(
    tmp_path: Path, special: dict[str, Draw], failed: Trait, task: str
) -> None:
    found = check_init(*pair(tmp_path, task, **special))
    assert found.status is Status.FOUND
    name = "1.bias" if "bias" in special else "2.weight"
    assert [each.name_a for each in found.differing] == [name] and failed in found.differing[0].failed


@pytest.mark.parametrize(("task", "failed"), [("tensor", Trait.KS), ("statistics", Trait.PEAK)])
def test_another_form_of_the_same_spread_is_named(tmp_path: Path, task: str, failed: Trait) -> None:
    """In every layer: statistics of one alone do not tell, the largest magnitudes of all together do."""
    found = check_init(*pair(tmp_path, task, all=uniform(0.02)))
    assert {each.name_a for each in found.differing} == {f"{at}.weight" for at in range(LAYERS)}
    assert all(failed in each.failed and Trait.STD not in each.failed for each in found.differing)


def test_a_spread_that_only_all_layers_together_tell(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a.h5", model(1))
    every = check_init(a, recorded(tmp_path / "b.h5", model(2, all=normal(0.0213))))
    assert len(every.differing) == LAYERS and all(each.failed == (Trait.STD,) for each in every.differing)
    assert not check_init(a, recorded(tmp_path / "c.h5", model(2, layer_1=normal(0.0213)))).differing


def test_equal_weights_are_no_question_of_chance(tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a.h5", model(1)), recorded(tmp_path / "b.h5", model(1))
    found = check_init(a, b)
    assert found.status is Status.CLEAN and {each.kind for each in found.parameters} == {Kind.EQUAL}


def test_packed_weights_are_held_against_their_parts_together() -> None:
    """The port packs q, k and v, and gate and up, which transformers keeps apart; both began with the same numbers."""
    found = check_init(*(FOLDER / name for name in RECORDINGS), MAPPING)
    assert found.status is Status.CLEAN and not found.only_a and not found.only_b
    packed = [each for each in found.parameters if " + " in each.name_a]
    assert len(packed) == 3 * 6 and {each.kind for each in found.parameters} == {Kind.EQUAL}


def test_without_initial_weights_nothing_is_checked(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a.h5", model(1), "structure")
    assert check_init(a, recorded(tmp_path / "b.h5", model(2))).status is Status.UNCHECKED
    assert run_command("check", "init", a, tmp_path / "b.h5").exit_code == 2


def test_parameters_without_counterpart_are_said(tmp_path: Path) -> None:
    longer = nn.Sequential(*model(2), nn.Linear(WIDTH, WIDTH))
    found = check_init(recorded(tmp_path / "a.h5", model(1)), recorded(tmp_path / "b.h5", longer))
    assert found.only_b == ("4.weight", "4.bias") and found.only_a == () and found.status is Status.CLEAN
    assert [line.state for line in found.lines if line.topic == "pairs"] == [State.UNKNOWN]


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
def test_a_level_that_is_none(tmp_path: Path, alpha: float) -> None:
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        check_init(*pair(tmp_path), alpha=alpha)


# The tests themselves


def test_p_is_as_often_small_as_it_says() -> None:
    """Of two samples of one distribution p < 0.05 in one of twenty; of the largest magnitude at most that often."""
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {"mean": [], "std": [], "ks": [], "peak": []}
    for number in range(600):
        draw = rng.standard_normal if number % 2 else lambda size: rng.uniform(-1, 1, size)
        a, b = drawn_from(draw(300)), drawn_from(draw(300))
        assert a.values is not None and b.values is not None
        found["mean"].append(p_of_means(a, b))
        found["std"].append(p_of_stds(a, b))
        found["ks"].append(kolmogorov_smirnov(a.values, b.values)[1])
        found["peak"].append(p_of_peaks(a, b))
    shares = {name: float(np.mean(np.array(each) < 0.05)) for name, each in found.items()}
    assert all(0.02 < shares[name] < 0.085 for name in ("mean", "std", "ks")) and shares["peak"] < 0.05


def test_the_statistic_of_kolmogorov_and_smirnov() -> None:
    """The largest distance of the two steps by hand; p at the critical value of 5 %, λ = 1.358."""
    statistic, _ = kolmogorov_smirnov(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.5, 3.5, 4.5, 5.5, 6.5]))
    assert statistic == pytest.approx(0.6)  # at 4: 4/4 and 2/5
    size = 20000
    gap = round(1.3581 / math.sqrt(size / 2) * size)
    a = np.arange(size, dtype=float)
    found, p = kolmogorov_smirnov(a, a + gap)
    assert found == pytest.approx(gap / size) and p == pytest.approx(0.05, rel=0.02)


def test_several_tests_together() -> None:
    assert combined([0.3]) == pytest.approx(0.3)
    assert combined([0.1, 0.1]) == pytest.approx(0.01 * (1 - math.log(0.01)))  # of a product of two
    assert combined([1.0, 1.0, 1.0]) == pytest.approx(1.0) and combined([0.0] * 5) < 1e-300 * 10


@pytest.mark.parametrize(
    ("draw", "shape", "is_table", "wanted"),
    [
        (normal(0.02), (64, 64), False, "normal(0, 0.02)"), (uniform(1 / math.sqrt(3 * 128)), (64, 128), False, "uniform ±1/√fan_in"),
        (uniform(math.sqrt(2 / 192)), (64, 128), False, "Xavier uniform"), (normal(math.sqrt(2 / 192)), (64, 128), False, "Xavier normal"),
        (normal(math.sqrt(2 / (16 * 9))), (64, 16, 3, 3), False, "Kaiming normal"), (normal(1.0), (100, 64), True, "normal(0, 1)"),
        (uniform(math.sqrt(2 / 164)), (100, 64), True, "Xavier uniform"), (uniform(1 / math.sqrt(192)), (100, 64), True, ""),
        (normal(0.037), (64, 64), False, ""), (lambda rng, shape: np.ones(shape), (64,), False, "constant 1"),
    ],
)  # fmt: skip
def test_known_initialisations(draw: Draw, shape: tuple[int, ...], is_table: bool, wanted: str) -> None:
    found = like(drawn_from(draw(np.random.default_rng(0), shape)), shape, is_table)
    assert found.startswith(wanted) and bool(found) is bool(wanted)


# The command


def test_the_command(tmp_path: Path) -> None:
    a, b = pair(tmp_path, layer_2=uniform(0.05))
    result = run_command("check", "init", a, b)
    assert result.exit_code == 1 and all(len(line) <= 80 for line in result.stdout.splitlines())
    golden("check-init", result.stdout, (r"^FOUND .*(\n  /.*)*", "FOUND  <files>"))
    assert len(run_command("check", "init", a, b, "-v").stdout.splitlines()) > len(result.stdout.splitlines())
    document = json.loads(run_command("check", "init", a, b, "--json").stdout)
    differing = [each for each in document["parameters"] if each["kind"] == "differs"]
    assert (
        document["status"] == "found"
        and [each["a"] for each in differing] == ["2.weight"]
        and 0 < differing[0]["ks"] < 1
    )
    assert run_command("check", "init", a, a).exit_code == 0
    assert run_command("check", "init", a, tmp_path / "none.h5").exit_code == 3
