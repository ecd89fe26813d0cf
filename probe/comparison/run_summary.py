"""What a recording is of, in the few facts that tell whether two of them belong together."""

from __future__ import annotations

from dataclasses import asdict, dataclass

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

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {**asdict(self), "models": list(self.models)}


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
    roots = [index for index, module in enumerate(tree.modules) if module.parent < 0]
    inner = dict.fromkeys(tree.unwrapped(root) for root in roots)
    calls = reader.of_step("calls", int(reader.steps["step"][0])) if len(reader.steps) else reader.calls[:0]
    return RunSummary(
        models=tuple(dict.fromkeys(tree.modules[index].class_name for index in inner)),
        modules=sum(len(list(tree.subtree(index))) for index in inner),
        parameters=sum(tree.modules[root].n_params for root in roots),
        steps=len(reader.steps),
        framework=reader.info.framework,
        version=reader.info.framework_version,
        is_without_gradients=bool(len(calls)) and not calls["grad_enabled"].any(),
    )
