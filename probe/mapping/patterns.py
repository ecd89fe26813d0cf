"""Paths with placeholders: ``layers.{i}``, ``h.{2*i+1}`` in keys, ``text.**.mlp/MLP`` in the names of sections."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from probe.structure.tree import Tree

Names = tuple[str, ...]
"""a path, component by component"""

ONE, ANY = "*", "**"
_PLACEHOLDER = re.compile(r"\{(?:([1-9][0-9]{0,8})\*)?([A-Za-z]\w*)(?:\+([0-9]{1,9}))?\}")
_BRACES = re.compile(r"\{[^{}]*\}|[{}]")
EXPECTED = "a placeholder such as {i}, {i+1}, {2*i} or {2*i+1}"


class PatternError(ValueError):
    """A path that cannot be read; says why, and at which column of the text, from 0: None for all of it."""

    def __init__(self, message: str, column: int | None = None) -> None:
        super().__init__(message)
        self.column = column


@dataclass(frozen=True, slots=True)
class PathPattern:
    """Which modules a section is for, by their paths."""

    names: Names
    """with ``**`` before the others where it may begin at any module"""

    @property
    def literals(self) -> int:
        """How many components stand for themselves."""
        return sum(name not in (ONE, ANY) and "{" not in name for name in self.names)


def parsed_key(text: str) -> Names:
    """Return the components of a path in which ``{i}`` may stand for digits."""
    names = _components(text)
    _check_placeholders(text)
    for name in names:
        if ONE in _PLACEHOLDER.sub("", name):
            raise PatternError(f"{text!r}: * is for the names of sections; in a key, {{i}} stands for any number")
    return names


def parsed_section(text: str) -> tuple[PathPattern | None, str]:
    """Return path and class of a section's name, None for a class wherever it is."""
    if not re.search(r"[./*{]", text):
        return None, text
    return parsed_path(text)


def parsed_path(text: str) -> tuple[PathPattern, str]:
    """Return path and class of ``a.**.b/Class``; the class is empty where none is named."""
    anchored, rest = text.startswith("/"), text.removeprefix("/")
    path, slash, class_name = rest.rpartition("/")
    if not slash:
        path, class_name = rest, ""
    elif not class_name or "/" in path or re.search(r"[.*{]", class_name):
        raise PatternError(f"{text!r}: expected a path, then /ClassName or nothing")
    names = _components(path) if path or not anchored else ()
    _check_placeholders(text)
    for name in names:
        if ONE in _PLACEHOLDER.sub("", name) and name not in (ONE, ANY):
            raise PatternError(f"{text!r}: * stands for one whole name, ** for any number of them, {{i}} for digits")
    return PathPattern(names if anchored else (ANY, *names)), class_name


def placeholders(names: Names) -> set[str]:
    """Return the names of the placeholders in a path."""
    return {found[2] for name in names for found in _PLACEHOLDER.finditer(name)}


def counts(names: Names) -> bool:
    """Return True if a placeholder of a path stands for some numbers only: ``{2*i}``, ``{i+1}``."""
    return any(found[1] or found[3] for name in names for found in _PLACEHOLDER.finditer(name))


def any_number(names: Names) -> Names:
    """Return a path with a placeholder of its own for any number in place of each."""
    count = itertools.count()
    return tuple(_PLACEHOLDER.sub(lambda _: f"{{n{next(count)}}}", name) for name in names)


def _components(text: str) -> Names:
    names = tuple(text.split("."))
    if not all(names):
        raise PatternError(
            f"{text!r}: a name before, behind or between the dots is missing" if text else "a path is empty"
        )
    return names


def _check_placeholders(text: str) -> None:
    for found in _BRACES.finditer(text):
        if not _PLACEHOLDER.fullmatch(found[0]):
            raise PatternError(f"{text!r}: expected {EXPECTED}, got {found[0]}", found.start())
    if "}{" in text:
        raise PatternError(f"{text!r}: where one number ends and the next begins cannot be told", text.index("}{") + 1)


@dataclass(frozen=True, slots=True)
class _Number:
    """A placeholder: ``factor`` · variable + ``offset``."""

    variable: str
    factor: int
    offset: int

    def of(self, digits: str) -> str | None:
        """Return what the variable is where the placeholder is some digits; None where it is no whole number."""
        if (self.factor, self.offset) == (1, 0):
            return digits
        value, left = divmod(int(digits) - self.offset, self.factor) if len(digits) < 10 else (-1, 0)
        return str(value) if value >= 0 and not left and digits == str(int(digits)) else None

    def at(self, value: str) -> str:
        """Return the digits where the variable is some; ``""``, which is no name, where nobody counts so far."""
        if (self.factor, self.offset) == (1, 0):
            return value
        return str(self.factor * int(value) + self.offset) if len(value) < 19 else ""


def _number(found: re.Match[str]) -> _Number:
    return _Number(found[2], int(found[1] or 1), int(found[3] or 0))


@functools.lru_cache(maxsize=4096)
def _compiled(name: str) -> tuple[re.Pattern[str], tuple[_Number, ...]]:
    literals = _PLACEHOLDER.sub("{}", name).split("{}")
    return re.compile("([0-9]+)".join(map(re.escape, literals))), tuple(map(_number, _PLACEHOLDER.finditer(name)))


def binds(name: str, pattern: str, bindings: Mapping[str, str]) -> dict[str, str] | None:
    """Return what the placeholders stand for if a component is a pattern's, None if it is not."""
    if "{" not in pattern:
        return dict(bindings) if name == pattern else None
    regex, bound = _compiled(pattern)
    found = regex.fullmatch(name)
    if found is None:
        return None
    new = dict(bindings)
    for number, digits in zip(bound, found.groups(), strict=True):
        value = number.of(digits)
        if value is None or new.setdefault(number.variable, value) != value:
            return None
    return new


def filled(names: Names, bindings: Mapping[str, str]) -> Names:
    """Return a path with numbers in place of its placeholders."""
    if not bindings:
        return names

    def digits(found: re.Match[str]) -> str:
        return _number(found).at(bindings[found[2]]) if found[2] in bindings else found[0]

    return tuple(_PLACEHOLDER.sub(digits, name) for name in names)


def places(tree: Tree, index: int, names: Names) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the modules at a relative path, looking through wrappers, and what the placeholders stand for there."""
    pending: list[tuple[int, int, dict[str, str]]] = [(index, 0, {})]
    while pending:
        here, used, bindings = pending.pop()
        if used == len(names):
            yield here, bindings
            continue
        if "{" not in names[used]:
            child = tree.child(here, names[used])
            if child is not None:
                pending.append((child, used + 1, bindings))
            continue
        for name, child in sorted(_members(tree, here).items(), key=_by_number, reverse=True):
            bound = binds(name, names[used], bindings)
            if bound is not None:
                pending.append((child, used + 1, bound))


def _members(tree: Tree, index: int) -> dict[str, int]:
    members = dict(tree.children[index])
    while (inner := tree.wrapped(index)) is not None:
        index = tree.children[index][inner]
        members = {**tree.children[index], **members}
    return members


def _by_number(entry: tuple[str, int]) -> list[tuple[int, int, str]]:
    parts = re.split("([0-9]+)", entry[0])
    bare = [part.lstrip("0") if i % 2 else part for i, part in enumerate(parts)]
    return [(1, len(part), part) if i % 2 else (0, 0, part) for i, part in enumerate(bare)]
