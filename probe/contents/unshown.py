"""What a recording cannot show, whatever it is compared with: too short, too even, switched off. Facts, no words."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from probe.notes import Note, note
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_FEW_TOKENS = 8
_IGNORED = -100
"""what labels hold where no loss is taken"""
TOP = ("num_experts_per_tok", "moe_router_topk", "moe_topk", "n_activated_experts")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts")
_NAMED = ("mask", "position", "label", "target", "type", "cu_seq")
"""parts of names of inputs that are no data"""


class Given(NamedTuple):
    """A tensor that the model was given, or that was logged beside it; ``is_even``: its elements are one number."""

    slot: str
    shape: tuple[int, ...]
    number: float
    is_even: bool
    is_integer: bool
    is_input: bool
    values: np.ndarray | None

    def has(self, *words: str) -> bool:
        """Return True if its name contains one of some words."""
        return any(word in self.slot.casefold() for word in words)


@dataclass(frozen=True)
class Seen:
    """The first of some steps of a recording."""

    reader: Reader
    steps: Sequence[int]
    rows: np.ndarray
    calls: np.ndarray

    @cached_property
    def given(self) -> list[Given]:
        """What the models were given, and what was logged beside it."""
        roots = [index for index, module in enumerate(self.reader.modules) if module.parent < 0]
        rows = self.rows[np.isin(self.rows["role"], (Role.INPUT, Role.VALUE)) & np.isin(self.rows["module"], roots)]
        return [*map(self._given, rows)]

    def _given(self, row: Any) -> Given:
        shape, is_integer = self.reader.shapes[row["shape"]], row["dtype"].startswith((b"int", b"uint", b"bool"))
        is_read, values = is_integer and len(shape) == 2 and row["tensor"] >= 0, None
        with contextlib.suppress(OSError):  # a FormatError: what is damaged is as if it were not recorded
            values = self.reader.values(int(row["tensor"])) if is_read else None
        about = float(row["min"]), bool(row["min"] == row["max"]) and math.prod(shape) > 1, is_integer
        return Given(self.reader.slots[row["slot"]], shape, *about, row["role"] == Role.INPUT, values)

    @property
    def tokens(self) -> Given | None:
        """The ids: integers, [samples, positions]."""
        ids = (each for each in self.given if each.is_integer and len(each.shape) == 2 and not each.has(*_NAMED))
        return next(ids, None)

    def of(self, role: Role, phase: Phase) -> Iterator[tuple[Any, tuple[int, ...]]]:
        """Yield the records of a role in a phase, with their shapes."""
        rows = self.rows[(self.rows["role"] == role) & (self.rows["phase"] == phase)]
        return ((row, self.reader.shapes[row["shape"]]) for row in rows)

    def config(self, *names: str) -> float:
        """Return the first number that the model's configuration has under one of some names, 0 without."""
        held = self.reader.info.model_config
        return next((float(x) for x in map(held.get, names) if isinstance(x, (int, float)) and x), 0.0)


def without_label(seen: Seen) -> Iterator[Note]:
    """Labels that leave out all of a sample, or of a document in it."""
    positions = next((each.values for each in seen.given if each.has("position_id")), None)
    for labels in (each for each in seen.given if each.is_integer and each.has("label", "target")):
        values = labels.values
        if labels.is_even and labels.number == _IGNORED:
            yield note("no-label-at-all", slot=labels.slot)
        elif values is not None and values.ndim == 2:
            is_told = positions is not None and positions.shape == values.shape
            which = np.cumsum((positions if is_told else np.ones(values.shape)) == 0, axis=1)
            groups = [(row, int(each)) for row in range(len(which)) for each in np.unique(which[row])]
            left = [each for each in groups if (values[each[0]][which[each[0]] == each[1]] == _IGNORED).all()]
            if left:
                yield note("documents-without-label", left=tuple(left), are_documents=bool(which.any()))


def zero_weights(seen: Seen) -> Iterator[Note]:
    """Weights that begin as 0, such as LoRA's: what is fed to them does not show."""
    weights = [*seen.of(Role.PARAM, Phase.INIT)]
    zero = [row for row, shape in weights if len(shape) > 1 and not row["norm"] and not row["nan"]]
    if 0 < len(zero) < len(weights):
        names = (f"{seen.reader.modules[x['module']].path}.{seen.reader.slots[x['slot']]}".lstrip(".") for x in zero)
        yield note("zero-weights-unshown", names=tuple(names))


def even_inputs(seen: Seen) -> Iterator[Note]:
    """Inputs, or positions, of which all elements are one number; masks and labels have lines of their own."""
    for each in (each for each in seen.given if each.is_even and each.is_input):
        if each.has("position") or not each.has(*_NAMED):
            yield note("input-is-one-number", slot=each.slot, number=each.number, are_positions=each.has("position"))


def few_tokens(seen: Seen) -> Iterator[Note]:
    """Sequences that are too short for what depends on the position, or lie within the window of local attention."""
    length, window = 0 if seen.tokens is None else seen.tokens.shape[1], seen.config("sliding_window", "window_size")
    if 1 < length <= _FEW_TOKENS:
        yield note("few-tokens", count=length)
    elif 0 < length <= window and seen.reader.info.model_config.get("use_sliding_window", True):
        yield note("window-not-reached", length=length, window=int(window))


def idle_experts(seen: Seen) -> Iterator[Note]:
    """Experts without a token: modules of a list of which others ran, or rows of a gradient that are 0; or one for each token."""
    ran, lists, experts = set(seen.calls["module"].tolist()), defaultdict(set), seen.config(*EXPERTS)
    for index, module in enumerate(seen.reader.modules):
        if module.path.rpartition(".")[2].isdigit() and module.n_params and not module.is_operation:
            lists[module.parent].add(index)
    idle = [(len(each - ran), len(each)) for each in lists.values() if ran & each and each - ran]
    for row, shape in seen.of(Role.PARAM_GRAD, Phase.GRADIENT) if experts and not idle else ():
        size = math.prod(shape[1:])
        if len(shape) == 3 and shape[0] == experts and row["zeros"] and row["zeros"] % size == 0:
            idle.append((int(row["zeros"]) // size, shape[0]))
    if idle:
        yield note("experts-without-token", idle=sum(x for x, _ in idle), total=sum(n for _, n in idle))
    if experts > 1 and seen.config(*TOP) == 1:
        yield note("one-expert-for-each-token")


def one_sample(seen: Seen) -> Iterator[Note]:
    """A batch of one sample, or of samples that are all alike."""
    many = [each for each in seen.given if len(each.shape) > 1 and each.is_input]
    values = seen.tokens.values if seen.tokens is not None else None
    if many and all(each.shape[0] == 1 for each in many):
        yield note("one-sample")
    elif values is not None and len(values) > 1 and (values == values[:1]).all():
        yield note("samples-are-alike", count=len(values))


def idle_masks(seen: Seen) -> Iterator[Note]:
    """A mask that hides nothing: 1 everywhere, or 0 if it is added."""
    idle = [each for each in seen.given if each.has("mask") and each.is_even and bool(each.number) == each.is_integer]
    for each in idle[:1]:
        yield note("mask-hides-nothing", slot=each.slot)


def switched_off(seen: Seen) -> Iterator[Note]:
    """Dropout and batch norms that ran in evaluation mode alone."""
    rates = [each for name, each in seen.reader.info.model_config.items() if "drop" in name and isinstance(each, float)]
    kinds = ("Dropout", "BatchNorm") if any(rates) or not rates else ("BatchNorm",)
    trained = set(seen.calls["module"][seen.calls["training"] != 0].tolist())
    off = {seen.reader.modules[module].class_name for module in set(seen.calls["module"].tolist()) - trained}
    names = tuple(sorted(name for name in off if any(kind in name for kind in kinds)))
    if names:
        yield note("switched-off", classes=names)


def one_step(seen: Seen) -> Iterator[Note]:
    """A single step of training."""
    if len(seen.steps) == 1 and any(seen.of(Role.DELTA, Phase.UPDATE)):
        yield note("one-step")


CHECKS: dict[str, Callable[[Seen], Iterator[Note]]] = {
    "labels": without_label,
    "zero weights": zero_weights,
    "even inputs": even_inputs,
    "few tokens": few_tokens,
    "experts": idle_experts,
    "one sample": one_sample,
    "masks": idle_masks,
    "switched off": switched_off,
    "one step": one_step,
}
"""by name, the weightiest first"""


def cannot_show(reader: Reader, steps: Sequence[int] | None = None) -> tuple[Note, ...]:
    """Return what a recording cannot show, the weightiest first; of these steps, or of all."""
    steps = reader.steps["step"].tolist() if steps is None else steps
    if not steps:
        return ()
    seen = Seen(reader, steps, *(reader.of_step(table, steps[0]) for table in ("records", "calls")))
    return tuple(itertools.chain.from_iterable(check(seen) for check in CHECKS.values()))
