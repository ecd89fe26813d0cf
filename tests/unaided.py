"""Recording what a test trains without a line of probe, in the test's own process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from benchmarks.trainings.unaided import SCRIPTS, TRIALS, Edit, Outcome, Trial, edited, launched, look
from probe import session
from probe.adapters.base import adapter_named
from probe.run.order import Order
from probe.run.watching import Watch
from probe.testing import Recording

FILE = Path("a.h5")


@contextlib.contextmanager
def watched(framework: str, **order: Any) -> Iterator[Watch]:
    """Record what is trained inside of the block to ``a.h5``, as a process that `probe.run` has started does."""
    session._starts = 0
    watch = Watch(adapter_named(framework), Order(FILE.absolute(), **order), lambda: watch.end())
    try:
        yield watch
        watch.tell_what_was_missed()
    finally:
        watch.end()
        probe.stop()


def recorded() -> Recording:
    """Return what was recorded."""
    return Recording(FILE)


def roots() -> list[str]:
    """Return the class names of the models that were recorded."""
    run = probe.open(FILE)
    classes = [module.class_name for module in run.modules]
    return [each.class_name for each in run.modules if each.parent == 0] if classes[0] == "list" else classes[:1]


def trial(name: str) -> Trial:
    """Return a trial of the benchmark."""
    return next(each for each in TRIALS if each.name == name)


def trained(trial: Trial, folder: Path, monkeypatch: pytest.MonkeyPatch, *edits: Edit) -> dict[str, np.ndarray]:
    """Run a trial's script in this process and a folder of its own, with edits; return its losses and final weights."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    text = edited((SCRIPTS / trial.script).read_text(encoding="utf-8"), edits)
    words = ["--out"] if trial.script == "plain_torch.py" else []
    monkeypatch.setattr(sys, "argv", ["train.py", *words, "weights0.npz"])
    exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
    with np.load("weights0.npz") as weights:
        return {name: weights[name] for name in weights}


def of_process(trial: Trial, folder: Path, way: str) -> dict[str, np.ndarray]:
    """Run a trial's script in a process of its own; return the same."""
    launched(trial, (SCRIPTS / trial.script).read_text(encoding="utf-8"), folder, way)
    with np.load(folder / "weights0.npz") as weights:
        return {name: weights[name] for name in weights}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    """Tell whether two trainings have ended with the same bits."""
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


def lacking(trial: Trial, path: Path) -> list[str]:
    """Return what a recording of a trial should have and has not."""
    found = Outcome()
    look(trial, path, found)
    return found.lacks


def named(a: Path, b: Path) -> str:
    """Return the first place in which two recordings differ."""
    answer = probe.compare(a, b)
    return answer.divergences[0].path if answer.divergences else answer.verdict.name
