"""The pairs of models: how a recording of each side is made, and the truth."""

from __future__ import annotations

import importlib
import json
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import yaml

from probe.records import ModuleInfo
from probe.structure.printed import Printed, read_printed, write_structure
from tests.published.truth import Truth, read_truth

ROOT = Path(__file__).resolve().parents[2]
_TRUTHS = ROOT / "benchmarks" / "matching" / "truths"


@dataclass(frozen=True)
class Text:
    """A model of which there is only what print shows."""

    file: str
    """below the top of the repository"""
    framework: str = "torch"

    def read(self) -> Printed:
        return read_printed((ROOT / self.file).read_text(encoding="utf-8"), self.file, self.framework)


@dataclass(frozen=True)
class ModelPair:
    """Two models, and which module is which."""

    title: str
    truth: str
    """file in ``truths``"""
    run: str = ""
    """module in ``models`` whose two models are run, or"""
    a: Text | None = None
    b: Text | None = None

    def record(self, folder: Path) -> tuple[Path, Path]:
        """Write a recording of each side; return their paths."""
        files = folder / "a.h5", folder / "b.h5"
        if self.run:
            _run(importlib.import_module(f"benchmarks.matching.models.{self.run}").pair, files)
        else:
            for text, file in zip((self.a, self.b), files, strict=True):
                write_structure(file, text.read(), {})
        return files

    def truth_of(self, modules_a: list[ModuleInfo], modules_b: list[ModuleInfo]) -> Truth:
        text = (_TRUTHS / f"{self.truth}.txt").read_text(encoding="utf-8")
        return read_truth(text, [m.path for m in modules_a], [m.path for m in modules_b])


def _run(pair: Callable, files: tuple[Path, Path]) -> None:
    """Record one step of two models with the same weights and inputs, and see that they return the same."""
    import torch

    import probe

    torch.manual_seed(0)
    models = pair()
    returned = []
    for model, file in zip(models[:2], files, strict=True):
        probe.start(model, file)
        out = model(*models[2])
        out = getattr(out, "logits", out)
        loss = out.pow(2).mean()
        loss.backward()
        probe.step(loss=loss)
        probe.stop()
        returned.append(out.detach())
    torch.testing.assert_close(*returned, atol=1e-4, rtol=1e-4)


def scramble(file: Path, seed: int = 0) -> dict[str, str]:
    """Give every module of a recording a random string for a name; return the old path of every new one.

    Numbers stay: they are places in a list. So do classes, and what a module calls its own parameters.
    """
    rng = np.random.default_rng(seed)
    new: dict[str, str] = {}

    def renamed(path: str) -> str:
        parts = path.split(".") if path else []
        for part in parts:
            if not part.isdigit() and part not in new:
                new[part] = "".join(rng.choice(list(string.ascii_lowercase), 8))
        return ".".join(new.get(part, part) for part in parts)

    with h5py.File(file, "r+") as recording:
        modules, parameters = recording["modules"][:], recording["parameters"][:]
        paths = [path.decode() for path in modules["path"]]
        modules["path"] = [renamed(path) for path in paths]
        for row in parameters:
            owners = (name.rpartition(".") for name in json.loads(row["names"]))
            row["names"] = json.dumps([f"{renamed(owner)}{dot}{slot}" for owner, dot, slot in owners])
        recording["modules"][:], recording["parameters"][:] = modules, parameters
    return {renamed(path): path for path in paths}


def _text(words: str | None) -> Text | None:
    if words is None:
        return None
    name, *framework = words.split()
    return Text(name if name.endswith(".txt") else f"tests/skeletons/{name}.txt", *framework)


def _read(part: str) -> dict[str, ModelPair]:
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))[part]
    return {name: ModelPair(**row | {"a": _text(row.get("a")), "b": _text(row.get("b"))}) for name, row in rows.items()}


PAIRS = _read("pairs")
OTHER_TREES = _read("other_trees")
"""further trees that the ready-made mappings fit; with no mapping they are not measured"""
