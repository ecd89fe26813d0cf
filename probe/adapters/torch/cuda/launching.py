"""Rows of numbers that a device computes, one for each tensor, and their way to the CPU: one transfer a step."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import torch

from probe.adapters.torch.cuda.plans import Plan
from probe.adapters.torch.device import statistics_of
from probe.numbers.sketch import WIDTH
from probe.records import HashKind, TensorStats

ROW = 80
"""numbers of a row: 8 sums and counts, 64 lanes, 4 halves of hashes, the first of its partial sums and how many there are"""
_SUMS, _HASH = 8, 72
_ROWS = 4096
"""tensors that are fetched together, at most"""
_PARTIALS = 1 << 14
"""rows of partial sums, 10 MiB, before they are added up"""
_GROUPS = 8
"""groups of lanes that a program takes at a time"""
_ROUNDS = 16
"""that a program goes round at least, where there is so much"""
_WARPS = 4
_PROGRAMS = 8
"""for each of a device's processors"""
_FOLDED = 16
"""partial sums that are added at a time"""
_PLANS = 4096


class Row(NamedTuple):
    """Statistics that a device is still computing."""

    rows: Rows
    index: int
    plan: Plan
    count: int
    """elements of the tensor"""
    hash_kind: HashKind
    is_update: bool


class Rows:
    """The rows of tensors that were measured on one stream; new ones are begun when these are fetched or full.

    All that they need is allocated and used on their stream, so the caching allocator gives none of it to anybody else too early.
    """

    def __init__(self, device: torch.device, stream: Stream) -> None:
        self.stream = stream
        self.numbers = torch.empty(_ROWS, ROW, dtype=torch.float64, device=device)
        self.words = self.numbers.view(torch.int64)
        self.count = self.folded = self.partials = 0
        self._fetched: np.ndarray | None = None
        self._arriving: tuple[torch.Tensor, Any] | None = None

    def begin_fetch(self) -> None:
        """Copy the rows into memory that the device can write to by itself; their stream must be the current one."""
        host = torch.empty(self.count, ROW, dtype=torch.float64, device="cpu", pin_memory=self.numbers.is_cuda)
        host.copy_(self.numbers[: self.count], non_blocking=True)
        arrived = torch.cuda.Event() if self.numbers.is_cuda else None
        if arrived is not None:
            arrived.record()
        self._arriving = host, arrived

    @property
    def is_fetched(self) -> bool:
        """Whether the rows were asked for."""
        return self._fetched is not None or self._arriving is not None

    def row(self, index: int) -> np.ndarray:
        """Return a row; waits until they have come."""
        if self._arriving is not None:
            host, arrived = self._arriving
            if arrived is not None:
                arrived.synchronize()
            self._fetched, self._arriving = host.numpy().copy(), None
            self.numbers = self.words = torch.empty(0, device="cpu")
        assert self._fetched is not None
        return self._fetched[index]


class Stream:
    """What is kept of one stream of one device: the rows under way, partial sums, plans."""

    def __init__(self, device: torch.device, stream: Any) -> None:
        self.stream = stream
        self._device = device
        self._kernel = importlib.import_module("probe.adapters.torch.cuda.kernel")
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count if stream is not None else 2
        self._partials = torch.empty(_PARTIALS, ROW, dtype=torch.float64, device=device)
        self._partial_words = self._partials.view(torch.int64)
        self._plans: dict[int, tuple[Plan, torch.Tensor]] = {}
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self.rows: Rows | None = None

    def measure(self, tensor: torch.Tensor, subtracted: torch.Tensor | None, plan: Plan, kind: HashKind) -> Row:
        """Begin to measure a tensor (or what is left of it without another one)."""
        rows = self.rows
        if rows is None or rows.is_fetched or rows.count == _ROWS:
            if rows is not None:
                self.fetch(rows)
            rows = self.rows = Rows(self._device, self)
        programs, rounds = _share(plan.groups, self._processors)
        if rows.partials + programs > _PARTIALS:
            self.fold(rows)
        arguments = (
            tensor, tensor if subtracted is None else subtracted, self._partials, self._partial_words, rows.words, self._on_device(plan),
            rows.count, rows.partials, plan.groups, rounds,
        )  # fmt: skip
        variant = (
            plan.axes, tensor.element_size(), tensor.is_floating_point(), subtracted is not None,
            kind is not HashKind.NONE, _GROUPS,
        )  # fmt: skip
        self._launch(self._kernel.measure, (programs, 1, 1), arguments, variant, (tensor.dtype, *variant))
        rows.count += 1
        rows.partials += programs
        return Row(rows, rows.count - 1, plan, tensor.numel(), kind, subtracted is not None)

    def fold(self, rows: Rows) -> None:
        """Add up the partial sums of the rows that have none of their own yet."""
        fresh = rows.count - rows.folded
        if fresh:
            arguments = self._partials, self._partial_words, rows.numbers, rows.words, rows.folded
            self._launch(self._kernel.fold, (fresh, 1, 1), arguments, (_FOLDED,), ("fold",))
        rows.folded, rows.partials = rows.count, 0

    def fetch(self, rows: Rows) -> None:
        """Begin to fetch rows of this stream, if that was not done."""
        if not rows.is_fetched:
            with torch.cuda.stream(self.stream):
                self.fold(rows)
                rows.begin_fetch()

    def _launch(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        arguments: tuple[Any, ...],
        variant: tuple[Any, ...],
        key: tuple[Any, ...],
    ) -> None:
        """Launch a kernel, past the part of Triton that finds the compiled one, which takes most of the time of a launch."""
        compiled = self._compiled.get(key)
        if compiled is not None:
            try:
                compiled[grid](*arguments, *variant)
                return
            except TypeError:  # an older triton, whose compiled kernels do not take the constants
                self._compiled[key] = None
        compiled = kernel[grid](*arguments, *variant, num_warps=_WARPS, enable_fp_fusion=True)
        if key not in self._compiled:
            self._compiled[key] = (
                compiled if hasattr(type(compiled), "__getitem__") else None
            )  # what is interpreted is None

    def _on_device(self, plan: Plan) -> torch.Tensor:
        """Return a plan's words where the kernel reads them, brought there without waiting."""
        known = self._plans.get(id(plan))
        if known is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            words = torch.from_numpy(plan.words)
            if self._partials.is_cuda:
                words = words.pin_memory().to(self._device, non_blocking=True)
            known = self._plans[id(plan)] = plan, words
        return known[1]


def _share(groups: int, processors: int) -> tuple[int, int]:
    """Return how many programs go over so many groups, and how often each goes round."""
    turns = -(-groups // _GROUPS)
    programs = max(1, min(-(-turns // _ROUNDS), _PROGRAMS * processors))
    rounds = -(-turns // programs)
    return max(1, -(-turns // max(rounds, 1))), rounds


def finished(pending: Row) -> TensorStats:
    """Return the statistics that a row holds; waits until it has come."""
    row = pending.rows.row(pending.index)
    sketched, words, kind = np.zeros(WIDTH), (0, 0, 0, 0), pending.hash_kind
    if kind is not HashKind.NONE:
        sketched[pending.plan.bucket] = row[_SUMS : _SUMS + WIDTH]
        words = tuple(row[_HASH : _HASH + 4].view(np.uint64).tolist())
    return statistics_of(row[:_SUMS].tolist(), sketched, words, pending.count, kind, pending.is_update)
