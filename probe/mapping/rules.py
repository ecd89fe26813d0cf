"""What a layer mapping says, line by line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from probe.mapping.judging import JudgingRule
from probe.mapping.patterns import Names, PathPattern

TOP = "TopLayer"
"""the section of the root"""


def written(path: Names) -> str:
    """Return a path as a person writes it."""
    return ".".join(path)


@dataclass(frozen=True, slots=True)
class Split:
    """How several modules or parameters lie in one."""

    groups: int | str = 1
    """so many equal groups, each of which holds an equal share of every part; a text is a key of the recorded
    ``model_config``"""
    axis: int = 0
    """axis of a part's canonical layout along which the parts follow one another"""
    order: tuple[int, ...] = ()
    """positions in the list, in the order in which they lie there; empty for the list's"""
    shares: tuple[int, ...] = ()
    """of one that holds several parts on both sides: how large these are beside each other, in the order in which they lie in a group"""
    groups_there: int | str = 1
    """of such a one, ``groups`` of the other side"""
    order_there: tuple[int, ...] = ()
    """of such a one, the parts here as they follow one another on the other side; empty where the order is the same"""


@dataclass(frozen=True, slots=True)
class Rotary:
    """What rotary embeddings turn together lies in another order on the other side."""

    heads: int | str
    """how many; a text is a key of the recorded ``model_config``"""
    is_interleaved: bool
    """here neighbours are turned together, there the two halves of a head; or the other way round"""


@dataclass(frozen=True, slots=True)
class Line:
    """One key of a section, and what it says: ``source`` here is ``targets`` on the other side.

    With ``is_reversed`` it is the other way round: ``targets`` here are ``source`` on the other side.
    """

    section: str
    source: Names
    targets: tuple[Names, ...]
    line: int = 0
    split: Split = field(default_factory=Split)
    transpose: bool = False
    permute: tuple[int, ...] = ()
    is_reversed: bool = False
    is_optional: bool = False
    """some of the models that the file is for do not have it"""

    @property
    def order(self) -> tuple[int, ...]:
        """Positions in the list, in the order in which several lie in the one."""
        return self.split.order or tuple(range(len(self.targets)))

    def __str__(self) -> str:
        several = written(self.targets[0]) if len(self.targets) == 1 else f"[{', '.join(map(written, self.targets))}]"
        parts, params = (
            f"{{from: {several}}}" if self.is_reversed else several,
            "params: " * isinstance(self, ParameterRule),
        )
        return f"{f'line {self.line}: ' if self.line else ''}{self.section}: {params}{written(self.source)}: {parts}"


@dataclass(frozen=True, slots=True)
class ParameterRule(Line):
    """What a parameter is: renamed, turned, or made of several; its targets are paths below the other side's module.

    With ``{i}`` they are those of all members there.
    """

    reshape: bool = False
    """its elements, in their order, are those of the target with its axes turned"""

    @property
    def is_stacked(self) -> bool:
        """Whether the targets are those of all members of a list."""
        return any("{" in name for path in self.targets for name in path)


@dataclass(frozen=True, slots=True)
class Rule(Line):
    """What a module below one of the section is: its targets are one path, or those of several that together are it."""

    params: tuple[ParameterRule, ...] = ()
    rotary: Rotary | None = None

    @property
    def keys(self) -> tuple[Names, ...]:
        """The paths below the section's module."""
        return self.targets if self.is_reversed else (self.source,)

    @property
    def target(self) -> Names:
        """The path on the other side; that of the part that lies first where there are several."""
        return self.source if self.is_reversed else self.targets[self.order[0]]


@dataclass(frozen=True, slots=True)
class Section:
    """The rules of all modules of a class, or at a path."""

    name: str
    """as it is written"""
    line: int = 0
    rules: tuple[Rule, ...] = ()
    params: tuple[ParameterRule, ...] = ()
    class_name: str = ""
    """empty where any class is meant"""
    path: PathPattern | None = None
    """None where any path is meant"""
    is_optional: bool = False
    """as in `Line`"""

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """How closely it describes the modules that it is for; what describes them more closely goes first."""
        return self.path is not None, self.path.literals if self.path else 0, bool(self.class_name)


@dataclass(frozen=True, slots=True)
class Ignored:
    """Modules of either side, with all that is in them, that are left out."""

    name: str
    path: PathPattern
    class_name: str = ""
    line: int = 0
    is_optional: bool = False
    """as in `Line`"""


@dataclass(frozen=True)
class LayerMapping:
    """A parsed mapping; empty when none was given."""

    sections: tuple[Section, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    name: str = ""
    judging: tuple[JudgingRule, ...] = ()
    """tolerances for some modules; matching does not look at them"""
    dims: tuple[tuple[str, str], ...] = ()
    """how tensors are divided over ranks, by globs of module paths; matching does not look at them"""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every key of a module, in the order of the file."""
        return tuple(rule for section in self.sections for rule in section.rules)

    def parameter_rules(self) -> Iterator[ParameterRule]:
        """Yield every key of a parameter."""
        for section in self.sections:
            yield from section.params
            for rule in section.rules:
                yield from rule.params

    def where(self, *lines: int) -> str:
        """Return what errors begin with: the name, and the lines where they are known."""
        known = [str(line) for line in lines if line]
        return self.name if not known else f"{self.name}, line{'s' * (len(known) > 1)} {' and '.join(known)}"
