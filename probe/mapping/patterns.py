"""Paths with placeholders: ``layers.{i}`` in keys, ``text.**.mlp/MLP`` in the names of sections."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from probe.tree import Tree

Names = tuple[str, ...]
"""a path, component by component"""

ONE, ANY = "*", "**"
_PLACEHOLDER = re.compile(r"\{([A-Za-z]\w*)\}")


class PatternError(ValueError):
    """A path that cannot be read; says why."""


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
    for name in names:
        if ONE in name:
            raise PatternError(f"{text!r}: * is for the names of sections; in a key, {{i}} stands for any number")
        _check_placeholders(text, name)
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
    for name in names:
        if ONE in name and name not in (ONE, ANY):
            raise PatternError(f"{text!r}: * stands for one whole name, ** for any number of them, {{i}} for digits")
        _check_placeholders(text, name)
    return PathPattern(names if anchored else (ANY, *names)), class_name


def placeholders(names: Names) -> set[str]:
    """Return the names of the placeholders in a path."""
    return {found for name in names for found in _PLACEHOLDER.findall(name)}


def _components(text: str) -> Names:
    names = tuple(text.split("."))
    if not all(names):
        raise PatternError(
            f"{text!r}: a name before, behind or between the dots is missing" if text else "a path is empty"
        )
    return names


def _check_placeholders(text: str, name: str) -> None:
    rest = _PLACEHOLDER.sub("", name)
    if "{" in rest or "}" in rest:
        raise PatternError(f"{text!r}: expected a placeholder such as {{i}}, a letter in braces")
    if "}{" in name:
        raise PatternError(f"{text!r}: where one number ends and the next begins cannot be told")


@functools.lru_cache(maxsize=4096)
def _compiled(name: str) -> tuple[re.Pattern[str], Names]:
    parts = _PLACEHOLDER.split(name)
    bound = tuple(parts[1::2])
    return re.compile("".join("([0-9]+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))), bound


def binds(name: str, pattern: str, bindings: Mapping[str, str]) -> dict[str, str] | None:
    """Return what the placeholders stand for if a component is a pattern's, None if it is not."""
    if "{" not in pattern:
        return dict(bindings) if name == pattern else None
    regex, bound = _compiled(pattern)
    found = regex.fullmatch(name)
    if found is None:
        return None
    new = dict(bindings)
    for variable, value in zip(bound, found.groups(), strict=True):
        if new.setdefault(variable, value) != value:
            return None
    return new


def filled(names: Names, bindings: Mapping[str, str]) -> Names:
    """Return a path with numbers in place of its placeholders."""
    if not bindings:
        return names
    return tuple(_PLACEHOLDER.sub(lambda found: bindings.get(found[1], found[0]), name) for name in names)


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
