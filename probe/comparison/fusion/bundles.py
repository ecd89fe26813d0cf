"""One to many: a side that has the parts is read as if it had the one module, and the one parameter, of the other.

What is then compared are pairs of one and one, of which one side's rows may be what several tensors are together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set

from probe.comparison.distance.combined import LACKING, Piece, add_fused, add_sum, canonical_shape, is_finite
from probe.comparison.steps.side import PARAMETER_ROLES, Side
from probe.matching import Bundle, Matching, Place, WeightBundle
from probe.numbers.fused import Fusion, problem_of
from probe.records import Phase, Role

_ZERO_WITHOUT = (Role.PARAM_GRAD, Role.DELTA, Role.STATE)
"""what a part that does not learn has none of is zero"""

Key = tuple[int, int, str]
"""(phase, role, canonical name of a state)"""


def join_parts(side: Side, name: str, matching: Matching) -> None:
    """Let one module stand for several, and one parameter for several, wherever a side has the parts.

    Parameters
    ----------
    side
        a step, which is changed
    name
        ``A`` or ``B``
    matching
        see `probe.comparison.fusion.one_to_many.completed`
    """
    weights = [bundle for bundle in matching.weight_bundles if bundle.side == name]
    _take_for_parameters(side, {each.whole for each in matching.weight_bundles if each.side != name and each.is_mixed})
    modules = [bundle for bundle in matching.bundles if bundle.side == name]
    if modules:
        _Calls(side, modules).join()
    if weights:
        _Weights(side, name, weights, matching).join()


def _take_for_parameters(side: Side, buffers: Set[Place]) -> None:
    """Let buffers be parameters where the other side has parameters."""
    columns = side.columns
    for row, (module, role) in enumerate(zip(columns["module"], columns["role"], strict=True) if buffers else ()):
        if role == Role.BUFFER and (module, side.canonical(module, side.slots[row])) in buffers:
            columns["role"][row] = Role.PARAM


class _Calls:
    """What belongs to the calls of modules that stand for one."""

    def __init__(self, side: Side, bundles: Sequence[Bundle]) -> None:
        self.side, self.bundles = side, bundles
        self.parts = {part for bundle in bundles for part in bundle.parts}
        self.rows: dict[tuple[int, int, int, int], dict[str, list[int]]] = defaultdict(dict)
        """by micro, module, call and role: by slot"""
        self._stands: dict[int, int] = {}
        """numbers of calls that stand for others, by those"""
        columns = side.columns
        names = ("micro", "module", "call", "role")
        for row, (micro, module, call, role) in enumerate(zip(*(columns[name] for name in names), strict=True)):
            if module in self.parts and role not in PARAMETER_ROLES and row not in side.hidden:
                self.rows[micro, module, call, role].setdefault(side.slots[row], []).append(row)

    def join(self) -> None:
        """Join all that they were given and returned."""
        calls = self._calls()
        for bundle in self.bundles:
            first, *others = bundle.parts
            self.side.parts[first, ""] = tuple((part, "") for part in bundle.parts)
            for micro, number in calls.get(first, {}):
                for role in (Role.OUTPUT, Role.GRAD_OUTPUT):
                    self._fuse(bundle, micro, number, role)
                if others:
                    self._add(bundle, micro, number)
                self._compare_inputs(bundle, micro, number)
            self._hide_calls(calls, first, others)
        if self._stands:
            callers = self.side.calls["caller"]
            callers[:] = [self._stands.get(caller, caller) for caller in callers.tolist()]

    def _calls(self) -> dict[int, dict[tuple[int, int], int]]:
        """Return the rows of the parts' calls, by module, micro and number."""
        found: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
        calls = self.side.calls
        for row in self.side.counted.nonzero()[0].tolist():
            module = int(calls["module"][row])
            if module in self.parts:
                found[module][int(calls["micro"][row]), int(calls["call"][row])] = row
        return found

    def _hide_calls(self, calls: dict[int, dict[tuple[int, int], int]], first: int, others: Iterable[int]) -> None:
        """Let the call of the first part stand for those of the others, and begin when the earliest does."""
        table, start = self.side.calls, self.side.first_call
        for key, row in calls.get(first, {}).items():
            rows = [row, *(calls[other][key] for other in others if key in calls.get(other, {}))]
            earliest = min(rows, key=lambda each: table["seq"][each])
            table["seq"][row], table["end"][row] = table["seq"][earliest], table["end"][earliest]
            for other in rows[1:]:
                self.side.counted[other] = False
                self._stands[start + other] = start + row

    def _fuse(self, bundle: Bundle, micro: int, number: int, role: Role) -> None:
        """Put what the parts returned, or its gradients, side by side along the last axis."""
        found = [self.rows.get((micro, part, number, role), {}) for part in bundle.parts]
        fusion = Fusion(-1, bundle.groups, rotary=bundle.rotary, order=bundle.order)
        for slot in {slot: None for rows in found for slot in rows}:
            pieces = [self._piece(bundle, k, micro, number, role, slot) for k in range(len(found))]
            self.side.hidden.update(found[0].get(slot, ()))
            known = [piece for piece in pieces if piece is not None]
            if len(known) < len(pieces) or problem_of([[piece.shape for piece in known]], fusion):
                continue
            rows = [piece.row for piece in known if piece.row != LACKING]
            choose = min if role is Role.OUTPUT else max  # as if it were made by the first of them
            when = {name: choose(self.side.columns[name][row] for row in rows) for name in ("seq", "order")}
            learns = max(self.side.columns["requires_grad"][row] for row in rows)
            add_fused(self.side, (tuple(known),), fusion, (bundle.parts[0], slot), requires_grad=learns, **when)

    def _piece(self, bundle: Bundle, k: int, micro: int, number: int, role: Role, slot: str) -> Piece | None:
        part = bundle.parts[k]
        rows = self.rows.get((micro, part, number, role), {}).get(slot)
        if rows:
            return Piece(rows[0], self.side.shapes[rows[0]])
        made = self.rows.get((micro, part, number, Role.OUTPUT), {}).get(slot)
        if role is Role.GRAD_OUTPUT and made and self.side.watches(Phase.BACKWARD, part):
            return Piece(LACKING, self.side.shapes[made[0]])
        return None

    def _add(self, bundle: Bundle, micro: int, number: int) -> None:
        """Add up what the parts pass back to the input that they share."""
        found = [self.rows.get((micro, part, number, Role.GRAD_INPUT), {}) for part in bundle.parts]
        for slot in {slot: None for rows in found for slot in rows}:
            rows = [each[slot][0] for each in found if slot in each]
            is_whole = all(
                slot in each or self.side.watches(Phase.BACKWARD, part)
                for each, part in zip(found, bundle.parts, strict=True)
            )
            self.side.hidden.update(found[0].get(slot, ()))
            shapes = {self.side.shapes[row] for row in rows}
            if is_whole and len(shapes) == 1 and all(is_finite(self.side, row) for row in rows):
                last = max(self.side.columns["order"][row] for row in rows)
                add_sum(self.side, rows, bundle.parts[0], order=last)

    def _compare_inputs(self, bundle: Bundle, micro: int, number: int) -> None:
        """Note which parts are not given what the first one is given."""
        first = self.rows.get((micro, bundle.parts[0], number, Role.INPUT), {})
        for part in bundle.parts[1:]:
            rows = self.rows.get((micro, part, number, Role.INPUT), {})
            if any(
                slot in first and self.side.digest(rows[slot][0]) != self.side.digest(first[slot][0]) for slot in rows
            ):
                self.side.given_otherwise.setdefault(bundle.parts[0], {})[part] = None


class _Weights:
    """Parameters that lie in one, and what belongs to them."""

    def __init__(self, side: Side, name: str, bundles: Sequence[WeightBundle], matching: Matching) -> None:
        self.side, self.bundles = side, bundles
        self._partner = {
            (pair.a if name == "B" else pair.b): (pair.b if name == "B" else pair.a) for pair in matching.pairs
        }
        places = {place for bundle in bundles for row in bundle.parts for place in row}
        self.rows: dict[Place, dict[Key, list[int]]] = {place: defaultdict(list) for place in places}
        columns = side.columns
        for row, (module, phase, role) in enumerate(
            zip(columns["module"], columns["phase"], columns["role"], strict=True)
        ):
            if role in PARAMETER_ROLES and row not in side.hidden:
                slot = side.slots[row]
                parameter, _, _ = slot.partition(".")
                if (module, parameter) in places:
                    state = side.canonical(module, slot).partition(".")[2]
                    self.rows[module, parameter][phase, role, state].append(row)

    def join(self) -> None:
        """Join all that was recorded of them."""
        for bundle in self.bundles:
            home = self._partner[bundle.whole[0]], bundle.whole[1]
            places = [place for row in bundle.parts for place in row]
            self.side.parts[home] = tuple(places)
            self.side.names.slots.setdefault(home, bundle.whole[1])
            for key in {key: None for place in places for key in self.rows[place]}:
                self._join(bundle, home, key)
        for rows in self.rows.values():
            for found in rows.values():
                self.side.hidden.update(found)

    def _join(self, bundle: WeightBundle, home: Place, key: Key) -> None:
        phase, role, state = key
        slot = f"{home[1]}.{state}" if state else home[1]
        counts = {len(self.rows[place][key]) for row in bundle.parts for place in row if key in self.rows[place]}
        for k in range(counts.pop()) if len(counts) == 1 else (-1,):
            rows = [[self._piece(place, key, k) for place in row] for row in bundle.parts]
            known = [[piece for piece in row if piece is not None] for row in rows]
            if any(len(row) < len(all_) for row, all_ in zip(known, rows, strict=True)):
                continue
            fusion = bundle.fusion
            pieces = tuple(map(tuple, known))
            if role == Role.STATE and not self._is_like_its_parameter(bundle, pieces):
                pieces, fusion = ((known[0][0],),), Fusion()  # a count of steps: one for all
                if known[0][0].row == LACKING:
                    continue
            if not problem_of([[piece.shape for piece in row] for row in pieces], fusion):
                changed = {"role": Role.PARAM} if bundle.is_mixed and role == Role.BUFFER else {}
                add_fused(self.side, pieces, fusion, (home[0], slot), **changed)

    def _piece(self, place: Place, key: Key, k: int) -> Piece | None:
        """Return what a part has; zeros where that is what it stands for, None where it is not known."""
        phase, role, _ = key
        rows = self.rows[place].get(key)
        if rows:
            return Piece(rows[k], canonical_shape(self.side, rows[k]))
        shape = self.side.names.shape_of(place)
        if place not in self.side.names.slots:
            return Piece(LACKING, shape)
        if not self.side.watches(Phase(phase), place[0]):
            return None
        if role in _ZERO_WITHOUT:
            return Piece(LACKING, shape)
        before = self.rows[place].get((Phase.INIT, role, ""))  # it is not trained, and stays as it was
        return Piece(before[-1], canonical_shape(self.side, before[-1])) if before else None

    def _is_like_its_parameter(self, bundle: WeightBundle, pieces: Sequence[Sequence[Piece]]) -> bool:
        return all(
            piece.shape == self.side.names.shape_of(place)
            for places, row in zip(bundle.parts, pieces, strict=True)
            for place, piece in zip(places, row, strict=True)
        )
