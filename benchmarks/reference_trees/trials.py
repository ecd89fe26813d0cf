"""Recording both models, right and with faults, and comparing them: bare, with the library's mapping, with the published templates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import probe
from benchmarks.reference_trees.converter import mindspeed_of
from benchmarks.reference_trees.faults import FAULTS, Fault, plant
from benchmarks.reference_trees.llamafactory import llamafactory
from benchmarks.reference_trees.sizes import Sizes
from benchmarks.reference_trees.training import record

DATA = Path(__file__).parents[2] / "tests" / "data"
TASKS = ("tensor", "statistics")
VARIANTS = {
    "per head": {},
    "q, k, v": {"is_interleaved": False},
    "per head, biases added later": {"skip_bias_add": True},
}
"""of MindSpeed-MM's model: how its vision tower holds q, k and v, and who adds biases"""
_MINDSPEED, _LLAMAFACTORY = "0.module.module", "module"


@dataclass(frozen=True)
class Way:
    """How two recordings are compared."""

    name: str
    mapping: str | None
    is_mindspeed_first: bool


WAYS = (
    Way("bare", None, False),
    Way("bare, turned", None, True),
    Way("library", "mindspeed-mm/qwen2.5-vl", False),
    Way("library, turned", "mindspeed-mm/qwen2.5-vl", True),
    Way("template of MindSpeed-MM", str(DATA / "template-qwen2.5vl-mindspeed-mm.yaml"), True),
    Way("template of LLaMA-Factory", str(DATA / "template-qwen2.5vl-llamafactory.yaml"), False),
)


@dataclass(frozen=True)
class Answer:
    """What a comparison said."""

    task: str
    way: str
    case: str
    verdict: str
    path: str
    phase: str
    is_right: bool
    is_wrong: bool
    """another place was named"""
    seconds: float

    @property
    def mark(self) -> str:
        """A letter for a table."""
        return "✓" if self.is_right else "✗" if self.is_wrong else "–"


class Trials:
    """Recordings in a folder, made when they are asked for."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.folder, self.sizes = folder, sizes

    def reference(self, task: str) -> Path:
        """Return LLaMA-Factory's recording."""
        path = self.folder / f"llamafactory-{task}.h5"
        return path if path.exists() else record(path, llamafactory(self.sizes), self.sizes, task)

    def right(self, task: str, variant: str) -> Path:
        """Return MindSpeed-MM's recording without a fault."""
        path = self.folder / f"{variant.replace(' ', '-').replace(',', '')}-{task}.h5"
        if path.exists():
            return path
        return record(path, mindspeed_of(llamafactory(self.sizes), self.sizes, **VARIANTS[variant]), self.sizes, task)

    def faulty(self, task: str, fault: Fault, variant: str = "per head") -> Path:
        """Return MindSpeed-MM's recording with a fault."""
        path = self.folder / f"fault-{variant}-{fault.name}-{task}.h5".replace(" ", "-").replace(",", "")
        if path.exists():
            return path
        model = mindspeed_of(llamafactory(self.sizes), self.sizes, **VARIANTS[variant])
        plant(model[0], fault)
        return record(path, model, self.sizes, task, **fault.settings)

    def right_answers(self, ways: tuple[Way, ...] = WAYS, tasks: tuple[str, ...] = TASKS) -> Iterator[Answer]:
        """Yield what is said of right pairs."""
        for task in tasks:
            for variant in VARIANTS:
                for way in ways:
                    yield self._asked(task, way, self.right(task, variant), variant, None)

    def answers(
        self, faults: tuple[Fault, ...] = FAULTS, ways: tuple[Way, ...] = WAYS, tasks: tuple[str, ...] = TASKS,
        variant: str = "per head",
    ) -> Iterator[Answer]:  # fmt: skip
        """Yield what is said of faulty pairs."""
        for task in tasks:
            for fault in faults:
                for way in ways:
                    yield self._asked(task, way, self.faulty(task, fault, variant), fault.name, fault)

    def _asked(self, task: str, way: Way, mindspeed: Path, case: str, fault: Fault | None) -> Answer:
        files = (mindspeed, self.reference(task)) if way.is_mindspeed_first else (self.reference(task), mindspeed)
        begun = time.process_time()
        found = probe.compare(*files, mapping=way.mapping)
        seconds = time.process_time() - begun
        first = found.first_divergence
        if first is None:
            is_right = fault is None and found.verdict.name == "ALIGNED"
            return Answer(task, way.name, case, found.verdict.name, "", "", is_right, False, seconds)
        is_right = fault is not None and names(fault, first.path, first.phase.label)
        return Answer(
            task, way.name, case, found.verdict.name, first.path, first.phase.label, is_right, not is_right, seconds
        )


def names(fault: Fault, path: str, phase: str) -> bool:
    """Tell whether a finding is the fault: its module on either side, or for an optimizer's fault the phase."""
    if fault.settings:
        return phase == fault.phase
    here = {f"{_MINDSPEED}.{each}" for each in fault.mindspeed}
    return path in here.union(f"{_LLAMAFACTORY}.{each}" for each in fault.llamafactory)
