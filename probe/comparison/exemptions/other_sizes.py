"""Tensors of other sizes at the same place: a mistake where what is made of them differs, another order of steps where it agrees.

One implementation normalises all tokens and takes the first, another one takes it and normalises that; one pads inside of a
convolution, another one in front of it. A size by itself is no error: what is computed of the tensor tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from probe.comparison.steps.step_half import Event, Node
from probe.records import Role


@dataclass(frozen=True, eq=False)
class OtherSize:
    """An input or output of a call of which the two sides have other sizes."""

    node: Node
    event: Event

    def is_inside(self, node: Node | None) -> bool:
        """Tell whether the tensor was made in a call, or given to one that it makes."""
        return node is self.node or node in self.node.ancestors()


@dataclass
class OtherSizes:
    """Those of a step's forward pass that nothing has told about yet."""

    open: list[OtherSize] = field(default_factory=list)

    def behind(self, node: Node, event: Event) -> list[OtherSize]:
        """Return those that a wrong value may come of: made inside the code that made it, or given to its call."""
        code = node.parent if event.role is Role.INPUT else node
        found = [each for each in self.open if each.node.micro == node.micro]
        return found if any(each.is_inside(code) for each in found) else []

    def agree(self, each: OtherSize, agreeing: Iterable[Node], loss_agrees: bool) -> bool:
        """Tell whether something that is computed of a tensor agrees: what is around its call returns it, or a later call given such one.

        Where no call is given such one, it is the model's own code that goes on with it, and the loss tells.
        """
        around = (each.node, *each.node.ancestors())
        later = {
            other.node for other in self.open
            if other.event.role is Role.INPUT and other.node.micro == each.node.micro and other.node.begin >= each.node.begin
        }  # fmt: skip
        is_told = any(node in around or node in later for node in agreeing)
        return is_told or (loss_agrees and not later)
