"""What a model, a fault and a clean pair are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Fault:
    """One mistake of an engineer, and where it stands.

    Attributes
    ----------
    name, about
        What it is called among the faults of its model, and what the engineer did.
    way
        How it is planted; no way occurs in more than 12 models.
    plant
        Called with the finished training of the faulty side.
    path, phases, step, also
        The truth, on side A: the module (`""`: the model, the loss or the optimizer as a whole), the phases that are
        right (the first is the main one), and globs of paths that are equally right.
    planted
        In a port, the path on the faulty side, if it is another one.
    dtype, steps
        Of both sides.
    swapped
        The fault stands on side A.
    mapped
        In a port, whether the comparison gets the mapping.
    changes
        What both sides do otherwise than the model usually does (a longer batch, a schedule ...).
    """

    name: str
    way: str
    plant: Callable[[Any], None]
    path: str
    phases: tuple[str, ...]
    about: str
    also: tuple[str, ...] = ()
    step: int = 0
    planted: str | None = None
    dtype: str = "float32"
    steps: int = 1
    swapped: bool = False
    mapped: bool = False
    changes: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Clean:
    """A legitimate difference of two sides.

    `change` is applied to side B, `base` to side A, `both` to the two of them.
    """

    name: str
    about: str
    change: Callable[[Any], None] | None = None
    base: Callable[[Any], None] | None = None
    dtype: str = "float32"
    dtype_b: str | None = None
    steps: int = 1
    mapped: bool = False


@dataclass(frozen=True)
class Model:
    """A model with its data and its training step; for a port, the other code base too.

    Attributes
    ----------
    build, port
        Make a training of side A, of side B. Without a port, both sides are built alike.
    mapping
        The layer mapping, written from side A (as the YAML of it reads).
    """

    name: str
    build: Callable[[], Any]
    about: str
    faults: tuple[Fault, ...] = ()
    cleans: tuple[Clean, ...] = ()
    port: Callable[[], Any] | None = None
    mapping: Mapping[str, Any] | None = None
    seed: int = 7


@dataclass(frozen=True)
class Side:
    """One program that is recorded: a model's side, its dtype, its steps, and what was changed in it."""

    model: Model = field(repr=False)
    key: str
    side: str
    dtype: str
    steps: int
    changes: tuple[Callable[[Any], None], ...] = ()


@dataclass(frozen=True)
class Pair:
    """Two sides, and the truth about them (`fault` is None: they only differ legitimately)."""

    name: str
    model: Model = field(repr=False)
    a: Side
    b: Side
    mapped: bool
    about: str
    fault: Fault | None = None
    clean: Clean | None = None

    @property
    def mapping(self) -> Mapping[str, Any] | None:
        """The layer mapping that the comparison gets."""
        return self.model.mapping if self.mapped else None


def pairs_of(model: Model) -> list[Pair]:
    """All pairs of a model, faults first."""
    return [_faulty(model, fault) for fault in model.faults] + [_clean(model, clean) for clean in model.cleans]


def _faulty(model: Model, fault: Fault) -> Pair:
    common = (fault.changes,) if fault.changes else ()
    kept = f"{model.name}.{fault.name}.right" if fault.changes else f"{model.name}.base"
    sides = {
        side: Side(
            model,
            f"{model.name}.{fault.name}.wrong" if wrong else kept + ("." + side if model.port else ""),
            side,
            fault.dtype,
            fault.steps,
            (*common, fault.plant) if wrong else common,
        )
        for side, wrong in (("a", fault.swapped), ("b", not fault.swapped))
    }
    return Pair(f"{model.name}/{fault.name}", model, sides["a"], sides["b"], fault.mapped, fault.about, fault=fault)


def _clean(model: Model, clean: Clean) -> Pair:
    def side(name: str, change: Callable[[Any], None] | None, dtype: str) -> Side:
        key = (
            f"{model.name}.{clean.name}.{name}" if change else f"{model.name}.base" + ("." + name if model.port else "")
        )
        return Side(model, key, name, dtype, clean.steps, (change,) if change else ())

    a, b = side("a", clean.base, clean.dtype), side("b", clean.change, clean.dtype_b or clean.dtype)
    return Pair(f"{model.name}/{clean.name}", model, a, b, clean.mapped, clean.about, clean=clean)
