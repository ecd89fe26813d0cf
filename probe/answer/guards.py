"""What makes a comparison worthless, or less than it seems: none of it may end as aligned unsaid."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from probe.answer.shift import Shift
from probe.notes import Note, note
from probe.ranks.opening import is_of_ranks
from probe.records import MASTER, StepState
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

_NO_DOUBT = {"layer-number-of-stage", "optimizer-of-ranks"}
"""what is said of a set of files and leaves no doubt of the answer: it is compared itself"""

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
    notes: list[Note] = field(default_factory=list)
    reasons: list[Note] = field(default_factory=list)
    """what keeps the runs from being called aligned"""

    def common_steps(self) -> list[int]:
        """Look at everything; return the steps that both have."""
        sides = (("A", self.a, self.tree_a), ("B", self.b, self.tree_b))
        tokens, other = (str(side.info.config.get("tokens") or "") for _, side, _ in sides)
        if tokens != other:
            self.reasons.append(note("other-tokens", a=tokens, b=other))
            return []
        self.notes += [note("these-tokens", tokens=tokens, late=tokens[:2] != "0:")] if tokens else []
        for name, side, _ in sides:
            if not len(side.steps):
                self.reasons.append(note("no-complete-step", side=name, file=str(side.path)))
            self.notes += [note("note-of-the-recording", side=name, text=text) for _, _, text in side.notes]
        for name, side, _ in sides:
            self._look_at_ranks(name, side)
        for name, side, tree in sides:
            self._look_inside(name, side, tree)
        self._compare_filters()
        self._compare_origins()
        self._compare_masters()
        if self.a.info.run_id == self.b.info.run_id:
            self.reasons.append(note("same-run"))
        common = self._compare_steps()
        self._compare_aborted(common)
        return common

    def _look_at_ranks(self, name: str, side: Reader) -> None:
        """Doubt a set of files of which some are missing, or that cannot be those of one run."""
        for said in side.remarks() if is_of_ranks(side) else ():
            told = note("of-set-of-files", side=name, what=said)
            (self.notes if said.code in _NO_DOUBT else self.reasons).append(told)

    def _look_inside(self, name: str, side: Reader, tree: Tree) -> None:
        """Doubt a model of which no module inside was seen to run: a compiled one runs without its hooks."""
        if not len(side.steps) or not tree.modules:
            return
        calls = side.of_step("calls", int(side.steps["step"][0]))
        seen = _called(calls, tree)
        if not seen:
            self.reasons.append(note("no-call-recorded", side=name))
            return
        for root in sorted({tree.unwrapped(int(module)) for module in calls["module"][calls["caller"] < 0]}):
            inside = [index for index in tree.subtree(root) if index != root and tree.modules[index].n_params]
            if inside and not seen.intersection(inside):
                self.reasons.append(note("nothing-inside-recorded", side=name, path=tree.path(root)))

    def _compare_masters(self) -> None:
        """Say that one side alone trains copies of its weights: the other rounds its updates to the weights' dtype."""
        have = [any(slot.endswith(MASTER) for slot in side.slots) for side in (self.a, self.b)]
        if have[0] == have[1]:
            return
        names, other = (("A", "B"), self.b) if have[0] else (("B", "A"), self.a)
        if other.optimizer and any("16" in each.dtype for each in other.parameters if not each.is_buffer):
            self.notes.append(note("master-weights-on-one-side", side=names[0], other=names[1]))

    def _compare_filters(self) -> None:
        for option in ("phases", "modules"):
            wanted = [side.info.config.get(option) for side in (self.a, self.b)]
            if wanted[0] != wanted[1]:
                a, b = (None if each is None else tuple(each) for each in wanted)
                self.notes.append(note("recorded-parts-differ", option=option, a=a, b=b))

    def _compare_origins(self) -> None:
        """Say where the program told probe of other seeds, or of inputs from elsewhere, on the two sides."""
        seeds = [side.environment.get("seed") for side in (self.a, self.b)]
        if None not in seeds and seeds[0] != seeds[1]:
            self.notes.append(note("seeds-differ", a=seeds[0], b=seeds[1]))
        inputs = [side.listed("inputs") for side in (self.a, self.b)]
        only_a, only_b = (tuple(x for x in mine if x not in theirs) for mine, theirs in (inputs, inputs[::-1]))
        if all(inputs) and (only_a or only_b):
            self.notes.append(note("input-origins-differ", only_a=only_a, only_b=only_b))

    def _compare_steps(self) -> list[int]:
        mine = [int(row["step"]) for row in self.a.steps]
        theirs = [int(row["step"]) for row in self.b.steps]
        by = self.shift.to_b
        common = [step for step in mine if step + by in set(theirs)]
        if mine and theirs and not common:
            shift = (self.shift.a, self.shift.b) if by else ()
            self.reasons.append(note("no-common-step", a=tuple(mine), b=tuple(theirs), shift=shift))
        elif common:
            in_b = {step + by for step in common}
            only_a, only_b = sorted(set(mine).difference(common)), sorted(set(theirs).difference(in_b))
            if only_a or only_b:
                ended = tuple(name for name, side in (("A", self.a), ("B", self.b)) if not side.info.closed)
                told = {"only_a": tuple(only_a), "only_b": tuple(only_b), "not_closed": ended}
                self.notes.append(note("steps-not-compared", **told))
        return common

    def _compare_aborted(self, common: Iterable[int]) -> None:
        """Say which steps an exception ended; where it did so on one side only, the runs are not alike."""
        aborted = [{int(row["step"]) for row in x.steps if row["state"] == StepState.ABORTED} for x in (self.a, self.b)]
        by = self.shift.to_b
        in_a = aborted[0], {step - by for step in aborted[1]}
        for name, here, there, to_own in (("A", in_a[0], in_a[1], 0), ("B", in_a[1], in_a[0], by)):
            for step in sorted(here):
                if step in common and step not in there:
                    self.reasons.append(note("step-aborted-on-one-side", side=name, step=step + to_own))
                else:
                    self.notes.append(note("step-aborted", side=name, step=step + to_own))


def _called(calls: np.ndarray, tree: Tree) -> set[int]:
    """Return the modules that were seen to run, what a compiled model's wrapper holds included."""
    seen = set(np.unique(calls["module"]).tolist())
    return seen | {tree.unwrapped(index) for index in seen if tree.wrapped(index) is not None}


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
