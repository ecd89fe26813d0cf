"""What was compared: what the recordings are of, which modules were taken for the same, what was replayed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from probe.matching import Matching, Reason
from probe.notes import Fields, Note, fields_of, named, plain
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
        return {**fields_of(self), "losses": plain(ends)}


def have_equal_settings(a: Reader, b: Reader) -> bool:
    """Return True if two recordings hold the same of all that settings are read from (`probe.settings.reading.recordings`)."""
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


@dataclass(frozen=True, slots=True)
class ModulePair:
    """Modules of A and the modules of B that do the same; several of one side where the other fuses them."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    reason: Reason
    confidence: float
    """below 1 where the pair was found by structure or values"""

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {**named(self, "a", "b"), "because": self.reason.value, "confidence": round(self.confidence, 3)}


def module_pairs(matching: Matching, tree_a: Tree, tree_b: Tree) -> tuple[ModulePair, ...]:
    """Return all pairs in the order of A's modules."""
    parts = {(bundle.side, bundle.parts[0]): bundle.parts for bundle in matching.bundles}
    found = []
    for pair in sorted(matching.pairs, key=lambda pair: pair.a):
        a, b = parts.get(("A", pair.a), (pair.a,)), parts.get(("B", pair.b), (pair.b,))
        paths = tuple(map(tree_a.path, a)), tuple(map(tree_b.path, b))
        found.append(ModulePair(*paths, pair.reason, pair.confidence))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Replayed(Fields):
    """How much was replayed, and what was not."""

    modules: int
    """pairs of modules that were run"""
    calls: int
    left: tuple[Note, ...] = ()
    """what was not replayed, or only forwards, and why; the outermost modules"""
    weights: str = "a"
    """whose weights the modules had: ``a`` or ``b``"""
