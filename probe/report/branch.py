"""The branch of the module tree in which the first divergence lies, for the terminal: a handful of lines."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from probe.answer.comparison import Comparison
from probe.answer.metrics import Metrics, Status
from probe.answer.result import Divergence, Kind, SlotResult
from probe.errors import ProbeError
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.report.layout import padded, plain, shortened, wrapped
from probe.report.measured import about, amount
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

_MOST_ABOVE = 3
"""modules between the root and what is wrong; paths take the place of further ones"""
_BESIDE = 2
"""siblings before and after what is wrong"""
_MOST_WRONG = 4
_LEAST = 12
"""columns of a class where names need the room"""
_ROLES = {
    Phase.FORWARD: [{Role.OUTPUT}],
    Phase.BACKWARD: [{Role.GRAD_INPUT, Role.GRAD_TOTAL}, {Role.GRAD_OUTPUT}],
    Phase.INIT: [{Role.PARAM, Role.BUFFER}],
    Phase.GRADIENT: [{Role.PARAM_GRAD}],
    Phase.UPDATE: [{Role.DELTA}, {Role.STATE, Role.PARAM}, {Role.PARAM_GRAD}, {Role.BUFFER}],
}
"""what tells of a module, the best first"""
_OF_WHAT = {
    Phase.FORWARD: "outputs",
    Phase.BACKWARD: "gradients passed back",
    Phase.INIT: "initial weights",
    Phase.GRADIENT: "gradients of weights",
    Phase.UPDATE: "updates",
}
_STATES = ["introduced", "inherited", "not judged", "noise", "equal", "not comparable"]
"""verdicts of tensors, the one that counts most first"""
_WORDS = {"introduced": "✗ wrong too", "inherited": "~ inherits", "noise": "✓ agrees", "equal": "= equal",
          "not judged": "  not judged", "not comparable": "? not comparable", "": "  not compared"}  # fmt: skip
_STYLES = {"✗": "red", "~": "yellow", "✓": "green", "=": "green", "?": "yellow"}
_INSIDE = "~ from inside"


@dataclass(frozen=True, slots=True)
class Line:
    """A module of the branch, or several that are not listed."""

    lead: str
    """the lines of the tree"""
    name: str
    """path below the module above it"""
    class_name: str
    error: str
    state: str
    is_wrong: bool = False
    """it is the first divergence"""
    in_run: str = ""
    """of a replay: the error in a run of B by itself"""


def drawn(comparison: Comparison, width: int) -> Text | None:
    """Return the branch; None where there is nothing to draw: the model as a whole is wrong, or one module is all that was compared.

    Parameters
    ----------
    comparison
        whose first divergence is shown
    width
        columns
    """
    first = comparison.first_divergence
    if first is None or first.kind is Kind.INPUTS or first.phase not in _ROLES:
        return None
    try:
        with open_reader(comparison.path_a) as a, open_reader(comparison.path_b) as b:
            lines = _Branch(comparison, first, a, b).lines()
    except ProbeError as error:
        return Text(f"The branch of the tree is not shown: {plain(str(error))}\n")
    if len(lines) <= 2 or not any(line.state[:1] in _STYLES for line in lines if not line.is_wrong):
        return None
    errors = f"relative errors of {_OF_WHAT[first.phase]}, in the order of A's calls"
    has_runs = any(line.in_run for line in lines)
    title = (
        f"Where it lies: own {errors}, and those in a run of B by itself" if has_runs else f"Where it lies: {errors}"
    )
    out = Text(f"{wrapped(title, width, indent='  ')}\n")
    for row in _laid_out(lines, width):
        out.append_text(row)
    return out


def _laid_out(lines: Sequence[Line], width: int) -> Iterable[Text]:
    """Yield the lines in columns; names and classes are shortened where there is no room for them."""
    states = max(cell_len(line.state) for line in lines if line.class_name)
    if any(line.in_run for line in lines):
        own = max(cell_len(line.error) for line in lines)
        lines = [replace(line, error=f"{padded(line.error, own)}  {line.in_run:>7}") for line in lines]
    errors = max(cell_len(line.error) for line in lines)
    classes = max(cell_len(line.class_name) for line in lines)
    names = max(cell_len(line.lead + line.name) for line in lines)
    room = max(width - 8 - errors - states, 2 * _LEAST)
    classes = min(classes, max(room - names, _LEAST))
    names = min(names, room - classes)
    for line in lines:
        name = shortened(line.name, names - cell_len(line.lead))
        row = Text(f"  {line.lead}")
        row.append(name, style="bold red" if line.is_wrong else "cyan" if line.class_name else "dim")
        row.append(" " * (names - cell_len(line.lead + name)))
        style = "bold red" if line.is_wrong else _STYLES.get(line.state[:1], "dim")
        if line.class_name:
            row.append(f"  {padded(shortened(line.class_name, classes), classes)}")
            row.append(f"  {' ' * (errors - cell_len(line.error))}{line.error}  ")
            row.append(line.state, style=style)
        else:
            row.append_text(_summed_up(line.state, row.cell_len, names + classes + errors + 8, width, style))
        row.rstrip()
        row.append("\n")
        yield row


def _summed_up(state: str, used: int, column: int, width: int, style: str) -> Text:
    """Return what is behind modules that are not listed: in the column of states, further left where there is no room, or wrapped."""
    blanks = max(min(column, width - cell_len(state)) - used, 2)
    return Text(wrapped(state, width, " " * (used + blanks), " " * (used + 2))[used:], style=style)


@dataclass(eq=False, slots=True)
class _Place:
    """A module that was called: in A, or in B alone."""

    side: str
    index: int
    path: str
    class_name: str
    begin: float
    """when it was first called"""


class _Branch:
    """The lines under way."""

    def __init__(self, comparison: Comparison, first: Divergence, a: Reader, b: Reader) -> None:
        self.comparison, self.first = comparison, first
        self.ref = (first.a or first.b)[0]
        self.trees = {"A": Tree(a.modules), "B": Tree(b.modules)}
        self.partners = {pair.b: pair.a for pair in comparison.matching.pairs}
        self.partnered = set(self.partners.values())
        steps = dict(comparison.steps)
        self.begins = {"A": _begins(a, self.ref.step), "B": _begins(b, steps.get(self.ref.step, self.ref.step))}
        self.found = self._slots_by_path()
        self.only = {"A": set(comparison.only_a), "B": set(comparison.only_b)}
        self.wrong = self._wrong()
        self.below = self._below()

    def _slots_by_path(self) -> dict[str, list[SlotResult]]:
        """Return what tells the state of A's modules; of weights, those of all modules inside too."""
        of_calls = self.first.phase in (Phase.FORWARD, Phase.BACKWARD)
        found: dict[str, list[SlotResult]] = defaultdict(list)
        for slot in self.comparison.slots:
            is_of_pass = not of_calls or slot.micro == self.ref.micro
            if slot.step != self.ref.step or slot.phase is not self.first.phase or not is_of_pass:
                continue
            paths = {slot.path_a, *(path for path, _ in slot.parts_a)}
            if not of_calls:
                paths = {above for path in paths for above in _with_parents(path)}
            for path in paths:
                found[path].append(slot)
        return found

    def _wrong(self) -> list[_Place]:
        side, refs = ("A", self.first.a) if self.first.a else ("B", self.first.b)
        places = []
        for ref in refs:
            index = self.trees[side].by_path.get(ref.path)
            if index is None:
                continue
            known = self.partners.get(index) if side == "B" else None
            places.append(self._place(side, index) if known is None else self._place("A", known))
        return places

    def _place(self, side: str, index: int) -> _Place:
        tree = self.trees[side]
        return _Place(side, index, tree.path(index), tree.class_name(index), self.begins[side].get(index, math.inf))

    def lines(self) -> list[Line]:
        """Return the lines from the root down; none where the root itself is wrong."""
        if not self.wrong or not self.wrong[0].path:
            return []
        above = self._above(self.wrong[0])
        parent = above[-1]
        telling = [each for each in above[1:] if each.side == "B" or each.index in self.partnered]
        above = [*above[:1], *telling[-_MOST_ABOVE:]]
        lines: list[Line] = []
        for depth, place in enumerate(above):
            lead = "" if not depth else f"{'  ' * (depth - 1)}└ "
            name = self._name(place, above[depth - 1] if depth else None)
            lines += self._before(place, lead) if depth else []
            lines.append(self._line(place, name, lead, _INSIDE))
        return lines + self._siblings(parent, above)

    def _name(self, place: _Place, parent: _Place | None) -> str:
        if parent is None:
            return plain(place.path) or "(the whole model)"
        path = parent.path
        if place.side != parent.side:
            path = next((self.trees["B"].path(b) for b, a in self.partners.items() if a == parent.index), "")
        inside = place.path[len(path) + 1 :] if path and place.path.startswith((f"{path}.", f"{path}/")) else place.path
        return f"B's {plain(inside)}" if place.side == "B" else plain(inside)

    # The tree: modules that were called, each below the nearest one that was

    def _parent(self, place: _Place) -> _Place | None:
        """Return the nearest module above that was called, in A where it has a partner there."""
        tree, at = self.trees[place.side], self.trees[place.side].parent(place.index)
        while at >= 0:
            partner = at if place.side == "A" else self.partners.get(at)
            if partner is not None and (partner in self.begins["A"] or not partner):
                return self._place("A", partner)
            if place.side == "B" and at in self.begins["B"] and tree.path(at) in self.only["B"]:
                return self._place("B", at)
            at = tree.parent(at)
        return None if place.side == "A" and not place.path else self._place("A", 0)

    def _above(self, place: _Place) -> list[_Place]:
        """Return the modules above a place, the root first."""
        above: list[_Place] = []
        at = self._parent(place)
        while at is not None:
            above.append(at)
            at = self._parent(at) if at.path else None
        above.reverse()
        return above

    def _below(self) -> dict[tuple[str, int], list[_Place]]:
        """Return the modules below each, in the order of calls; what only B has stands behind what it follows there."""
        places = {("A", index): self._place("A", index) for index in self.begins["A"]}
        places |= {(each.side, each.index): each for each in self.wrong}
        found: dict[tuple[str, int], list[_Place]] = defaultdict(list)
        for place in sorted(places.values(), key=lambda each: (each.begin, each.index)):
            if place.side == "A":
                self._put(place, found, None)
        tree = self.trees["B"]
        alone = {tree.by_path[path] for path in self.only["B"] if path in tree.by_path}
        alone |= {each.index for each in self.wrong if each.side == "B"}
        begins = {a: self.begins["B"].get(b, math.inf) for b, a in self.partners.items()}
        for place in sorted((self._place("B", index) for index in alone), key=lambda each: each.begin):
            if place.index not in self.partners:
                self._put(place, found, begins)
        return found

    def _put(self, place: _Place, found: dict[tuple[str, int], list[_Place]], begins: dict[int, float] | None) -> None:
        """Add a place to those below its parent: behind all, or, by when they began in B, behind what it follows there."""
        parent = self._parent(place)
        if parent is None:
            return
        siblings = found[parent.side, parent.index]
        at = len(siblings)
        if begins is not None:
            in_b = [each.begin if each.side == "B" else begins.get(each.index, math.inf) for each in siblings]
            at = max((number + 1 for number, begin in enumerate(in_b) if begin < place.begin), default=0)
        siblings.insert(at, place)

    def _before(self, place: _Place, lead: str) -> list[Line]:
        """Return a line for what was called before a module on the way, beside it, if anything of it was compared."""
        parent = self._parent(place)
        assert parent is not None
        earlier = [each for each in self.below[parent.side, parent.index] if each.begin < place.begin]
        if not any(map(self._verdict, earlier)):
            return []
        return [Line(lead.replace("└", "├"), f"… {len(earlier)} before", "", "", self._summary(earlier))]

    def _siblings(self, parent: _Place, above: Sequence[_Place]) -> list[Line]:
        """Return what is wrong and what stands before and behind it; of the others how many there are."""
        below = self.below[parent.side, parent.index]
        wrong = {(each.side, each.index) for each in self.wrong[:_MOST_WRONG]}
        at = [place for place, each in enumerate(below) if (each.side, each.index) in wrong]
        shown = {near for place in at for near in range(place - _BESIDE, place + _BESIDE + 1)}
        rows: list[list[_Place]] = []
        for is_shown, places in groupby(range(len(below)), shown.__contains__):
            run = [below[place] for place in places]
            rows += [[each] for each in run] if is_shown else [run]
        indent = "  " * (len(above) - 1)
        lines = []
        for number, row in enumerate(rows):
            lead = f"{indent}{'└' if number == len(rows) - 1 else '├'} "
            if len(row) > 1:
                lines.append(Line(lead, f"… {len(row)} more", "", "", self._summary(row)))
                continue
            line = self._first_line if (row[0].side, row[0].index) in wrong else self._line
            lines.append(line(row[0], self._name(row[0], above[-1]), lead))
        return lines

    def _line(self, place: _Place, name: str, lead: str, of_wrong: str = "") -> Line:
        state, in_run = self._state(place, of_wrong), _in_run(self._slots_of(place))
        return Line(lead, name, plain(place.class_name), self._error(place), state, in_run=in_run)

    def _first_line(self, place: _Place, name: str, lead: str) -> Line:
        """Return the line of what is wrong itself."""
        class_name, metrics = plain(place.class_name), self.first.metrics
        if self.first.kind is Kind.MISSING:
            return Line(lead, name, class_name, "", f"✗ {self._missing(place)}", is_wrong=True)
        error, in_run = "" if metrics is None else _number(metrics), _in_run(self._slots_of(place))
        return Line(lead, name, class_name, error, "✗ wrong, the first", is_wrong=True, in_run=in_run)

    def _missing(self, place: _Place) -> str:
        called = (fact.facts["side"] for fact in self.first.facts if fact.code == "computed-by-code-of-other-side")
        side = next(called, "" if self.first.a and self.first.b else "A" if self.first.a else "B")
        if not side:
            return "missing, the first"
        is_paired = place.side == "A" and place.index in self.partnered
        return f"a call only in {side}" if is_paired else f"only in {side}"

    # What is known of a module

    def _slots_of(self, place: _Place) -> list[SlotResult]:
        """Return what tells a module's state."""
        found = self.found.get(place.path, []) if place.side == "A" else []
        for roles in _ROLES[self.first.phase]:
            if chosen := [slot for slot in found if slot.role in roles]:
                return chosen
        return []

    def _verdict(self, place: _Place) -> str:
        verdicts = {slot.verdict for slot in self._slots_of(place)}
        return next((each for each in _STATES if each in verdicts), "")

    def _state(self, place: _Place, of_wrong: str = "") -> str:
        if place.path in self.only[place.side] and not self._slots_of(place):
            return f"  only in {place.side}"
        verdict = self._verdict(place)
        if not verdict and place.side == "A" and place.index not in self.partnered:
            return "  no partner"
        return of_wrong if of_wrong and verdict in ("introduced", "inherited") else _WORDS[verdict]

    def _error(self, place: _Place) -> str:
        known = [slot.metrics for slot in self._slots_of(place) if slot.metrics.is_known]
        return _number(max(known, key=_size)) if known else ""

    def _summary(self, places: Sequence[_Place]) -> str:
        """Say how modules that are not listed compare."""
        verdicts = [self._verdict(place) for place in places]
        known = set(filter(None, verdicts))
        if known and known <= {"equal", "noise"}:
            word = "= equal" if "noise" not in known else "✓ agrees" if len(places) == 1 else "✓ agree"
        else:
            words = [_WORDS[each][2:] for each in _STATES if each in known]
            word = f"{'~' if 'inherited' in known else ' '} {', '.join(words)}" if words else ""
        unknown = [place for place, verdict in zip(places, verdicts, strict=True) if not verdict]
        alone = sum(place.path in self.only[place.side] for place in unknown)  # of others the weights were compared
        left = len(unknown) - alone
        parts = [word, f"{alone} without partner" if alone else "", f"{left} not compared" if left else ""]
        return ", ".join(filter(None, parts))


def _with_parents(path: str) -> Iterable[str]:
    """Yield a path, and those of all modules around it."""
    yield path
    while path:
        path = path.rpartition(".")[0]
        yield path


def _begins(reader: Reader, step: int) -> dict[int, float]:
    """Return when each module was first called in a step; in the order of the tree where calls were not recorded."""
    found: dict[int, float] = {}
    calls = reader.of_step("calls", step)
    for module, seq in zip(calls["module"].tolist(), calls["seq"].tolist(), strict=True):
        found[module] = min(found.get(module, math.inf), seq)
    return found or {index: float(index) for index in range(len(reader.modules))}


def _size(metrics: Metrics) -> float:
    return math.inf if math.isnan(metrics.rel_l2) else metrics.rel_l2


def _number(metrics: Metrics) -> str:
    if metrics.status is Status.NONFINITE:
        return "NaN/Inf"
    if not math.isfinite(metrics.rel_l2):
        return ""
    if not metrics.rel_l2:
        return "0"
    return f"{about(metrics)}{amount(metrics)}"


def _in_run(slots: Iterable[SlotResult]) -> str:
    """Return how far what a module returns is off in a run of B by itself; only of a replay."""
    found = [slot.in_run for slot in slots if not math.isnan(slot.in_run)]
    return f"{max(found):.1e}" if found else ""
