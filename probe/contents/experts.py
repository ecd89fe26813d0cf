"""Load and entropy of experts: how a recording's routers spread its tokens, step by step."""

from __future__ import annotations

import contextlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from probe.contents.unshown import EXPERTS, TOP, Seen
from probe.errors import ProbeError
from probe.numbers.choices import OWN_CHOICES, OWN_SCORES, WIDEST, as_indices, is_choice
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_CALL = ["module", "micro", "call"]
_MOST_EXPERTS = 4_096
"""more are a vocabulary"""
_ROUNDED = 0.02
"""by which probabilities in 16 bits may miss a sum of 1"""
_NUMBERS = ("load_min", "load_max", "entropy", "load_entropy")
_MOST_ROWS, _MOST_CURVES = 10, 4
"""routers that are listed, and that have curves of their own: more have the mean and the worst of all"""


@dataclass(frozen=True, eq=False)
class Load:
    """What the experts of a router were given in a step.

    Attributes
    ----------
    module
        index of the router, or of what holds experts that are modules
    counts
        choices by expert
    tokens, k
        how many tokens chose, and how many experts each; 0 if that is not known
    entropy
        of the router's probabilities, mean over tokens, in nats; NaN if they were not recorded
    is_own
        the router took another recording's choices: these are what it would have chosen
    """

    module: int
    path: str
    step: int
    counts: np.ndarray
    tokens: int
    k: int
    entropy: float = math.nan
    is_own: bool = False

    @cached_property
    def shares(self) -> np.ndarray:
        """The load of each expert over their mean; NaN if nothing was chosen."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.counts / self.counts.mean())

    @property
    def max_vio(self) -> float:
        """The largest load over the mean, less 1."""
        return float(self.shares.max()) - 1

    def as_json(self, to_step: int = 0) -> dict[str, Any]:
        """Return all of it, its step as the other side counts it; None for what is not known."""
        said = {
            "router": self.path, "module": self.module, "step": self.step + to_step, "experts": len(self.counts), "k": self.k or None, "tokens": self.tokens or None,
            "tokens_per_expert": self.counts.tolist(), "unused": int((self.counts == 0).sum()), "max_vio": self.max_vio,
            "load_min": float(self.shares.min()), "load_max": float(self.shares.max()), "entropy": self.entropy,
            "load_entropy": _entropy(self.shares[None] / len(self.shares)), "own_choices": self.is_own,
        }  # fmt: skip
        return {name: None if each != each else each for name, each in said.items()}


def loads(reader: Reader, steps: Sequence[int] | None = None) -> list[Load]:
    """Return the load of every router in each of these steps, or of all, where choices or calls of experts tell it."""
    rows, lists = reader.records, defaultdict[int, list[int]](list)
    for index, module in enumerate(reader.modules):
        above, _, last = module.path.rpartition(".")
        if last.isdigit() and module.n_params and "expert" in above.rpartition(".")[2]:
            lists[module.parent].append(index)
    listed = np.isin(rows["module"], [each for several in lists.values() for each in several])
    told = np.unique(rows["step"][(rows["phase"] == Phase.FORWARD) & (listed | (rows["tensor"] >= 0))]).tolist()
    return [load for step in told if steps is None or step in steps for load in _of_step(reader, step, lists)]


def _of_step(reader: Reader, step: int, lists: dict[int, list[int]]) -> list[Load]:
    rows = reader.of_step("records", step)
    rows = rows[rows["phase"] == Phase.FORWARD]
    if (rows["micro"] >= 0).any():  # evaluations in between are no training
        rows = rows[rows["micro"] >= 0]
    seen = Seen(reader, [step], rows, rows[:0])
    for role in (Role.OUTPUT, Role.INPUT):
        found = [*_chosen(seen, rows[rows["role"] == role])]
        if found:  # a module around a router may hand on what it chose
            return [each for each in found if not any(x.path.startswith(f"{each.path}.") for x in found)]
    return [*_called(seen, lists)]


def _chosen(seen: Seen, rows: np.ndarray) -> Iterator[Load]:
    """Yield the load of modules that return, or are given, choices of which the values were recorded."""
    integers = np.char.startswith(rows["dtype"], b"int") | (rows["dtype"] == b"bool")
    for module in np.unique(rows["module"][integers & (rows["tensor"] >= 0)]).tolist():
        own = rows[rows["module"] == module]
        choices = [row for row in own if row["tensor"] >= 0 and is_choice(row, own, seen.reader.shapes)]
        calls = {tuple(row[_CALL].item()): row for row in reversed(choices)}
        if calls and not seen.reader.modules[module].is_operation:
            with contextlib.suppress(ProbeError):  # what is damaged is as if it were not recorded
                found = [_of_call(seen, row, own) for row in calls.values()]
                known = [each for each in found if each is not None]
                if len(known) == len(found) and len({len(each.counts) for each in known}) == 1:
                    yield _together(known)


def _together(calls: list[Load]) -> Load:
    """Return the load of several calls of a router."""
    known = [(each.entropy, each.tokens) for each in calls if not math.isnan(each.entropy)]
    entropy = sum(x * n for x, n in known) / sum(n for _, n in known) if known else math.nan
    counts, tokens = np.sum([each.counts for each in calls], axis=0), sum(each.tokens for each in calls)
    return replace(calls[-1], counts=counts, tokens=tokens, entropy=entropy)


def _of_call(seen: Seen, row: np.void, own: np.ndarray) -> Load | None:
    """Return the load of one call; None if what it chooses are no experts."""
    reader, module = seen.reader, int(row["module"])
    values = seen.rows[(seen.rows["role"] == Role.VALUE) & (seen.rows[_CALL] == row[_CALL])]
    beside = {reader.slots[each["slot"]]: each for each in values if each["tensor"] >= 0}
    chosen = reader.values(int(beside.get(OWN_CHOICES, row)["tensor"]))
    indices, is_map, last = as_indices(chosen), chosen.dtype == bool, chosen.shape[-1]
    k, tokens = 0 if indices is None else indices.shape[-1], chosen.size // max(last, 1)
    ids = np.nonzero(chosen.reshape(-1, last))[1] if is_map else chosen[chosen >= 0]  # below 0: dropped, or padding
    outputs = own[(own["role"] == Role.OUTPUT) & (own[_CALL] == row[_CALL]) & (own["tensor"] >= 0)]
    floats = [*(each for each in outputs if b"float" in each["dtype"]), *(beside[x] for x in beside if x == OWN_SCORES)]
    sizes = [(reader.shapes[each["shape"]], int(each["tensor"])) for each in floats]
    scores = {x[-1]: at for x, at in reversed(sizes) if math.prod(x[:-1]) == tokens and (is_map or x != chosen.shape)}
    top, config = int(ids.max(initial=0)), int(seen.config(*EXPERTS))
    if is_map:
        width = last if k < last and (k or last == config) else 0  # else a mask
    elif config > top:
        width = config
    else:
        own_matrices = (each.shape for each in reader.parameters if each.module == module and len(each.shape) == 2)
        width = min((size for size in (*scores, *sum(own_matrices, ())) if size > top), default=0)
    if not top < width <= _MOST_EXPERTS or (last > WIDEST and not is_map):
        return None
    entropy = _entropy(reader.values(scores[width]), is_map) if width in scores else math.nan
    counts = np.bincount(ids.reshape(-1), minlength=width)
    return Load(module, reader.modules[module].path, seen.steps[0], counts, tokens, k, entropy, OWN_CHOICES in beside)


def _called(seen: Seen, lists: dict[int, list[int]]) -> Iterator[Load]:
    """Yield the load of experts that are modules of a list: as many rows as each was given; shapes alone tell it."""
    rows, given, k = seen.rows[seen.rows["role"] == Role.INPUT], defaultdict[int, int](int), int(seen.config(*TOP))
    for row in rows[np.unique(rows[_CALL], return_index=True)[1]] if lists else ():
        shape = seen.reader.shapes[row["shape"]]
        given[int(row["module"])] += shape[0] if len(shape) == 2 else -(2**40)
    for parent, modules in lists.items():
        counts, path = np.array([given[each] for each in modules]), seen.reader.modules[parent].path
        if 0 <= counts.min() < counts.max():  # if even: each was given all tokens, or padding
            yield Load(parent, path, seen.steps[0], counts, int(counts.sum()) // k if k else 0, k)


def _entropy(scores: np.ndarray, is_masked: bool = False) -> float:
    """Return the mean entropy of rows: probabilities, sigmoid scores that are made to sum to 1, or logits.

    NaN of ``is_masked`` rows, in which what was not chosen is 0.
    """
    rows = scores.reshape(-1, scores.shape[-1]).astype(float)
    rows = rows[np.isfinite(rows.max(-1))]  # −Inf is a choice that is masked
    if not rows.size or (is_masked and (rows == 0).any(-1).all()):
        return math.nan
    is_share = rows.min() >= 0 and (np.abs(rows.sum(-1) - 1) < _ROUNDED).all()
    if not is_share and not 0 < rows.min() <= rows.max() < 1:
        rows = np.exp(rows - rows.max(-1, keepdims=True))
    shares = rows / rows.sum(-1, keepdims=True)
    return float(np.abs((shares * np.log(np.where(shares > 0, shares, 1))).sum(-1).mean()))


def load_curves(reader: Reader) -> Iterator[tuple[int, str, float]]:
    """Yield step, name and value of MaxVio and entropy: by layer, or the mean and the worst of many routers."""
    by_step: dict[int, list[Load]] = defaultdict(list)
    for each in loads(reader):
        by_step[each.step].append(each)
    for step, found in by_step.items():
        layers = [next(iter(re.findall(r"\d+", each.path)), each.path) for each in found]
        names = [f"L{layer}" for layer in layers] if len({*layers}) == len(found) else [x.path for x in found]
        of_each = {"MaxVio": [each.max_vio for each in found], "router entropy": [each.entropy for each in found]}
        for what, values in of_each.items():
            of_all = {"mean": float(np.mean(values)), "worst": max(values) if what == "MaxVio" else min(values)}
            named = dict(zip(names, values, strict=True)) if len(found) <= _MOST_CURVES else of_all
            yield from ((step, f"{what} {name}", x) for name, x in named.items() if not math.isnan(x))


def rows_of_experts(reader: Reader, verbose: bool) -> list[tuple[str, ...]]:
    """Return heads and a row for each router of the first step, some of them or all; nothing where none tells of experts."""
    found, rows = loads(reader, reader.steps["step"][:1].tolist()), list[tuple[str, ...]]()
    for each in found[: None if verbose else _MOST_ROWS]:
        said = each.as_json()
        numbers = ["–" if said[name] is None else f"{said[name]:.2f}" for name in _NUMBERS]
        top = f"{each.k or '?'} of {len(each.counts)}"
        rows.append((each.path, top, str(each.tokens or "–"), "–".join(numbers[:2]), str(said["unused"]), *numbers[2:]))
    if len(found) > len(rows):
        rows.append((f"… and {len(found) - len(rows)} more: -v",))
    head = f"{'own choices' if found[0].is_own else 'experts'}, step {found[0].step}" if found else ""
    return [(head, "chosen", "tokens", "load/mean", "unused", "entropy", "of load"), *rows] if rows else []
