"""What a recording is of, in the few facts that tell whether two of them belong together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from probe.store.reading.reader import Reader
from probe.structure.tree import Tree


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The model and the length of a run."""

    models: tuple[str, ...]
    """class names of the models, wrappers left out"""
    modules: int
    """that wrap nothing, all levels"""
    parameters: int
    """elements of all parameters; a shared one counts once"""
    steps: int
    """that are complete"""
    framework: str
    version: str
    is_without_gradients: bool
    """in the first step models ran, and every time with gradients switched off"""
    losses: Mapping[int, float] = field(default_factory=dict, repr=False)
    """by step, of those that gave `probe.step` one"""

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON; of the losses the first and the last."""
        ends = [*self.losses.items()][:: max(len(self.losses) - 1, 1)]
        losses = [[step, loss if math.isfinite(loss) else None] for step, loss in ends]
        return {**asdict(self), "models": list(self.models), "losses": losses}


def have_equal_settings(a: Reader, b: Reader) -> bool:
    """Tell whether two recordings hold the same of all that settings are read from (`probe.settings.reading.recordings`)."""
    x, y = (
        (side.info.framework, side.info.framework_version, side.info.model_config, side.environment, side.optimizer,
         side.parameters)
        for side in (a, b)
    )  # fmt: skip
    return x == y


def summary_of(reader: Reader, tree: Tree) -> RunSummary:
    """Return the summary of a recording."""
    models = tree.models
    calls = reader.of_step("calls", int(reader.steps["step"][0])) if len(reader.steps) else reader.calls[:0]
    return RunSummary(
        models=tree.model_names,
        modules=sum(len(list(tree.subtree(index))) for index in models),
        parameters=sum(tree.modules[index].n_params for index in models),
        steps=len(reader.steps),
        framework=reader.info.framework,
        version=reader.info.framework_version,
        is_without_gradients=bool(len(calls)) and not calls["grad_enabled"].any(),
        losses={step: value for step, name, value in reader.scalars if name == "loss"},
    )
