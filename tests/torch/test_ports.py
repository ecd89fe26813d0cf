"""Hand-written ports against transformers' own models, as a new user compares them: with a mapping, and with none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import probe
from probe.comparison.result import Verdict

pytest.importorskip("transformers")

import ports  # noqa: E402

Pair = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Record transformers' model and the port of it; the same ones are recorded once."""
    folder = tmp_path_factory.mktemp("ports")
    made: dict[Any, tuple[Path, Path]] = {}

    def recorded(kind: str, fault: str = "", seed: int = 0, **options: Any) -> tuple[Path, Path]:
        key = kind, fault, seed, *options.items()
        if key not in made:
            inner = folder / str(len(made))
            inner.mkdir()
            made[key] = ports.pair(inner, kind, fault, seed, **options)
        return made[key]

    return recorded


@pytest.mark.parametrize("seed", [0, 3])
def test_a_batch_that_one_side_flattens_is_no_false_alarm_at_the_second_step(pair: Pair, seed: int) -> None:
    result = probe.compare(*pair("opt", seed=seed), yaml.safe_load(ports.OPT_MAP))
    assert result.verdict is Verdict.ALIGNED, result.divergences
    assert {slot.step for slot in result.slots} == {0, 1}
