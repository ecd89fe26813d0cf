"""Further recordings of A's model: legitimate runs, or one in higher precision, paired with B in the place of A."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter

from probe.errors import ConfigError
from probe.matching import Matching
from probe.numbers.statistics import unit_roundoff
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.distance.error import Error
from probe.verdict.distance.measure import measure
from probe.verdict.side import Call, Side
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

REFERENCE = "reference"
_key: Callable[[Call], tuple[int, str, int]] = attrgetter("micro", "path", "number")


class OtherRun:
    """One further recording, of what the user calls it: ``noise`` or ``reference``."""

    def __init__(self, path: str | os.PathLike[str], option: str, a: Reader, b: Reader) -> None:
        self.option = option
        self.reader = open_reader(path)
        self.name, self.told = self.reader.path.name, f"{option}={str(self.reader.path)!r}"
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
                raise ConfigError(f"{self.told} is the run of {name} itself: expected a further run of A's model")
        mine, theirs = ({m.path for m in reader.modules if m.n_params} for reader in (a, self.reader))
        if lacking := sorted(mine - theirs):
            raise ConfigError(
                f"{self.told} has no module {lacking[0] or 'at the root'!r}, and A has: expected a further run of A's "
                "model, with the same paths"
            )

    def at(self, step: Step) -> RunStep | None:
        """Return a step; None if it was not recorded.

        Raises
        ------
        ConfigError
            the run has another precision, or began with other weights or inputs: its errors are no noise
        """
        number = step.a.step
        if number not in self._steps:
            self.missing_steps.append(number)
            return None
        matching = _moved(step.matching, self._index)
        side, index = Side(self.reader, number, matching.views_a), self._index
        passes = [{call.micro for call in each.calls} for each in (side, step.b, step.a)]
        is_split_as_b = passes[0] == passes[1] != passes[2]  # then A has in one pass what the run has in several
        own = (replace(each, a=index[each.a], b=each.a) for each in step.matching.pairs if each.a in index)
        matching = replace(matching, pairs=tuple(own), views_b=step.matching.views_a) if is_split_as_b else matching
        found = RunStep(Step(side, step.a if is_split_as_b else step.b, matching), step)
        if not self._was_checked:
            self._was_checked = True
            self._check_precision(step, found)
            self._check_start(step, found)
        return found

    def _check_precision(self, step: Step, run: RunStep) -> None:
        """Refuse a further run of other dtypes than A's, and a reference that is coarser than A or B anywhere."""
        returned = sorted((out for node in step.nodes for out in node.outputs), key=lambda each: each.at)
        for event in (*step.parameters.events(Phase.INIT, Role.PARAM), *returned):
            if (there := run.tensor(event)) is None or there.kind != "float":
                continue
            if self.option != REFERENCE:
                if event.a is not None and event.a.kind == "float" and event.a.dtype != there.dtype:
                    self._refuse_precision("A", event, event.a.dtype, there.dtype)
                continue
            for side, tensor in (("A", event.a), ("B", event.b)):
                if tensor is not None and tensor.kind == "float" and there.u > tensor.u:
                    self._refuse_precision(side, event, tensor.dtype, there.dtype)

    def _refuse_precision(self, side: str, event: Event, dtype: str, there: str) -> None:
        path = event.node.a.path if event.node is not None else self._path(event)
        slot = event.slot_a if side == "A" else event.slot_b
        what = f"{'output ' if event.role is Role.OUTPUT else ''}{slot} of {path or 'the model'}"
        if self.option == REFERENCE:
            raise ConfigError(
                f"{self.told} is less precise than {side}: {what} is {dtype} in {side}, and {there} there: expected a "
                "run of A's model in higher precision, nowhere below A's or B's; record it with weights and "
                f"computation in {dtype} or wider, without autocast"
            )
        is_finer = unit_roundoff(there) < unit_roundoff(dtype)
        other = "; a run in higher precision is a reference=" if is_finer else ""
        raise ConfigError(
            f"{self.told} is a run in another precision: {what} is {dtype} in A, and {there} there: expected a further "
            f"run of A's model in A's own dtypes (other kernels, another device or batch split, probe.noise_run){other}"
        )

    def _check_start(self, step: Step, run: RunStep) -> None:
        """Refuse a run that began with other weights or was given other inputs; `probe.noise_run` moves by a unit."""
        cast = max((unit_roundoff(call.autocast) for call in step.a.calls if call.autocast), default=0.0)
        for path, slot, is_weight, mine, there in _given(step, run):
            found = measure(mine, there)
            limit = max(64 * max(mine.u, there.u), cast)
            if found is not None and limit < found.size < math.inf:
                kind = "begins with another" if is_weight else "is given another"
                raise ConfigError(
                    f"{self.told} {kind} {slot} of {path or 'the root'} (rel {found.size:.1e}): expected a run of "
                    "A's model with the same weights and inputs"
                )

    def _path(self, event: Event) -> str:
        assert event.place is not None
        here = {there: here for here, there in self._index.items()}
        return self.reader.modules[self._index.get(event.place[0], here.get(event.place[0], 0))].path


class RunStep:
    """A step of a further run, paired with B's as A's is."""

    def __init__(self, paired: Step, step: Step) -> None:
        self.paired, self.step = paired, step
        self._nodes = {_key(call): node for call, node in paired.of_a.items()}
        self._parameters: dict[tuple[Phase, Role], dict[tuple[str, str], Tensor]] = {}

    def tensor(self, event: Event) -> Tensor | None:
        """Return the tensor that A has in an event, as the further run has it."""
        if event.node is not None:
            node = self._nodes.get(_key(event.node.a))
            return None if node is None else self.paired.tensors(node, "A", event.role).get(event.slot_a)
        assert event.place is not None
        key = event.phase, event.role
        if key not in self._parameters:
            events = self.paired.parameters.events(*key)
            found = ((each.place, each.slot_a, each.a) for each in events if each.place is not None)
            self._parameters[key] = {(self.paired.path(place[0]), slot): a for place, slot, a in found if a is not None}
        return self._parameters[key].get((self.step.path(event.place[0]), event.slot_a))


def error_of(a: Tensor, b: Tensor) -> Error | None:
    """Return the error between two runs of one model; several tensors in one are compared one by one if values lack."""
    found = measure(a, b)
    if found is None or not found.is_bound or not a.parts or a.fusion != b.fusion:
        return found
    pairs = [(x, y) for here, there in zip(a.parts, b.parts, strict=False) for x, y in zip(here, there, strict=False)]
    errors = [error_of(x, y) if x.shape == y.shape else None for x, y in pairs]
    if any(each is None or each.is_bound or math.isinf(each.size) for each in errors):
        return found
    known = [each for each in errors if each is not None]
    apart, larger = math.hypot(*(each.apart for each in known)), max(found.norm_a, found.norm_b)
    along = sum(each.along * each.apart * each.norm_a for each in known)
    length = apart * found.norm_a
    return replace(found, size=apart / larger if larger else 0, along=along / length if length else 0, is_bound=False)


def _given(step: Step, run: RunStep) -> Iterator[tuple[str, str, bool, Tensor, Tensor]]:
    """Yield the weights and inputs that both begin with: path, slot, whether it is a weight, and the two tensors."""
    sides = step.a, run.paired.a
    if step.a.step == 0:  # later steps begin with what training has made of the weights
        mine, theirs = (
            {(side.reader.modules[module].path, name): each for (module, name), each in found.items()}
            for side, found in ((side, side.params.get((Phase.INIT, Role.PARAM), {})) for side in sides)
        )
        for (path, name), tensor in mine.items():
            if (path, name) in theirs:
                yield path, name, True, tensor, theirs[path, name]
    roots = [{_key(call): call.of(Role.INPUT) for call in side.calls if call.caller is None} for side in sides]
    for key, slots in roots[0].items():
        for slot in (each for each in slots if each in roots[1].get(key, {})):
            yield key[1], slot, False, slots[slot], roots[1][key][slot]


def _moved(matching: Matching, index: Mapping[int, int]) -> Matching:
    """Return which module of B each of a run of A's model is, by the numbers that the run gives its modules."""
    if all(here == there for here, there in index.items()):
        return matching
    pairs = tuple(replace(each, a=index[each.a]) for each in matching.pairs if each.a in index)
    views = {(index[m], slot): view for (m, slot), view in matching.views_a.items() if m in index}
    return replace(matching, pairs=pairs, views_a=views, bundles=(), weight_bundles=(), ignored_a=frozenset())
