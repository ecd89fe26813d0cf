"""A tensor becomes a record: measured, copied where values are wanted, and handed to the writer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from probe.adapters.base import TensorFacts
from probe.adapters.shared.user_objects import Identity
from probe.config import Batch
from probe.errors import RecordingError
from probe.numbers.packed import HASH_KIND, NONE, NONFINITE, pack, unpack
from probe.numbers.sketch import WIDTH
from probe.numbers.slots import DEPTH, holds_tensor, is_container
from probe.numbers.statistics import dtype_of, is_integer
from probe.recorder.calls import Call
from probe.recorder.contents import joined
from probe.recorder.run import Run, guarded
from probe.recorder.triggers import Triggers
from probe.records import HashKind, Phase, Role, Task, TensorStats
from probe.store.schema import RECORDS
from probe.store.writing.creation import room_of

_RECORD_BYTES = RECORDS.itemsize
_SKETCHED_BYTES = _RECORD_BYTES + 8 * WIDTH
_NO_NUMBERS = frozenset(["complex32"])
"""dtypes of PyTorch that nothing else has"""
_WAITING = 8192
"""records that wait for a device, at most, before it is waited for"""
_WAITING_BYTES = 256 << 20
"""of values that are on their way from a device, at most"""
_UNMEASURED = pack(TensorStats(*[math.nan] * 5, 0, 0, 0, 0, 0, 0, HashKind.NONE, np.zeros(WIDTH)))


_LASTING = {Role.PARAM, Role.BUFFER, Role.PARAM_GRAD, Role.STATE}
"""of what a program holds on to"""


class _Arriving(NamedTuple):
    """Values of a tensor whose copy has begun."""

    wait: Callable[[], np.ndarray]
    dtype: str
    shape: tuple[int, ...]


_NEW = {Role.PARAM: (Phase.FORWARD,), Role.PARAM_GRAD: (Phase.GRADIENT,)}
"""when a parameter or its gradient is likely not what it was"""


class Tokens:
    """Cuts tensors to a range of tokens, along the only axis that is as long as the model's ids.

    ``note`` says once what is recorded otherwise.
    """

    def __init__(self, run: Run, note: Callable[..., None]) -> None:
        self._run, self._note = run, note
        self.counts: dict[int, int] = {}
        """of a step's passes: how many tokens the models were given"""

    def count(self, micro: int, tensors: Sequence[tuple[str, Any]]) -> None:
        """Take note of how many tokens a model is given: as many as its first integers have along their last axis."""
        facts = [self._run.adapter.facts(tensor) for _, tensor in tensors]
        self.counts[micro] = next((each.shape[-1] for each in facts if each.shape and is_integer(each.dtype)), 0)

    def of(
        self, tensor: Any, facts: TensorFacts, micro: int, wanted: slice, *place: Any
    ) -> tuple[Any, TensorFacts] | None:
        """Return what was chosen of a tensor: all of it if not one axis is that of tokens, None if none of them is in it."""
        count, shape = self.counts.get(micro, 0), facts.shape
        axes = shape if len(shape) < 2 or is_integer(facts.dtype) else shape[:-1]  # the last of floats is of features
        if not count:
            self._note("a model was given no integers, so tensors with all tokens are recorded", *place)
        if not count or axes.count(count) != 1:
            return tensor, facts
        axis, length = axes.index(count), len(range(count)[wanted])
        if not length:
            return self._note(f"forwards of fewer than {wanted.start + 1} tokens are not recorded", *place)
        with self._run.adapter.quiet():
            part = tensor[(slice(None),) * axis + (wanted,)]
        return part, facts._replace(shape=(*shape[:axis], length, *shape[axis + 1 :]))


class Measuring:
    """What the other parts hand tensors to."""

    def __init__(self, run: Run, triggers: Triggers) -> None:
        self.run = run
        self._triggers = triggers
        self._reuses = True
        self._is_structure = run.config.task is Task.STRUCTURE
        self._seen: dict[int, tuple[Identity, int, bytes]] = {}
        self._last: dict[int, bytes] = {}
        """of parameters and buffers, by index, and of gradients, by its complement: what they were when they were recorded last"""
        self._waiting: list[tuple[tuple[Any, ...], Any, int | _Arriving]] = []
        self._arriving: dict[int, tuple[Any, _Arriving]] = {}
        """values on their way, by the id of the statistics that are computed with them"""
        self._arriving_bytes = 0
        self.tokens = Tokens(run, self._note_first)
        self._missed: set[str] = set()
        self._opaque: set[type] = set()

    def begin_step(self) -> None:
        """Begin a step."""
        self._reuses = self.run.adapter.writes_are_seen()
        self.tokens.counts = {}
        self.forget()

    def forget(self) -> None:
        """Take no tensor for one that was measured before."""
        self._seen.clear()

    def observe(
        self, phase: Phase, role: Role, slot: str, tensor: Any, call: Call, order: int | None = None, *,
        always: bool = False,
    ) -> None:  # fmt: skip
        """Record a tensor of a call, or ``always``, whatever its module: what the user logged, a batch."""
        if always or self.run.kept_calls[call.module]:
            self._record(phase, role, call.module, call.number, slot, tensor, call.micro, order, ())

    def observe_parameter(
        self, phase: Phase, role: Role, index: int, tensor: Any, micro: int = 0, slot: str | None = None
    ) -> None:
        """Record a parameter, its gradient or its optimizer state; the bytes are always read."""
        run, info = self.run, self.run.parameters[index]
        if index in run.gone or (not run.keep[info.module] and not run.norms):
            return
        if not run.adapter.is_tensor(tensor) and run.config.task is not Task.STRUCTURE:
            self.note_missed(role, info.module, [(slot or info.slot, tensor)])
            return
        self._record(phase, role, info.module, 0, slot or info.slot, tensor, micro, index, info.axes, index)

    def observe_axis_sums(self, index: int, tensor: Any) -> None:
        """Record the sums along the axes of a parameter, by which it is seen in which order parts lie in it: where values are not."""
        run, info = self.run, self.run.parameters[index]
        has_statistics = run.config.task in (Task.STATISTICS, Task.TENSOR) and not run.in_full[info.module]
        is_wanted = has_statistics and run.keep[info.module] and run.wants[Phase.INIT]
        if not is_wanted or index in run.gone or not run.adapter.is_tensor(tensor):
            return
        try:
            with run.lock:
                sums = run.adapter.axis_sums(tensor, info.axes)
                if sums:
                    run.writer.add_axis_sums(run.step, index, sums)
                    run.nbytes += sum(each.nbytes for each in sums)
        except Exception as error:  # noqa: BLE001  the others must not be lost
            run.note(f"the sums along the axes of {info.names[0]} are not recorded: {error!r}", info.module)

    def observe_update(self, index: int, after: Any, before: Any) -> None:
        """Record an update itself: its statistics, never its values."""
        run, info = self.run, self.run.parameters[index]
        try:
            with run.lock:
                dtype, stats, of_after = run.adapter.measure_update(after, before, info.axes)
                if of_after is not None:
                    self._last[index] = of_after
                slot, shape = run.writer.slot(info.slot), run.writer.shape(run.adapter.facts(after).shape)
                head = (run.step, 0, run.next_seq(), index, Phase.UPDATE, info.module, 0, Role.DELTA, slot,
                        dtype.encode(), shape, False)  # fmt: skip
                self._append(head, stats, -1)
        except RecordingError as error:
            self._note_first(str(error), Role.DELTA, info.slot, info.module)
        except Exception as error:  # noqa: BLE001  the others must not be lost
            run.note(f"the update of {info.names[0]} is not recorded: {error!r}", info.module)

    def note_missed(self, role: Role, index: int, missed: list[tuple[str, object]]) -> None:
        """Say of what was given or returned that it holds tensors which are not recorded; once for each kind."""
        adapter = self.run.adapter
        for slot, value in missed:
            what = adapter.unreadable(value)
            if not what and is_container(value):
                what = f"tensors more than {DEPTH} containers deep"
            elif not what and (type(value) in self._opaque or holds_tensor(value, adapter.is_tensor)):
                self._opaque.add(type(value))
                what = f"tensors in objects of class {type(value).__qualname__}"
            if what:
                self._note_first(f"{what} are not recorded", role, slot, index)

    def _note_first(self, what: str, role: Role, slot: str, index: int) -> None:
        if what not in self._missed:
            self._missed.add(what)
            self.run.note(f"{what}; the first is {role.label} {slot} of {self.run.name_of(index)}", index)

    @guarded
    def settle(self) -> None:
        """Append the records whose statistics a device was still computing, and those that came behind them."""
        waiting, self._waiting = self._waiting, []
        self._arriving, self._arriving_bytes = {}, 0
        pending = [stats for _, stats, _ in waiting if type(stats) is not bytes]
        settled = iter(self.run.adapter.settle(pending))
        for text in self.run.adapter.remarks() if pending else ():
            self.run.note(text, -1)
        for head, known, values in waiting:
            stats = known if type(known) is bytes else next(settled)
            if isinstance(values, _Arriving):
                copy = functools.partial(self._counted, values.wait)
                values = self.run.writer.tensor(stats, values.dtype, values.shape, copy)
            self._add(head, stats, values)

    def _record(
        self, phase: Phase, role: Role, module: int, call: int, slot: str, tensor: Any, micro: int,
        order: int | None, axes: tuple[int, ...], index: int = -1,
    ) -> None:  # fmt: skip
        """Measure a tensor and append its record; of a parameter, its gradient or state, with its index, the bytes are always read.

        It runs some 2,000 times a step, in hooks that hold the lock: what is asked twice costs.
        """
        run = self.run
        if not run.wants[phase]:
            return
        try:
            adapter, writer = run.adapter, run.writer
            facts = dtype, shape, requires_grad = adapter.facts(tensor)
            if index < 0 and role is not Role.VALUE and run.config.tokens is not None:
                part = self.tokens.of(tensor, facts, micro, run.config.tokens, role, slot, module)
                if part is None:
                    return
                tensor, facts = part
                shape = facts.shape
            if dtype in _NO_NUMBERS:
                raise RecordingError(f"tensors of {dtype} are not recorded: neither numpy nor ml_dtypes has it")
            # where there is no room for them, not even measured
            slot_number, shape_number = writer.slot(slot), writer.shape(shape)
            if axes and len(axes) != len(shape):
                axes = ()  # a count of steps has none of its parameter's
            stats, values = self._measured(tensor, axes, phase, role, index), -1
            if run.in_full[module] or (role is Role.INPUT and self._is_of_ids(module, facts)):
                if stats[HASH_KIND] if type(stats) is bytes else stats.hash_kind:
                    stats, values = self._values_of(tensor, stats, facts)
            seq = run.seq
            run.seq = seq + 1
            head = (run.step, micro, seq, seq if order is None else order, phase, module, call, role, slot_number,
                    dtype.encode(), shape_number, requires_grad)  # fmt: skip
            self._append(head, stats, values)
        except RecordingError as error:
            self._note_first(str(error), role, slot, module)
        except Exception as error:  # noqa: BLE001  one tensor that cannot be read must not lose the others
            what = f"{phase.label} {role.label} {slot} of {run.name_of(module)}"
            run.note(f"{what} could not be recorded: {error!r}", module)

    def _is_of_ids(self, module: int, facts: TensorFacts) -> bool:
        """Return True if the values of an input are wanted because they are a batch's."""
        run = self.run
        return run.config.batch is Batch.IDS and module in run.roots and is_integer(facts.dtype)

    def _measured(self, tensor: Any, axes: tuple[int, ...], phase: Phase, role: Role, index: int) -> Any:
        """Return a tensor's statistics; those of the same object, unwritten since, are not computed again."""
        run = self.run
        if self._is_structure:
            return _UNMEASURED
        if run.norms and role is not Role.INPUT:  # of inputs there are those of a batch alone
            return run.adapter.summarize(tensor)
        if index >= 0:
            return self._measured_again(tensor, axes, phase, role, index)
        version = run.adapter.version_of(tensor) if self._reuses else None
        if version is None:
            return run.adapter.measure(tensor, axes)
        known = self._seen.get(id(tensor))
        if known is not None and known[0].is_of(tensor) and known[1] == version:
            return known[2]
        stats = run.adapter.measure(tensor, axes)
        self._seen[id(tensor)] = (run.adapter.identity(tensor, role in _LASTING), version, stats)
        return stats

    def _values_of(self, tensor: Any, stats: Any, facts: TensorFacts) -> tuple[Any, int | _Arriving]:
        """Hand over the values of a tensor, or let them follow its statistics; return these, and what the values are known by."""
        adapter = self.run.adapter
        if type(stats) is not bytes:
            known = self._arriving.get(id(stats))
            wait = adapter.begin_values(tensor) if known is None else None
            if wait is not None:
                known = self._arriving[id(stats)] = stats, _Arriving(wait, facts.dtype, facts.shape)
                self._arriving_bytes += math.prod(facts.shape) * dtype_of(facts.dtype).itemsize
            if known is not None:
                return known
            (stats,) = adapter.settle([stats])
        copy = functools.partial(self._counted, functools.partial(self._copied, tensor))
        return stats, self.run.writer.tensor(stats, facts.dtype, facts.shape, copy)

    def _measured_again(self, tensor: Any, axes: tuple[int, ...], phase: Phase, role: Role, index: int) -> Any:
        """Return the statistics of a parameter, its gradient or its state; what is likely to be as it was is hashed first."""
        if role is Role.STATE:
            return self.run.adapter.measure(tensor, axes)
        key = ~index if role is Role.PARAM_GRAD else index
        # gradients are others in each pass, and parameters are read in a forward because they were written to
        is_new = phase in _NEW.get(role, ())
        stats = self.run.adapter.measure(tensor, axes, None if is_new else self._last.get(key))
        if type(stats) is bytes:
            self._last[key] = stats
        return stats

    def _copied(self, tensor: Any) -> np.ndarray:
        with self.run.adapter.quiet():
            return self.run.adapter.values(tensor)

    def _counted(self, copied: Callable[[], np.ndarray]) -> np.ndarray:
        """Return a copy, whose room in the file is counted."""
        array = copied()
        self.run.nbytes += room_of(array.nbytes)
        return array

    def _append(self, head: tuple[Any, ...], stats: Any, values: int | _Arriving) -> None:
        """Hand a record over, or keep it until a device has computed what it, or one before it, waits for."""
        if self._waiting or type(stats) is not bytes:
            self._waiting.append((head, stats, values))
            if len(self._waiting) >= _WAITING or self._arriving_bytes >= _WAITING_BYTES:
                self.settle()
        else:
            assert not isinstance(values, _Arriving)
            self._add(head, stats, values)

    def _add(self, head: tuple[Any, ...], stats: bytes, values: int) -> None:
        run = self.run
        is_sketched = stats[HASH_KIND] > 0 and not run.norms  # sketches are large, and a batch needs none
        run.writer.add_record(head, stats, values, is_sketched)
        run.nbytes += _SKETCHED_BYTES if is_sketched else _RECORD_BYTES
        if self._triggers.look_at_values and stats[NONFINITE] != NONE:
            phase, module, _, role, slot = head[4:9]
            self._saw_nonfinite(phase, module, role, run.writer.slot_name(slot), stats)

    def _saw_nonfinite(self, phase: Phase, module: int, role: Role, slot: str, stats: bytes) -> None:
        """Tell the triggers; infinite outputs are not uncommon (masks), infinite gradients are."""
        if role is Role.OUTPUT and unpack(stats).nan:
            self._triggers.saw_nonfinite(f"output {slot} of {self.run.name_of(module)} has NaN")
        elif role is Role.PARAM_GRAD and phase is Phase.UPDATE:
            name = joined(self.run.modules[module].path, slot)
            self._triggers.saw_nonfinite(f"the gradient of {name}, as the optimizer used it, has NaN or Inf")
