"""Tokens drawn from distributions of many kinds, written by an engine with one fault each: which form is found; noise has none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.checks.logprobs import LogProbs, check_logprobs
from probe.checks.logprobs.reading import TABLE
from probe.checks.outcome import State, Status

ROWS, LENGTH, PROMPT, IDS = 10, 150, 20, 300
Array = np.ndarray
AT = np.arange(LENGTH)


def normal(z: Array) -> Array:
    """Return log-probabilities of logits."""
    return z - z.max(axis=-1, keepdims=True) - np.log(np.exp(z - z.max(axis=-1, keepdims=True)).sum(-1, keepdims=True))


def kept(threshold: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    """Return what renormalises the logits of at least a threshold; the sampled token is kept."""

    def of(z: Array, ids: Array) -> Array:
        keep = z >= threshold(z)
        keep[AT, ids[PROMPT:]] = True
        return normal(np.where(keep, z, -np.inf))[AT, ids[PROMPT:]]

    return of


def top_p(z: Array) -> Array:
    p = -np.sort(-np.exp(normal(z)), axis=1)
    last = (np.cumsum(p, axis=1) - p < 0.8).sum(axis=1, keepdims=True) - 1
    return np.take_along_axis(-np.sort(-z, axis=1), last, axis=1)


def penalised(z: Array, ids: Array) -> Array:
    came = np.array([np.isin(np.arange(IDS), ids[: PROMPT + at]) for at in AT])
    return normal(z - 1.0 * came)[AT, ids[PROMPT:]]


def taken(change: Callable[[Array], Array] = lambda b: b, power: float = 1.0, label: int = 0) -> Callable[[Array, Array], Array]:  # fmt: skip
    return lambda z, ids: change(normal(z * power)[AT, np.roll(ids, label)[PROMPT:]])


Told = Callable[[Array, Array], Array]
FAULTS: dict[str, tuple[Told, str, dict[str, Any]]] = {
    "top-p": (kept(top_p), "one-sided", {"side": "B", "may_be_likeliest": False}),
    "top-k": (kept(lambda z: -np.sort(-z, axis=1)[:, 4:5]), "one-sided", {"side": "B"}),
    "min-p": (kept(lambda z: z.max(axis=1, keepdims=True) + np.log(0.1)), "one-sided", {"side": "B"}),
    "padded vocabulary": (lambda z, ids: normal(np.append(z, np.full((LENGTH, 64), 1.0), axis=1))[AT, ids[PROMPT:]], "one-sided", {"side": "A"}),
    "the likeliest token": (lambda z, ids: normal(z).max(axis=1), "other", {"side": "B"}),
    "the token before": (taken(label=1), "other", {"side": "", "label": -1}),
    "a penalty": (penalised, "seen", {"side": "B"}),
    "temperature 0.7": (taken(power=1 / 0.7), "factor", {"slope": pytest.approx(1 / 0.7, rel=0.05)}),
    "temperature 1.5": (taken(power=1 / 1.5), "factor", {"slope": pytest.approx(1 / 1.5, rel=0.05)}),
    "base 2": (taken(lambda b: b / np.log(2)), "unit", {"side": "B", "function": "A / ln 2"}),
    "probabilities": (taken(np.exp), "unit", {"function": "exp(A)"}),
    "negative": (taken(lambda b: -b), "unit", {"function": "−A"}),
    "over its tokens": (taken(lambda b: b / LENGTH), "unit", {"function": "A / n, n the tokens of its sequence"}),
    "a mean": (taken(lambda b: np.full(LENGTH, b.mean())), "unit", {"function": "the mean of A over its sequence"}),
    "a running sum": (taken(np.cumsum), "unit", {"function": "the sum of A up to the token"}),
    "other values here and there": (taken(lambda b: np.where(AT % 9 == 4, b - 1.5, b)), "some", {"position": PROMPT + 4}),
}  # fmt: skip


def asked(folder: Path, told: Told, seed: int = 0, width: float = 0.02, t: float = 1.0, heads: int = ROWS, order: Callable[[list[Any]], list[Any]] = list) -> LogProbs:  # fmt: skip
    """Hold sequences that are drawn at a temperature against an engine's numbers of them, which have noise of a width at temperature 1."""
    rng = np.random.default_rng(seed)
    a, b = [], []
    for row in range(ROWS):
        z = rng.standard_normal((LENGTH, IDS)) * rng.choice([1, 2.5, 6], (LENGTH, 1)) / t
        z[:, :20] += 3  # usual ids, which come again
        ids = np.append(
            np.random.default_rng(row % heads).integers(0, IDS, PROMPT), (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        )
        noise = (rng.standard_normal if row % 2 else rng.laplace)(size=z.shape) * width / t
        a.append({"ids": ids.tolist(), "prompt_length": PROMPT, "logprobs": taken()(z, ids).tolist()})
        b.append({**a[-1], "logprobs": told(z + noise, ids).tolist()})
    own = [{**each, "logprobs": given["logprobs"]} for each, given in zip(b, order(b), strict=True)]
    for name, records in (("a", a), ("b", own)):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(each) for each in records), encoding="utf-8")
    return check_logprobs(folder / "a.jsonl", folder / "b.jsonl")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_form(tmp_path: Path, fault: str) -> None:
    told, code, facts = FAULTS[fault]
    found = asked(tmp_path, told)
    assert found.form == code and found.next
    assert {name: found.found[0].facts[name] for name in facts} == facts


@pytest.mark.parametrize("t", [0.6, 0.7, 1.0])
@pytest.mark.parametrize("width", [1e-6, 0.01, 0.03, 0.04])
def test_noise_has_no_form_at_any_temperature(tmp_path: Path, width: float, t: float) -> None:
    found = asked(tmp_path, taken(), width=width, t=t)
    assert (found.form, found.status) == ("", Status.CLEAN)
    assert (State.UNKNOWN in {line.state for line in found.lines}) is (width / t > 0.045)


def test_sequences_that_changed_places_are_said(tmp_path: Path) -> None:
    found = asked(tmp_path, taken(), order=lambda b: [b[1], b[0], *b[2:]])
    assert found.form == "swapped" and found.found[0].facts["other"] == 1


def test_a_prefix_that_is_shared_with_an_earlier_sequence_is_said(tmp_path: Path) -> None:
    rows = iter(range(ROWS))
    stale = np.random.default_rng(9)
    found = asked(tmp_path, lambda z, ids: taken()(z + 0.4 * (next(rows) >= 6) * stale.standard_normal(z.shape), ids), heads=6)  # fmt: skip
    assert (found.form, found.found[0].facts["is_prefix"], found.found[0].facts["numbers"]) == ("sequences", True, (6, 7, 8, 9))  # fmt: skip


def test_the_reference_lists_the_keys_of_each_program() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "checks.md").read_text(encoding="utf-8").splitlines()
    for name, keys in TABLE["forms"].items():
        (row,) = (line for line in page if line.startswith(f"| {name} |"))
        assert set(re.findall(r"`([^`]+)`", row)) == {path for paths in keys.values() for path in paths}
