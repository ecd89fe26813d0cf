"""What a recording cannot show, whatever it is compared with: too short, too even, switched off. Facts, no words."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from probe.notes import Note, note
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

MOST = 3
"""lines under an answer, the weightiest; all have the same cause, which is the data"""
_FEW_TOKENS = 8
_IGNORED = -100
"""what labels hold where no loss is taken"""
_INTEGERS = ("int", "uint", "bool")
_TOP = ("num_experts_per_tok", "num_experts_per_token", "moe_router_topk", "moe_topk", "n_activated_experts")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "num_moe_experts")
_WINDOWS = ("sliding_window", "window_size", "attention_window")
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "final_logit_softcap")
_NEEDS_LENGTH = ("dynamic", "longrope")
"""scalings of rotary angles that do nothing up to the length that the model was trained with"""


@dataclass(frozen=True)
class Given:
    """A tensor that the model was given, or that was logged beside it."""

    slot: str
    row: Any
    shape: tuple[int, ...]
    values: Callable[[], np.ndarray | None]

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers: ids, positions, masks."""
        return self.row["dtype"].decode().startswith(_INTEGERS)

    @property
    def is_one_number(self) -> bool:
        """Whether all its elements, of which there are several, are equal."""
        return math.prod(self.shape) > 1 and bool(self.row["min"] == self.row["max"])

    def has(self, *words: str) -> bool:
        """Return True if its name contains one of some words."""
        return any(word in self.slot.casefold() for word in words)


@dataclass(frozen=True)
class Seen:
    """One step of a recording, and how many steps there are."""

    reader: Reader
    steps: Sequence[int]

    @cached_property
    def rows(self) -> np.ndarray:
        """What was recorded of the first of the steps."""
        return self.reader.of_step("records", self.steps[0])

    @cached_property
    def calls(self) -> np.ndarray:
        """The calls of that step."""
        return self.reader.of_step("calls", self.steps[0])

    @cached_property
    def given(self) -> list[Given]:
        """What the models were given in it, and integers that were logged beside it."""
        roots = [index for index, module in enumerate(self.reader.modules) if module.parent < 0]
        rows = self.of(Role.INPUT, Role.VALUE)
        return [*map(self._given, rows[np.isin(rows["module"], roots)])]

    def _given(self, row: Any) -> Given:
        at = int(row["tensor"])
        slot, shape = self.reader.slots[row["slot"]], self.reader.shapes[row["shape"]]
        return Given(slot, row, shape, lambda: self.reader.values(at) if at >= 0 else None)

    def of(self, *roles: Role, phase: Phase | None = None) -> np.ndarray:
        """Return the records of roles, in a phase or in all."""
        rows = self.rows
        chosen = np.isin(rows["role"], roles)
        return rows[chosen if phase is None else chosen & (rows["phase"] == phase)]

    @cached_property
    def tokens(self) -> Given | None:
        """The ids: integers, [samples, positions], that are neither a mask, nor positions, nor labels."""
        found = (each for each in self.given if each.is_integer and len(each.shape) == 2)
        return next((each for each in found if not each.has("mask", "position", "label", "target", "type")), None)

    def config(self, *names: str) -> float | None:
        """Return the first number that the model's configuration has under one of some names."""
        held = self.reader.info.model_config
        found = (held.get(name) for name in names)
        return next((float(each) for each in found if isinstance(each, (int, float)) and each), None)

    def name(self, row: Any) -> str:
        """Return the name of what a record is of."""
        return f"{self.reader.modules[row['module']].path}.{self.reader.slots[row['slot']]}".lstrip(".")

    def classes(self, modules: Iterable[int], pattern: str) -> list[str]:
        """Return the classes of modules that a pattern fits, each once."""
        names = (self.reader.modules[int(module)].class_name for module in modules)
        return sorted({name for name in names if re.search(pattern, name)})


Check = Callable[[Seen], Iterator[Note]]


def zero_weights(seen: Seen) -> Iterator[Note]:
    """Weights that begin as 0, such as LoRA's: what is fed to them does not show."""
    rows = seen.of(Role.PARAM, phase=Phase.INIT)
    zero = [row for row in rows if not row["norm"] and len(seen.reader.shapes[row["shape"]]) > 1 and not row["nan"]]
    if zero and len(zero) < len(rows):
        yield note("zero-weights-unshown", names=tuple(map(seen.name, zero)))


def without_label(seen: Seen) -> Iterator[Note]:
    """Labels that leave out all of a sample, or of a document in it."""
    for labels in (each for each in seen.given if each.is_integer and each.has("label", "target")):
        values, positions = labels.values(), _positions(seen)
        if labels.is_one_number and labels.row["min"] == _IGNORED:
            yield note("no-label-at-all", slot=labels.slot)
        elif values is not None and values.ndim == 2:
            begins = positions if positions is not None and positions.shape == values.shape else np.zeros(values.shape)
            begins = (begins == 0) if begins.any() else np.arange(values.shape[1])[None] == begins
            which = np.cumsum(begins, axis=1)
            left = [
                (sample, int(document))
                for sample, row in enumerate(which) for document in np.unique(row)
                if (values[sample][row == document] == _IGNORED).all()
            ]  # fmt: skip
            if left:
                yield note("documents-without-label", left=tuple(left), documents=int(which.max()))


def _positions(seen: Seen) -> np.ndarray | None:
    found = (each.values() for each in seen.given if each.is_integer and each.has("position_id"))
    return next((each for each in found if each is not None), None)


def idle_experts(seen: Seen) -> Iterator[Note]:
    """Experts that were given no token: modules of a list of which others ran, or rows of a gradient that are 0."""
    ran, lists = set(seen.calls["module"].tolist()), defaultdict(list)
    for index, module in enumerate(seen.reader.modules):
        if module.path.rpartition(".")[2].isdigit() and module.n_params and not module.is_operation:
            lists[module.parent].append(index)
    many = [each for each in lists.values() if ran.intersection(each) and not ran.issuperset(each)]
    idle = sum(len(set(each) - ran) for each in many)
    experts = seen.config(*_EXPERTS)
    for row in seen.of(Role.PARAM_GRAD, phase=Phase.GRADIENT) if experts and not many else ():
        shape = seen.reader.shapes[row["shape"]]
        if len(shape) == 3 and shape[0] == experts and row["zeros"] and not row["zeros"] % math.prod(shape[1:]):
            many.append([*range(shape[0])])
            idle += int(row["zeros"]) // math.prod(shape[1:])
    if idle:
        yield note("experts-without-token", idle=idle, total=sum(map(len, many)))


def one_expert(seen: Seen) -> Iterator[Note]:
    """One expert for each token: its weight is 1 where weights are normalised."""
    if seen.config(*_TOP) == 1 and (seen.config(*_EXPERTS) or 0) > 1:
        yield note("one-expert-for-each-token")


def even_inputs(seen: Seen) -> Iterator[Note]:
    """Inputs of which all elements are one number; positions, masks and labels have lines of their own."""
    named = ("position", "mask", "label", "target", "type", "cu_seqlens")
    even = [
        each for each in seen.given if each.is_one_number and not each.has(*named) and each.row["role"] == Role.INPUT
    ]
    for each in even[:1]:
        yield note("input-is-one-number", slot=each.slot, number=float(each.row["min"]))


def zero_positions(seen: Seen) -> Iterator[Note]:
    """Positions that are all one number, or sections (text, height, width) that are all alike."""
    for each in (each for each in seen.given if each.is_integer and each.has("position_id")):
        values = each.values() if len(each.shape) == 3 and 1 < each.shape[0] <= 4 else None
        if each.is_one_number:
            yield note("positions-are-one-number", slot=each.slot, number=int(each.row["min"]))
        elif values is not None and (values == values[:1]).all():
            yield note("sections-are-alike", slot=each.slot, count=each.shape[0])


def few_tokens(seen: Seen) -> Iterator[Note]:
    """Sequences that are too short for what depends on the position."""
    if seen.tokens is not None and 1 < seen.tokens.shape[1] <= _FEW_TOKENS:
        yield note("few-tokens", count=seen.tokens.shape[1])


def length_not_reached(seen: Seen) -> Iterator[Note]:
    """Sequences within the window of local attention, or the length from which on rotary angles are scaled."""
    if seen.tokens is None:
        return
    held, length = seen.reader.info.model_config, seen.tokens.shape[1]
    window = seen.config(*_WINDOWS)
    if window is not None and length <= window and held.get("use_sliding_window", True):
        yield note("window-not-reached", length=length, window=int(window))
    for scaling in (each for name in ("rope_scaling", "rope_parameters") if isinstance(each := held.get(name), dict)):
        kind = scaling.get("rope_type") or scaling.get("type")
        whole = scaling.get("original_max_position_embeddings") or seen.config("max_position_embeddings")
        if kind in _NEEDS_LENGTH and isinstance(whole, (int, float)) and length <= whole:
            yield note("scaling-not-reached", kind=kind, length=length, whole=int(whole))


def idle_masks(seen: Seen) -> Iterator[Note]:
    """A mask that hides nothing."""
    for each in (each for each in seen.given if each.has("mask") and each.is_one_number):
        if bool(each.row["min"]) == (each.is_integer or each.row["min"] > 0):
            yield note("mask-hides-nothing", slot=each.slot)
            return


def one_sample(seen: Seen) -> Iterator[Note]:
    """A batch of one sample, or of samples that are all alike."""
    many = [each for each in seen.given if len(each.shape) > 1 and each.row["role"] == Role.INPUT]
    if many and all(each.shape[0] == 1 for each in many):
        yield note("one-sample")
    values = seen.tokens.values() if seen.tokens is not None and seen.tokens.shape[0] > 1 else None
    if values is not None and (values == values[:1]).all():
        yield note("samples-are-alike", count=len(values))


def switched_off(seen: Seen) -> Iterator[Note]:
    """Dropout and batch norms that ran in evaluation mode alone."""
    rates = [each for name, each in seen.reader.info.model_config.items() if "drop" in name and type(each) is float]
    trained = set(seen.calls["module"][seen.calls["training"] != 0].tolist())
    off = sorted(set(seen.calls["module"].tolist()) - trained)
    names = [*(seen.classes(off, "Dropout") if any(rates) or not rates else ()), *seen.classes(off, "BatchNorm")]
    if names:
        yield note("switched-off", classes=tuple(names))


def idle_cap(seen: Seen) -> Iterator[Note]:
    """Logits that are so far below the cap that it changes nothing beyond rounding."""
    cap = seen.config(*_CAPS)
    outputs = seen.of(Role.OUTPUT, phase=Phase.FORWARD)
    for row in outputs if cap else ():
        largest = max(abs(row["min"]), abs(row["max"]))
        is_logits = seen.reader.slots[row["slot"]] == "logits" and seen.reader.modules[row["module"]].parent < 0
        if cap and is_logits and largest**2 / (3 * cap**2) < 2 * unit_roundoff(row["dtype"].decode()):
            yield note("cap-not-reached", largest=float(largest), cap=cap)
            return


def even_norms(seen: Seen) -> Iterator[Note]:
    """Weights of norms that are all 1, where no gradient tells whether they are used."""
    if seen.of(Role.PARAM_GRAD).size:
        return
    weights = [row for row in seen.of(Role.PARAM, phase=Phase.INIT) if seen.name(row).endswith("weight")]
    norms = [row for row in weights if "Norm" in seen.reader.modules[row["module"]].class_name]
    if norms and all(row["min"] == row["max"] == 1 for row in norms):
        yield note("norms-are-one", count=len(norms))


def one_step(seen: Seen) -> Iterator[Note]:
    """A single step of training."""
    if len(seen.steps) == 1 and seen.of(Role.DELTA).size:
        yield note("one-step")


CHECKS: dict[str, Check] = {
    "labels": without_label,
    "zero weights": zero_weights,
    "even inputs": even_inputs,
    "positions": zero_positions,
    "few tokens": few_tokens,
    "experts": idle_experts,
    "one expert": one_expert,
    "length": length_not_reached,
    "cap": idle_cap,
    "one sample": one_sample,
    "masks": idle_masks,
    "switched off": switched_off,
    "norms": even_norms,
    "one step": one_step,
}
"""by name, the weightiest first"""


def cannot_show(reader: Reader, steps: Sequence[int] | None = None) -> tuple[Note, ...]:
    """Return what a recording cannot show, the weightiest first; of these steps, or of all."""
    seen = Seen(reader, [int(each) for each in reader.steps["step"]] if steps is None else steps)
    return tuple(itertools.chain.from_iterable(check(seen) for check in CHECKS.values())) if seen.steps else ()
