"""Further recordings of A's model: legitimate runs, or one in higher precision. Their tensors are found by A's rows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from probe.comparison.distance.combined import LACKING, Fused
from probe.comparison.distance.metrics import Metrics, Side, Status, kind_of, measure_pair
from probe.comparison.fusion.bundles import join_parts
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Rows
from probe.comparison.steps.side import clipped
from probe.comparison.steps.step_half import StepHalf
from probe.comparison.steps.tied_homes import homes_of
from probe.errors import ConfigError
from probe.matching import Matching
from probe.numbers.statistics import unit_roundoff
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

REFERENCE = "reference"
_SAME_START = 64
"""unit roundoffs by which the weights and inputs that runs begin with may differ: `probe.noise_run` moves them by one, or a few
of them by one of what autocast computes in"""


class OtherRun:
    """One further recording.

    Parameters
    ----------
    path
        the file
    option
        what the user calls it, for messages: ``noise`` or ``reference``
    a, b
        the recordings that are compared
    """

    def __init__(self, path: str | os.PathLike[str], option: str, a: Reader, b: Reader) -> None:
        self.option = option
        self.reader = open_reader(path)
        self.name = self.reader.path.name
        try:
            self._check(a, b)
        except BaseException:
            self.reader.close()
            raise
        self._steps = {int(row["step"]) for row in self.reader.steps}
        by_path = {module.path: index for index, module in enumerate(self.reader.modules)}
        self._index = {index: by_path[module.path] for index, module in enumerate(a.modules) if module.path in by_path}
        self.missing_steps: list[int] = []
        self._was_checked = False

    def _check(self, a: Reader, b: Reader) -> None:
        self.reader.require_steps()
        for name, side in (("A", a), ("B", b)):
            if side.info.run_id == self.reader.info.run_id:
                raise ConfigError(
                    f"{self.option}={str(self.reader.path)!r} is the run of {name} itself: expected a further run of A's model"
                )
        mine, theirs = ([m.path for m in reader.modules if m.n_params] for reader in (a, self.reader))
        lacking = sorted(set(mine) - set(theirs))
        if lacking:
            raise ConfigError(
                f"{self.option}={str(self.reader.path)!r} has no module {lacking[0] or 'at the root'!r}, and A has: expected "
                "a further run of A's model, with the same paths"
            )

    def side(self, step: int, matching: Matching) -> Side | None:
        """Return a step as the comparison reads A's; None where it was not recorded."""
        if step not in self._steps:
            self.missing_steps.append(step)
            return None
        views = {(self._index[m], slot): view for (m, slot), view in matching.views_a.items() if m in self._index}
        homes = homes_of(self.reader, {self._index.get(pair.a, -1) for pair in matching.pairs})
        found = Side(self.reader, step, views, homes=homes)
        if self._index == {index: index for index in range(len(self._index))}:
            join_parts(found, "A", matching)
        return found

    def rows(self, pairs: StepPairs, side: Side) -> dict[int, int]:
        """Return, by A's rows, the rows of the same tensors in a step."""
        theirs, found = Rows.of(side), {}
        for (micro, module, call), role, slots in pairs.rows_a.in_order():
            there = theirs.get((micro, self._index.get(module, -1), call), role)
            for slot, rows in slots.items():
                found.update(zip(rows, there.get(slot, ()), strict=False))
        return found

    def check_start(self, pairs: StepPairs, side: Side, rows: dict[int, int]) -> None:
        """Refuse a run in the wrong precision, that began with other weights or was given other inputs: its errors are no noise.

        Raises
        ------
        ConfigError
            naming the first of them
        """
        if self._was_checked:
            return
        self._was_checked = True
        self._check_precision(pairs, side, rows)
        for (_, module, _), role, slots in pairs.rows_a.in_order():
            for slot, found in slots.items():
                for row in found:
                    if row in rows and self._is_given(pairs, role, row):
                        self._check_given(pairs, side, row, rows[row], module, slot)

    def _check_precision(self, pairs: StepPairs, side: Side, rows: dict[int, int]) -> None:
        """Refuse a further run of other dtypes than A's, and a reference that is coarser than A or B anywhere.

        A coarser run differs from A by its own rounding: as a floor that hides faults. Equal dtypes are no reason to refuse a
        reference: a run without TF32, or with other kernels, is more precise with the same ones.
        """
        of_reference = self.option == REFERENCE
        for name, mine, there in [*_held_against(pairs, "A"), *(_held_against(pairs, "B") if of_reference else ())]:
            if there not in rows:
                continue
            half = pairs.half(name)
            dtypes = half.side.dtypes[mine], side.dtypes[rows[there]]
            roundoffs = [unit_roundoff(dtype) for dtype in dtypes]
            if {*map(kind_of, dtypes)} == {"float"} and (
                roundoffs[1] > roundoffs[0] if of_reference else dtypes[0] != dtypes[1]
            ):
                self._refuse_precision(half, mine, dtypes)

    def _refuse_precision(self, half: StepHalf, row: int, dtypes: tuple[str, str]) -> None:
        columns, path = half.side.columns, half.path(half.side.columns["module"][row])
        slot = half.side.slots[row].rpartition(":")[2]
        is_output = columns["role"][row] == Role.OUTPUT
        what = f"output {slot} of {path or 'the model'}" if is_output else f"{slot} of {path or 'the model'}"
        told = f"{self.option}={str(self.reader.path)!r}"
        if self.option == REFERENCE:
            raise ConfigError(
                f"{told} is less precise than {half.name}: {what} is {dtypes[0]} in {half.name}, and {dtypes[1]} there: expected a "
                "run of A's model in higher precision, nowhere below A's or B's; record it with weights and computation in "
                f"{dtypes[0]} or wider, without autocast"
            )
        is_finer = unit_roundoff(dtypes[1]) < unit_roundoff(dtypes[0])
        other = "; a run in higher precision is a reference=" if is_finer else ""
        raise ConfigError(
            f"{told} is a run in another precision: {what} is {dtypes[0]} in A, and {dtypes[1]} there: expected a further run of "
            f"A's model in A's own dtypes (other kernels, another device or batch split, probe.noise_run){other}"
        )

    @staticmethod
    def _is_given(pairs: StepPairs, role: Role, row: int) -> bool:
        columns = pairs.a.columns
        if role is Role.PARAM:  # later steps begin with what training has made of the weights
            return bool(columns["phase"][row] == Phase.INIT and pairs.step == 0)
        node = pairs.nodes.get((columns["micro"][row], columns["module"][row], columns["call"][row]))
        return role is Role.INPUT and node is not None and node.parent is None

    def _check_given(self, pairs: StepPairs, side: Side, row: int, other: int, module: int, slot: str) -> None:
        metrics = measured(pairs.a, row, side, other)
        u = max(unit_roundoff(pairs.a.dtypes[row]), unit_roundoff(side.dtypes[other]))
        cast = max((unit_roundoff(node.autocast) for node in pairs.nodes.values() if node.autocast), default=0.0)
        if metrics.status is Status.COMPARED and metrics.rel_l2 > max(_SAME_START * u, cast):
            kind = "begins with another" if slot.startswith(Phase.INIT.label) else "is given another"
            raise ConfigError(
                f"{self.option}={str(self.reader.path)!r} {kind} {slot.rpartition(':')[2]} of "
                f"{pairs.a.reader.modules[module].path or 'the root'} (rel {metrics.rel_l2:.1e}): expected a run of A's model "
                "with the same weights and inputs"
            )


def _held_against(pairs: StepPairs, name: str) -> Iterator[tuple[str, int, int]]:
    """Yield a side's parameters and what its calls return: the side, its row, and A's row of the same."""
    half, in_a = pairs.half(name), pairs.half("A")
    keys = [((0, mine, 0), (0, in_a.modules[pair], 0), Role.PARAM) for mine, pair in half.pair_of.items()]
    keys += [(half.key(node), in_a.key(node), Role.OUTPUT) for node in pairs.nodes.values()]
    found = [
        (name, rows[0], others[0])
        for mine, theirs, role in keys
        for rows, others in zip(half.rows.get(mine, role).values(), in_a.rows.get(theirs, role).values(), strict=False)
    ]
    yield from sorted(found, key=lambda each: each[2])


def measured(a: Side, row: int, b: Side, other: int) -> Metrics:
    """Compare two records of one model; several tensors in one by each of them where no values tell how far they are apart."""
    found = measure_pair(a, row, b, other, free_axes=False)
    if not found.is_lower_bound:
        return found
    mine, theirs = a.combined.get(row), b.combined.get(other)
    if not isinstance(mine, Fused) or not isinstance(theirs, Fused) or mine.fusion != theirs.fusion:
        return found
    pieces = [[(piece.row == LACKING, piece.shape) for row in each.pieces for piece in row] for each in (mine, theirs)]
    if pieces[0] != pieces[1]:
        return found
    return _together(found, [measured(a, i, b, j) for i, j in zip(mine.parts, theirs.parts, strict=True)])


def _together(bound: Metrics, parts: Sequence[Metrics]) -> Metrics:
    """Return what the errors of parts are of all of them; the bound where one is not known."""
    if not all(part.status in (Status.EQUAL, Status.COMPARED) and not part.is_lower_bound for part in parts):
        return bound
    norm_a, norm_b = (math.hypot(*lengths) for lengths in zip(*((p.norm_a, p.norm_b) for p in parts), strict=True))
    distance = math.hypot(*(part.rel_l2 * max(part.norm_a, part.norm_b) for part in parts))
    larger = max(norm_a, norm_b)
    if not distance or not math.isfinite(larger):
        return bound if distance else replace(bound, status=Status.EQUAL, rel_l2=0.0, is_lower_bound=False)
    inner = sum(part.cosine * part.norm_a * part.norm_b for part in parts if part.norm_a and part.norm_b)
    return replace(
        bound, rel_l2=distance / larger, is_lower_bound=False,
        cosine=clipped(inner / (norm_a * norm_b)) if norm_a and norm_b else 0.0,
        coherence=clipped((inner / norm_a - norm_a) / distance) if norm_a else 0.0,
    )  # fmt: skip
