"""What makes a comparison worthless, or less than it seems: none of it may end as aligned unsaid."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from probe.comparison.side import called
from probe.comparison.steps import Shift
from probe.records import MASTER, StepState
from probe.store.reader import Reader
from probe.tree import Tree

_NUMBER = re.compile(r"\d+")


@dataclass
class Guards:
    """What was found before any tensor was compared.

    Parameters
    ----------
    a, b
        the recordings
    tree_a, tree_b
        their modules
    shift
        which step of B is a step of A
    """

    a: Reader
    b: Reader
    tree_a: Tree
    tree_b: Tree
    shift: Shift = Shift()
    warnings: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    """what keeps the runs from being called aligned"""

    def common_steps(self) -> list[int]:
        """Look at everything; return the steps that both have."""
        sides = (("A", self.a, self.tree_a), ("B", self.b, self.tree_b))
        for name, side, _ in sides:
            if not len(side.steps):
                self.doubts.append(f"{name} has no complete step ({side.path})")
            self.warnings += [f"{name}: {text}" for _, _, text in side.notes]
        for name, side, tree in sides:
            self._look_inside(name, side, tree)
        self._compare_filters()
        self._compare_origins()
        self._compare_masters()
        if self.a.info.run_id == self.b.info.run_id:
            self.doubts.append("both files are the same run: it was compared with itself")
        common = self._compare_steps()
        self._compare_aborted(common)
        return common

    def _look_inside(self, name: str, side: Reader, tree: Tree) -> None:
        """Doubt a model of which no module inside was seen to run: a compiled one runs without its hooks."""
        if not len(side.steps) or not tree.modules:
            return
        calls = side.of_step("calls", int(side.steps["step"][0]))
        seen = called(calls, tree)
        if not seen:
            self.doubts.append(f"{name}: no call of a module was recorded")
            return
        for root in sorted({tree.unwrapped(int(module)) for module in calls["module"][calls["caller"] < 0]}):
            inside = [index for index in tree.subtree(root) if index != root and tree.modules[index].n_params]
            if inside and not seen.intersection(inside):
                what = tree.path(root) or "the model"
                self.doubts.append(
                    f"{name}: nothing that runs inside {what} was recorded: it is compiled, or calls none of its modules"
                )

    def _compare_masters(self) -> None:
        """Say that one side alone trains copies of its weights: the other rounds its updates to the weights' dtype."""
        have = [any(slot.endswith(MASTER) for slot in side.slots) for side in (self.a, self.b)]
        if have[0] == have[1]:
            return
        names, other = (("A", "B"), self.b) if have[0] else (("B", "A"), self.a)
        if other.optimizer and any("16" in each.dtype for each in other.parameters if not each.is_buffer):
            self.warnings.append(
                f"{names[0]}'s optimizer trains copies of its weights in a wider dtype (master weights), {names[1]}'s does not: "
                "small updates are rounded away there"
            )

    def _compare_filters(self) -> None:
        for option in ("phases", "modules"):
            wanted = [side.info.config.get(option) for side in (self.a, self.b)]
            if wanted[0] != wanted[1]:
                texts = ["all" if each is None else ", ".join(each) for each in wanted]
                self.warnings.append(
                    f"the {option} that were recorded are not the same: {texts[0]} in A, {texts[1]} in B; what one side "
                    "lacks is not compared"
                )

    def _compare_origins(self) -> None:
        """Say where the program told probe of other seeds, or of inputs from elsewhere, on the two sides."""
        seeds = [side.environment.get("seed") for side in (self.a, self.b)]
        if None not in seeds and seeds[0] != seeds[1]:
            self.warnings.append(f"the seeds are not the same: {seeds[0]} in A, {seeds[1]} in B")
        inputs = [side.listed("inputs") for side in (self.a, self.b)]
        alone = [[text for text in mine if text not in theirs] for mine, theirs in (inputs, inputs[::-1])]
        if all(inputs) and any(alone):
            texts = [f"{'; '.join(each)} only in {name}" for name, each in zip("AB", alone, strict=True) if each]
            self.warnings.append(f"the inputs do not come from the same: {', '.join(texts)}")

    def _compare_steps(self) -> list[int]:
        mine = [int(row["step"]) for row in self.a.steps]
        theirs = [int(row["step"]) for row in self.b.steps]
        by = self.shift.to_b
        common = [step for step in mine if step + by in set(theirs)]
        how = (
            f", and step {self.shift.a} of A is to be step {self.shift.b} of B" if by else "; --steps A:B pairs others"
        )
        if mine and theirs and not common:
            self.doubts.append(f"no step in common: A has {_numbers(mine)}, B has {_numbers(theirs)}{how}")
        elif common:
            in_b = {step + by for step in common}
            alone = (("A", set(mine).difference(common), self.b), ("B", set(theirs).difference(in_b), self.a))
            parts = [
                f"{_numbers(sorted(steps))} only in {name}{_ended(other)}" for name, steps, other in alone if steps
            ]
            self.warnings += [f"steps not compared: {', '.join(parts)}"] if parts else []
        return common

    def _compare_aborted(self, common: Iterable[int]) -> None:
        """Say which steps an exception ended; where it did so on one side only, the runs are not alike."""
        aborted = [
            {int(row["step"]) for row in side.steps if row["state"] == StepState.ABORTED} for side in (self.a, self.b)
        ]
        by = self.shift.to_b
        in_a = aborted[0], {step - by for step in aborted[1]}
        for name, here, there, to_own in (("A", in_a[0], in_a[1], 0), ("B", in_a[1], in_a[0], by)):
            for step in sorted(here):
                text = f"{name}: step {step + to_own} was ended by an exception"
                if step in common and step not in there:
                    self.doubts.append(f"{text}, on the other side it was not")
                else:
                    self.warnings.append(text)


def _ended(side: Reader) -> str:
    """Say so when the recording that lacks steps was never closed."""
    return "" if side.info.closed else " (the other was not closed: its process was ended, or is still running)"


def _numbers(steps: Iterable[int]) -> str:
    numbers = list(steps)
    return ", ".join(map(str, numbers[:5])) + (" …" if len(numbers) > 5 else "")


def uncompared_weights(side: Reader, recorded: set[tuple[str, str]], compared: set[tuple[str, str]]) -> list[str]:
    """Return the weights of a side that were recorded and not compared, both given by (path, slot)."""
    found = []
    for parameter in side.parameters:
        places = set(map(_place, parameter.names))
        if not parameter.is_buffer and places & recorded and not places & compared:
            found.append(parameter.names[0])
    return found


def _place(name: str) -> tuple[str, str]:
    owner, _, slot = name.rpartition(".")
    return owner, slot


def grouped(names: Iterable[str], most: int) -> str:
    """Return names; those that differ in their numbers only as one, with ``*`` and how many there are."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBER.sub("*", name), []).append(name)
    parts = [f"{name} ×{len(members)}" if len(members) > 1 else members[0] for name, members in groups.items()]
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")
