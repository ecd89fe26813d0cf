"""The main blocks of a model: what `task="norms"` looks at unless it is told otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from probe.records import ModuleInfo
from probe.structure.tree import Tree


def main_blocks(modules: Sequence[ModuleInfo], roots: Sequence[int]) -> set[int]:
    """Return the indices of the roots and of their blocks.

    Blocks are the elements of every outermost list of modules: of two children or more that are called 0, 1, 2 …,
    and not inside another such list (experts of a layer are not). Without any list, they are the root's children.
    """
    tree = Tree(modules)
    chosen = set(roots)
    for root in roots:
        lists = _outermost_lists(tree, root) or [root]
        chosen.update(child for index in lists for child in tree.children[index].values())
    return chosen


def _outermost_lists(tree: Tree, root: int) -> list[int]:
    found, left = [], [root]
    while left:
        index = left.pop()
        names = list(tree.children[index])
        if len(names) > 1 and names == [str(number) for number in range(len(names))]:
            found.append(index)
        else:
            left.extend(tree.children[index].values())
    return found
