"""Module trees for tests: from a dict of paths, and from what ``print(model)`` shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from probe.records import ModuleInfo
from probe.structure.tree import Tree

DATA = Path(__file__).parents[1] / "data"

_LINE = re.compile(r"(?P<indent> *)(?:\((?P<first>[\w.]+?)(?:-(?P<last>\d+))?\): )?(?:\d+ x )?(?P<class>\w+)\(")


def modules(classes: Mapping[str, str]) -> list[ModuleInfo]:
    """Make modules from {path: class}, parents first; the root is ``""``."""
    index = {path: i for i, path in enumerate(classes)}
    return [ModuleInfo(path, name, index[path.rpartition(".")[0]] if path else -1) for path, name in classes.items()]


def tree(classes: Mapping[str, str]) -> Tree:
    """Make a tree from {path: class}."""
    return Tree(modules(classes))


def printed_tree(file: str) -> Tree:
    """Read what ``print(model)`` showed; a list of models gets the prefixes that probe gives it."""
    text = (DATA / file).read_text(encoding="utf-8")
    is_list = text.startswith("[")
    root: _Printed = ("", "list", []) if is_list else ("", "", [])
    stack: list[tuple[int, _Printed]] = [(-1, root)]
    for line in text.lstrip("[").splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        depth = len(found["indent"])
        while stack[-1][0] >= depth:
            stack.pop()
        names = [found["first"] or ""]
        if found["last"]:
            names = [str(i) for i in range(int(found["first"]), int(found["last"]) + 1)]
        children: list[_Printed] = []
        stack[-1][1][2].extend((name, found["class"], children) for name in names)
        stack.append((depth, (names[0], found["class"], children)))
    top = root if is_list else root[2][0]
    if is_list:
        top[2][:] = [(str(i), name, children) for i, (_, name, children) in enumerate(top[2])]
    classes: dict[str, str] = {}
    _collect(top, "", classes)
    return tree(classes)


_Printed = tuple[str, str, list["_Printed"]]


def _collect(node: _Printed, path: str, into: dict[str, str]) -> None:
    into[path] = node[1]
    for child in node[2]:
        _collect(child, f"{path}.{child[0]}" if path else child[0], into)
