"""What a model, a fault and a clean pair are: the truth about each is a row of ``truths.txt``, its code stands with the model.

A section of that file is a model: `[name] about`. The row of a fault has its name, how it is planted, its phases, its
module on side A (`.` is the root), what the engineer did, and options by the names of `Fault`'s fields; that of a clean
pair begins with `clean`. `* names` takes rows of `[common]`; a clean pair's name with `+` gets the port's mapping.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..grading import Truth

HERE = "<here>"
"""in what plants a fault: the module that its row names"""
SETS = [Path(__file__).parents[1] / name for name in ("blind", "sealed")]
Plant = Callable[[Any], None]


@dataclass(frozen=True)
class Sides:
    """What is done to the faulty side (of a clean pair: to B), to the other one, and to both before that."""

    b: Plant | None = None
    a: Plant | None = None
    both: Plant | None = None

    def together(self, change: Plant | None) -> Plant | None:
        """`change` after what both sides get."""
        if self.both is None or change is None:
            return self.both or change

        def plant(training: Any) -> None:
            self.both(training)
            change(training)

        return plant


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

    @property
    def truth(self) -> Truth:
        """The right answer."""
        only_b = () if self.planted is None else (self.planted,)
        return Truth(self.path, self.phases, self.step, self.also, only_b)


@dataclass(frozen=True)
class Clean:
    """A legitimate difference of two sides: `change` is applied to side B, `base` to side A."""

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
        The file of the layer mapping, written from side A.
    """

    name: str
    build: Callable[[], Any]
    about: str
    faults: tuple[Fault, ...] = ()
    cleans: tuple[Clean, ...] = ()
    port: Callable[[], Any] | None = None
    mapping: Path | None = None
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
    def mapping(self) -> Path | None:
        """The layer mapping that the comparison gets."""
        return self.model.mapping if self.mapped else None


@functools.cache
def _sections() -> dict[str, list[list[str]]]:
    """Rows as lists of cells, by model; the first one is what the model is."""
    found: dict[str, list[list[str]]] = {}
    for line in (line for folder in SETS for line in (folder / "truths.txt").read_text(encoding="utf-8").splitlines()):
        if line.startswith("["):
            name, _, about = line[1:].partition("] ")
            rows = found[name] = [[about]]
        elif line:
            rows.append(line.split(" | "))
    return found


def _options(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if name == "also":
            options[name] = tuple("" if one == "ROOT" else one for one in value.split(","))
        elif name in ("step", "steps"):
            options[name] = int(value)
        else:
            options[name] = ("" if value == "." else value) if equals else True
    return options


def _placed(plant: Plant, path: str) -> Plant:
    """The plant, to which `HERE` is this module."""

    def placed(training: Any) -> None:
        training.here = path
        plant(training)

    return placed


def _fault_of(cells: list[str], code: Plant | Sides) -> Fault:
    name, way, phases, path, about, *rest = cells
    options, path = _options("".join(rest)), "" if path == "." else path
    sides = code if isinstance(code, Sides) else Sides(code)
    plant = _placed(sides.b, options.get("planted", path))
    return Fault(name, way, plant, path, tuple(phases.split()), about, changes=sides.both, **options)


def _clean_of(cells: list[str], code: Plant | Sides | None) -> Clean:
    name, about, *rest = cells
    sides = code if isinstance(code, Sides) else Sides(code)
    changes = {"change": sides.together(sides.b), "base": sides.together(sides.a)}
    return Clean(name.removeprefix("clean "), about, **changes, **_options("".join(rest)))


def _of_common(names: str, options: str, plants: Mapping[str, Any]) -> list[Fault | Clean]:
    """The rows of `[common]` with these names, and with these options; with `too`, `plants["*"]` is done to B besides."""
    from ..sealed.common import CLEANS, FAULTS

    rows = {cells[0]: cells for cells in _sections()["common"][1:]}
    if not names.startswith("clean "):
        return [replace(_fault_of(rows[name], FAULTS[name]), **_options(options)) for name in names.split()]
    made = []
    for name in names.split()[1:]:
        clean = _clean_of(rows[f"clean {name.rstrip('+')}"], CLEANS.get(name.rstrip("+")))
        change = Sides(both=clean.change).together(plants["*"] if options == "too" else None)
        made.append(replace(clean, change=change, mapped=name.endswith("+")))
    return made


def model(
    name: str, build: Callable[[], Any], plants: Mapping[str, Plant | Sides], port: Callable[[], Any] | None = None
) -> Model:
    """The model of this name, its faults and clean pairs: the truth as ``truths.txt`` has it, `plants` their code."""
    (about,), *rows = _sections()[name]
    made: list[Fault | Clean] = []
    for cells in rows:
        if cells[0].startswith("* "):
            made += _of_common(cells[0][2:], "".join(cells[1:]), plants)
        elif cells[0].startswith("clean "):
            made.append(_clean_of(cells, plants.get(cells[0].removeprefix("clean "))))
        else:
            made.append(_fault_of(cells, plants[cells[0]]))
    faults = tuple(one for one in made if isinstance(one, Fault))
    cleans = tuple(one for one in made if isinstance(one, Clean))
    mapping = next((path for folder in SETS if (path := folder / f"mappings/{name}.yaml").exists()), None)
    return Model(name, build, about, faults, cleans, port, mapping)


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
