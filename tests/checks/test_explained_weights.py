"""How an engine's weights came of a trainer's: earlier ones, whole or by shard, a coarser grid, another order, an update counted more than once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from probe.checks.outcome import Status
from probe.checks.weights import check_weights
from probe.errors import ConversionError
from tests.checks.test_weights import COUNT, LAYERS, WIDTH, Arrays, held, saved, trained
from tests.cli.running import run as run_command

A = trained()
UP = "layers.1.up.weight"


def moved(by: float, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: (each + by * each.std() * rng.standard_normal(each.shape)).astype(np.float32) for name, each in A.items()}  # fmt: skip


BEFORE, BASE = moved(0.01, 1), moved(0.05, 2)


def kept(state: Arrays, dtype: Any = ml_dtypes.bfloat16, wide: Any = None) -> Arrays:
    return {name: each.astype(dtype).astype(wide or dtype) for name, each in state.items()}


def tuned(k: float) -> Arrays:
    return {name: BASE[name] + np.float32(k) * (A[name] - BASE[name]) for name in A}


def with_up(change: Any) -> Arrays:
    return {name: change(each) if name.endswith("up.weight") else each for name, each in A.items()}


MATRICES = {name for name, each in A.items() if each.ndim == 2}
CASES: dict[str, tuple[Arrays, str, int, dict[str, Any]]] = {
    "stale": (BEFORE, "as-before", COUNT, {"part": ""}),
    "one stale": ({**A, UP: BEFORE[UP]}, "as-before", 1, {"part": ""}),
    "a stale shard": ({**A, UP: np.concatenate([A[UP][:WIDTH], BEFORE[UP][WIDTH:]])}, "as-before", 1, {"part": f"rows {WIDTH} to {2 * WIDTH - 1} of {2 * WIDTH}"}),
    "stale columns": ({**A, UP: np.concatenate([BEFORE[UP][:, :8], A[UP][:, 8:]], axis=1)}, "as-before", 1, {"part": f"columns 0 to 7 of {WIDTH}"}),
    "merged in bfloat16": (kept(A, wide=np.float32), "rounded", COUNT, {"grid": "bfloat16", "kept": "float32"}),
    "sent in float8": (kept(A, ml_dtypes.float8_e4m3fn, np.float32), "rounded", COUNT, {"grid": "float8_e4m3fn"}),
    "interleaved heads": (with_up(lambda each: each.reshape(4, 2, 6, WIDTH).swapaxes(1, 2).reshape(each.shape)), "permuted", LAYERS, {"axis": 0, "blocks": 4, "shape": (2, 6, 1)}),
    "halves exchanged": (with_up(lambda each: np.roll(each, WIDTH, axis=0)), "permuted", LAYERS, {"axis": 0, "order": tuple(range(WIDTH, WIDTH + 8))}),
    "columns": (with_up(lambda each: each[:, ::-1]), "permuted", LAYERS, {"axis": 1}),
    "twice": (tuned(2), "multiple", COUNT, {"times": 2, "k": pytest.approx(2, rel=1e-4)}),
    "half": (tuned(0.5), "multiple", COUNT, {"times": 2, "is_inverse": True}),
    "four times in bfloat16": (kept(tuned(4)), "multiple", 1 + 3 * LAYERS, {"times": 4, "root": 16}),
    "root of the rank": (tuned(8**0.5), "multiple", COUNT, {"times": 0, "root": 8}),
    "no whole factor": (tuned(3.3), "multiple", COUNT, {"times": 0, "root": 0}),
    "no update": (tuned(0), "multiple", COUNT, {"is_none": True}),
    "something else": (moved(0.3, 9), "unexplained", COUNT, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_explanation_is_found_with_its_numbers(tmp_path: Path, case: str) -> None:
    b, code, count, facts = CASES[case]
    third = {"base" if code == "multiple" else "before": saved(tmp_path / "third.safetensors", BASE if code == "multiple" else BEFORE)}  # fmt: skip
    found = held(tmp_path, b, A, **third)
    said = [note for note in found.found if note.code == f"weights-{code}"]
    assert len(said) == 1 and len(said[0].facts["names"]) == count and str(said[0])
    assert {name: said[0].facts[name] for name in facts} == facts


@pytest.mark.parametrize("b", [kept(A), kept(tuned(1)), A], ids=["bfloat16", "merged", "the same"])
def test_what_an_engine_holds_rightly_is_not_found(tmp_path: Path, b: Arrays) -> None:
    found = held(tmp_path, b, A, base=saved(tmp_path / "base.safetensors", BASE))
    assert found.status is Status.CLEAN
    assert set(found.explained.values()) <= {"weights-rounded", "weights-multiple"}


def test_weights_that_were_16_bits_before_are_right_as_such(tmp_path: Path) -> None:
    state = {name: each.astype(ml_dtypes.bfloat16).astype(np.float32) for name, each in A.items()}
    found = held(tmp_path, kept(state), state)
    assert found.status is Status.CLEAN


@pytest.mark.parametrize("third", ["before", "base"])
def test_a_multiple_is_told_of_the_weights_that_were_given(tmp_path: Path, third: str) -> None:
    found = held(tmp_path, tuned(2), A, **{third: saved(tmp_path / "third.safetensors", BASE)})
    (said,) = [note for note in found.found if note.code == "weights-multiple"]
    assert f"B = {third} + 2 · (A − {third})" in str(said)


def test_a_row_that_an_update_missed_is_found_though_the_factor_is_one(tmp_path: Path) -> None:
    wrong = {**A, UP: np.concatenate([BASE[UP][:1], A[UP][1:]])}
    found = held(tmp_path, wrong, A, base=saved(tmp_path / "base.safetensors", BASE))
    assert [note.facts["names"] for note in found.found if note.code == "weights-unexplained"] == [(UP,)]


def test_two_trainings_are_not_held_to_be_the_same(tmp_path: Path) -> None:
    found = held(tmp_path, trained(1))
    assert found.status is Status.CLEAN and not found.explained
    assert "weights-unexplained" not in [line.said.code for line in found.lines]


def test_the_options_of_the_command(tmp_path: Path) -> None:
    files = {name: saved(tmp_path / f"{name}.safetensors", state) for name, state in (("a", A), ("b", BEFORE), ("x", {"y": A[UP]}))}  # fmt: skip
    result = run_command("check", "weights", files["a"], files["b"], "--before", files["b"])
    assert result.exit_code == 1 and "A's of before the last update" in " ".join(result.stdout.split())
    with pytest.raises(ConversionError, match="expected A's names"):
        check_weights(files["a"], files["b"], before=files["x"])


def test_the_guide_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "inference.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    stale = {name: each for name, each in kept(BEFORE).items() if name.startswith("layers.1.")}
    files = {"trainer": A, "engine": {**kept(A), **stale}, "step9": BEFORE, "merged": tuned(8**0.5), "base": BASE}
    for name, state in files.items():
        saved(Path(f"{name}.safetensors"), state)
    blocks = [each.partition("\n```")[0] for each in guide.split("$ probe check weights ")[1:]]
    assert len(blocks) == 2
    for block in blocks:
        command, _, shown = block.partition("\n")
        printed = run_command("check", "weights", *command.split()).stdout
        assert printed.startswith(shown.removesuffix("…").rstrip())
