"""The data flow around a place, row by row as it ran: the error from where it is made to what it reaches; or one run's own numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from probe.answer.comparison import Comparison
from probe.errors import ConfigError, NotRecordedError
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.report.again import Again
from probe.report.graph.both import ABSENT, both_flows, looked_at
from probe.report.graph.flow import Flow, Kind, Node, first_micro, flow_of, recorded_step
from probe.report.graph.joined import Joined, Row
from probe.report.graph.looks import UNKNOWN, UNMATCHED, Look, Looks
from probe.report.left_out import qualification
from probe.report.plots.axes import SMALL, VERDICTS, WORDS, A, label, one, title
from probe.store.reading.reader import Reader
from probe.verdict.side import Side
from probe.verdict.tensors import Tensor

_COLOURS = {**VERDICTS, UNKNOWN: "#b4bac2", UNMATCHED: "#8a63d2"}
_PITCH, _HIGH, _WIDE, _STEP = 0.39, 0.26, 3.1, 0.16
"""inches: from row to row, height and width of a node, how far what is deeper stands to the right"""
_ARCS, _APART = 1.0, 0.9
"""inches: room for what goes past other nodes, beside a column; between the columns"""
_NUMBERS = 2.6
"""inches: room for a run's own numbers beside its nodes"""
_MOST_ROWS = 400
"""more would be no picture"""
_LONGEST, _SMALL_FACTOR = 28, 0.85
_CHARACTER, _ERROR = 0.073, 0.6
"""inches: what a character of a name needs, and what an error does"""
_ALONG = 0.76
"""where in a column what goes to the next node is drawn"""
_THIN, _THICK, _LEAST = 0.9, 4.5, -7.0
"""width of edges in points, and the decimal logarithm of an error that is drawn thin"""
Place = tuple[float, float]


def draw(comparison: Comparison, step: int | None, at: str | None, phase: Phase | None, ax: Any) -> Any:
    """Draw both sides around the first divergence, or around a module; return the axes.

    Raises
    ------
    ImportError
        matplotlib is not installed
    ConfigError
        the step was not compared, or no module of that name ran
    NotRecordedError
        nothing ran in it
    """
    steps = dict(comparison.steps)
    if step is not None and step not in steps:
        raise ConfigError(f"step {step} was not compared; there are {', '.join(map(str, steps)) or 'none'}")
    first = comparison.first_divergence
    with open_reader(comparison.path_a) as a, open_reader(comparison.path_b) as b:
        chosen = step if step is not None else (first.step if first is not None else next(iter(steps), None))
        wanted = {} if chosen is None else {chosen: Again.of(comparison, a, b).step(chosen)}
        place = looked_at(wanted, first, chosen)
        if place is None:
            raise NotRecordedError(f"no module ran in what was compared of step {chosen}")
        pairs, micro = place
        flows = both_flows(pairs, micro, comparison.slots)
        joined = Joined(flows.a, flows.b, flows.twins)
        elsewhere = first is not None and first.phase not in (Phase.FORWARD, Phase.BACKWARD)
        if phase is None:
            phase = Phase.FORWARD if first is None or elsewhere else first.phase
        looks = Looks(comparison, pairs, micro, flows, joined, phase)
        where = at if at is not None else "" if first is None else (first.a or first.b)[0].path
        node = _node_of(joined, looks.path, where, is_chosen=at is not None)
        classes = tuple([module.class_name for module in side.reader.modules] for side in (pairs.a, pairs.b))
        said = f"{comparison.verdict.value.upper()}{qualification(comparison.verdict, comparison.left_out)}: step {pairs.a.step}, {phase.label}"
        said += f"; the first divergence is in {first.phase.label}" if elsewhere and first is not None else ""
        picture = _Picture(joined, joined.rows(node), looks.path, classes, ax, is_back=phase is Phase.BACKWARD)
    rows = picture.rows
    picture.nodes([looks.row(row.nodes) for row in rows], [_error(looks.row(row.nodes)) for row in rows])
    for side in (0, 1):
        picture.ways(side, lambda way, side=side: looks.way(way.edges, side))
    picture.joins([looks.row(row.nodes) for row in rows])
    picture.ended(said)
    return picture.axes


def draw_run(reader: Reader, step: int | None, at: str, ax: Any) -> Any:
    """Draw one run as it ran, with the norm of what each call returned; return the axes.

    Raises
    ------
    ImportError
        matplotlib is not installed
    ConfigError
        no module of that name ran
    NotRecordedError
        the step was not recorded, or nothing ran in it
    """
    chosen = recorded_step(reader, step)
    side = Side(reader, chosen, {})
    flow = flow_of(side, first_micro(call.micro for call in side.calls))
    if not flow.nodes:
        raise NotRecordedError(f"no module ran in step {chosen} of {reader.path.name}")
    joined, paths = Joined(flow), [module.path for module in reader.modules]

    def path(node: int, _: int) -> str | None:
        module = flow.nodes[node].module
        return None if module < 0 else paths[module]

    node = _node_of(joined, path, at, is_chosen=bool(at))
    picture = _Picture(joined, joined.rows(node), path, ([module.class_name for module in reader.modules],), ax)
    picture.nodes([Look() for _ in picture.rows], ["" for _ in picture.rows])
    picture.ways(0, lambda _: Look())
    made = _made(side, flow)
    picture.beside([_numbers(made.get(row.nodes[-1])) for row in picture.rows])
    picture.ended(f"{label(reader.path.name)}: step {chosen}")
    return picture.axes


def _made(side: Side, flow: Flow) -> dict[int, Tensor]:
    """Return by node the first tensor that its call returned, or what code made."""
    calls, calls_of = [call for call in side.calls if call.micro == flow.micro], flow.calls
    seen = {each.row: each for call in calls for slots in call.seen.values() for each in slots.values()}
    found = {at: seen[node.row] for at, node in enumerate(flow.nodes) if node.row >= 0}
    for call in calls:
        for tensor in call.of(Role.OUTPUT).values():
            found.setdefault(calls_of[call.module, call.number], tensor)
    return found


def _numbers(tensor: Tensor | None) -> str:
    """Return size, dtype and norm of a tensor."""
    if tensor is None:
        return ""
    bad = sum(tensor.bad)
    end = f", {bad:,} not finite" if bad else ""
    return f"[{', '.join(map(str, tensor.shape))}] {tensor.dtype}, norm {tensor.norm:.4g}{end}"


def _node_of(joined: Joined, path: Callable[[int, int], str | None], wanted: str, *, is_chosen: bool) -> int:
    """Return the first call of a module of one of the sides."""
    for side in range(len(joined.flows)):
        for node in range(len(joined.places)):
            if node in joined.parents and joined.is_call(node) and path(node, side) == wanted:
                return node
    if is_chosen:
        raise ConfigError(f"at={wanted!r}: no module of that path ran in the step")
    return ABSENT


def _error(look: Look) -> str:
    return "=" if look.verdict == "equal" else "" if math.isnan(look.error) else f"{look.error:.1e}"


class _Picture:
    """The picture under way: inches from the top left, a column for each side, a row for each node."""

    def __init__(
        self, joined: Joined, rows: Sequence[Row], path: Callable[[int, int], str | None], classes: Sequence[Sequence[str]], ax: Any,
        *, is_back: bool = False,
    ) -> None:  # fmt: skip
        self.joined, self.path, self.classes, self.is_back = joined, path, classes, is_back
        ways = [joined.ways(rows, side) for side in range(len(joined.flows))]
        used = {at for each in ways for ends in each for at in ends}
        kept = [at for at, row in enumerate(rows) if at in used or joined.is_call(row.nodes[0])][:_MOST_ROWS]
        at = {old: new for new, old in enumerate(kept)}
        self.rows = [rows[old] for old in kept]
        self.edges = [{(at[i], at[j]): way for (i, j), way in each.items() if i in at and j in at} for each in ways]
        sides = range(len(ways))
        self.is_there = [[any(joined.places[node][i] >= 0 for node in row.nodes) for row in self.rows] for i in sides]
        deepest = max((row.depth for row in self.rows), default=0)
        self.column = _WIDE + deepest * _STEP
        self.lefts = [_ARCS, _ARCS + self.column + _APART][: len(ways)]
        wide = self.lefts[-1] + self.column + (_ARCS if len(ways) > 1 else _NUMBERS)
        high = len(self.rows) * _PITCH + 0.2
        self.axes = one(ax, (wide, high + 0.5))
        self.axes.set_xlim(0, wide)
        self.axes.set_ylim(high, 0)
        self.axes.axis("off")

    def _y(self, at: int) -> float:
        return 0.1 + (at + 0.5) * _PITCH

    def _ends(self, at: int, side: int) -> tuple[float, float]:
        """Return where a node of a column begins and ends; what is in open calls is narrower on both of its sides."""
        inset = self.rows[at].depth * _STEP / 2
        return self.lefts[side] + inset, self.lefts[side] + self.column - inset

    def nodes(self, looks: Sequence[Look], texts: Sequence[str]) -> None:
        """Draw the nodes of all columns, and around what happens in an open call a frame."""
        from matplotlib.patches import FancyBboxPatch

        for side in range(len(self.lefts)):
            for at, (row, look, text) in enumerate(zip(self.rows, looks, texts, strict=True)):
                if not self.is_there[side][at]:
                    continue
                left, right = self._ends(at, side)
                colour, is_wrong = _COLOURS[look.verdict], look.verdict == "introduced"
                if row.is_open:
                    self._frame(at, side)
                    room = int((right - left) * _ALONG / _CHARACTER) - 2
                    self._write(left + 0.08, at, self._name(row, side, room), color="gray", size=SMALL)
                    continue
                is_code = not any(map(self.joined.is_call, row.nodes))
                style = f"round,pad=0,rounding_size={_HIGH / 2 if is_code else 0.05}"
                if len(row.nodes) > 1:  # the edges of those behind it
                    for k in (0.04, 0.08):
                        x = left + k, right + k / 2
                        self.axes.plot(x, [self._y(at) + _HIGH / 2 + k / 2] * 2, color=colour, lw=0.8, zorder=2)
                self.axes.add_patch(FancyBboxPatch(
                    (left, self._y(at) - _HIGH / 2), right - left, _HIGH, boxstyle=style, zorder=3, lw=1.6 if is_wrong else 0.9,
                    facecolor=self._ground(colour, 0.28 if is_wrong else 0.12), edgecolor=colour,
                    ls="--" if look.verdict == UNMATCHED else "-"))  # fmt: skip
                room = int((right - left - _ERROR * bool(text) - 0.2) / _CHARACTER) - 2 * is_wrong
                name = self._name(row, side, room)
                self._write(left + 0.08, at, f"◆ {name}" if is_wrong else name, size=SMALL, weight="bold" if is_wrong else "normal",
                            color=VERDICTS["introduced"] if is_wrong else None)  # fmt: skip
                grey = "gray" if look.verdict == "equal" else None
                self._write(right - 0.08, at, text, size=SMALL * _SMALL_FACTOR, ha="right", color=grey)

    def _ground(self, colour: str, share: float) -> tuple[float, ...]:
        """Return a colour on the ground of the axes: opaque, so that what goes behind a node does not show in it."""
        from matplotlib import colors, rcParams

        ground = np.array(colors.to_rgb(rcParams["axes.facecolor"]))
        return tuple((ground * (1 - share) + np.array(colors.to_rgb(colour)) * share).tolist())

    def _write(self, x: float, at: int, text: str, **style: Any) -> None:
        style = {name: value for name, value in style.items() if value is not None}
        self.axes.text(x, self._y(at), text, va="center", zorder=4, clip_on=False, **style, **WORDS)

    def _frame(self, at: int, side: int) -> None:
        from matplotlib.patches import Rectangle

        depth, last = self.rows[at].depth, at
        while last + 1 < len(self.rows) and self.rows[last + 1].depth > depth:
            last += 1
        left, right = self._ends(at, side)
        top, bottom = self._y(at) - _HIGH / 2, self._y(last) + _HIGH / 2 + 0.04
        style = {"fill": False, "lw": 0.7, "edgecolor": "gray", "alpha": 0.6, "zorder": 1}
        self.axes.add_patch(Rectangle((left, top), right - left, bottom - top, **style))

    def _name(self, row: Row, side: int, room: int) -> str:
        """Return the name of a node in so many characters: its path below the call around it, its class where that fits too."""
        there = [node for node in row.nodes if self.joined.places[node][side] >= 0]
        there = [node for node in there if self.joined.is_call(node)] or there
        if not there:
            return ""
        first, kind = self._own_name(there[0], side)
        if len(there) > 1:
            last, _ = self._own_name(there[-1], side)
            is_alike = last.rpartition(".")[0] == first.rpartition(".")[0]
            first, kind = f"{first} … {last.rpartition('.')[2] if is_alike else last}", f"{len(there)} calls"
        both = f"{first}  {kind}" if first and kind else first or kind
        return both if len(both) <= room else label(first or kind, room)

    def _own_name(self, node: int, side: int) -> tuple[str, str]:
        """Return the path of a call below the call around it, and its class; what code did; what an input is called."""
        mine: Node = self.joined.flows[side].nodes[self.joined.places[node][side]]
        if mine.kind is Kind.CODE:
            return mine.text or "code", ""
        if mine.kind is Kind.INPUT:
            return f"input {label(mine.text, _LONGEST)}", ""
        path = self.path(node, side) or ""
        there = (each for each in self.joined.around(node) if self.joined.places[each][side] >= 0)
        around = next((self.path(each, side) for each in there), None)
        name = path[len(around) + 1 :] if around and path.startswith(f"{around}.") else path
        call = f" (call {mine.call + 1})" if mine.call else ""
        kind = label(self.classes[side][mine.module], _LONGEST)
        return (f"{label(name, _LONGEST)}{call}", kind) if name else ("", f"{kind}{call}")

    def ways(self, side: int, look: Callable[[Any], Look]) -> None:
        """Draw what goes from node to node: to the next one straight, past others beside the column."""
        from matplotlib.patches import FancyArrowPatch

        out = 1 if side else -1
        longest = max((abs(j - i) for i, j in self.edges[side]), default=1)
        for (i, j), way in sorted(self.edges[side].items(), key=lambda each: each[0]):
            if not (self.is_there[side][i] and self.is_there[side][j]):
                continue
            said = look(way)
            colour = _COLOURS[said.verdict]
            is_next = self._next(i, side) == j
            ends = self._straight(i, j, side) if is_next else self._beside(i, j, side, out)
            start, end = ends if not self.is_back else ends[::-1]
            bend = 0.0
            if not is_next:
                height = abs(ends[1][1] - ends[0][1])
                room = (0.25 + 0.7 * math.sqrt(abs(j - i) / longest)) * (_ARCS - 0.08)
                bend = (room / height) * (1 if (out < 0) != self.is_back else -1) * 2
            wide = self._width(said)
            self.axes.add_patch(FancyArrowPatch(
                start, end, arrowstyle=f"-|>,head_width={1.2 + wide * 0.55},head_length={2.4 + wide * 0.9}", lw=wide, color=colour,
                connectionstyle=f"arc3,rad={bend}", shrinkA=0, shrinkB=0, zorder=2 if said.verdict != "inherited" else 2.5,
                ls="-" if way.is_known else (0, (3, 2)), mutation_scale=1.0, clip_on=False))  # fmt: skip

    def _next(self, at: int, side: int) -> int:
        """Return the next node that is seen on a side."""
        for row in range(at + 1, len(self.rows)):
            if self.is_there[side][row] and not self.rows[row].is_open:
                return row
        return ABSENT

    def _straight(self, i: int, j: int, side: int) -> tuple[Place, Place]:
        x = self.lefts[side] + self.column * _ALONG
        return (x, self._y(i) + _HIGH / 2), (x, self._y(j) - _HIGH / 2)

    def _beside(self, i: int, j: int, side: int, out: int) -> tuple[Place, Place]:
        at = 0 if out < 0 else 1
        return (self._ends(i, side)[at], self._y(i) + _HIGH / 5), (self._ends(j, side)[at], self._y(j) - _HIGH / 5)

    @staticmethod
    def _width(look: Look) -> float:
        if look.verdict != "inherited":
            return _THIN
        level = 1.0 if not math.isfinite(look.error) else math.log10(max(look.error, 10**_LEAST)) / -_LEAST + 1
        return 1.8 + (_THICK - 1.8) * min(1.0, max(0.0, level))

    def joins(self, looks: Sequence[Look]) -> None:
        """Draw what is a pair: a line from A's node to B's."""
        for at, look in enumerate(looks):
            if self.is_there[0][at] and self.is_there[1][at] and not self.rows[at].is_open:
                ends = self._ends(at, 0)[1], self._ends(at, 1)[0]
                self.axes.plot(ends, [self._y(at)] * 2, color=_COLOURS[look.verdict], lw=0.8, ls=":", zorder=1)

    def beside(self, texts: Sequence[str]) -> None:
        """Write a text beside each node."""
        for at, text in enumerate(texts):
            if text and not self.rows[at].is_open:
                self._write(self.lefts[-1] + self.column + 0.12, at, text, size=SMALL * _SMALL_FACTOR, color=A)

    def ended(self, text: str) -> None:
        """Set the title, and the names of the sides."""
        title(self.axes, text)
        for left, name in zip(self.lefts, ("A", "B") if len(self.lefts) > 1 else (), strict=False):
            style = {"ha": "center", "va": "bottom", "size": SMALL, "weight": "bold", "color": "gray"}
            self.axes.text(left + self.column / 2, 0.05, name, **style)
