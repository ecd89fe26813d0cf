"""Module trees as text: what `print(model)` shows, with every module's own parameters as torch shows those of a ParameterList."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Node:
    """A module: its class, the dtype and shape of its own parameters, and its children."""

    class_name: str
    parameters: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)


def node_of(module: Any) -> Node:
    """Return the tree of a torch module."""
    own = {
        name: (str(value.dtype).removeprefix("torch."), tuple(value.shape))
        for name, value in module.named_parameters(recurse=False)
    }
    return Node(type(module).__name__, own, {name: node_of(child) for name, child in module.named_children()})


def text_of(node: Node, depth: int = 0) -> str:
    """Return a tree as text; members of a list that are alike stand there once."""
    pad = "  " * (depth + 1)
    lines = [
        f"{pad}({name}): Parameter containing: [torch.{dtype} of size {'x'.join(map(str, shape))}]"
        for name, (dtype, shape) in node.parameters.items()
    ]
    items = list(node.children.items())
    first = 0
    while first < len(items):
        name, child = items[first]
        last = first
        while (
            name.isdigit() and last + 1 < len(items) and items[last + 1] == (str(int(name) + last + 1 - first), child)
        ):
            last += 1
        head = f"({name}-{items[last][0]}): {last - first + 1} x " if last > first else f"({name}): "
        lines.append(f"{pad}{head}{text_of(child, depth + 1)}")
        first = last + 1
    return "\n".join([f"{node.class_name}(", *lines, f"{'  ' * depth})"]) if lines else f"{node.class_name}()"
