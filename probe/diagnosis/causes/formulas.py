"""Which of several formulas gives what each side recorded: activations, softmax, linear layers, sums with the input."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase

import numpy as np

from probe.diagnosis.causes.factors import factor_of
from probe.diagnosis.causes.sizes import ROUNDED, rounded
from probe.diagnosis.evidence import Evidence, Half, are_of_ranks, distance, once
from probe.diagnosis.hint import Found, strong, verified, weak
from probe.notes import Note, note, sides
from probe.numbers.statistics import unit_roundoff
from probe.records import Role

Formula = tuple[Note, np.ndarray]
"""what was computed, and the tensor that it gives"""
Names = tuple[Note | None, Note | None]
"""which formula gives A's tensor, and which B's"""
_ROUNDED_PRODUCT = "product-of-rounded"
"""the code of a product of numbers in fewer bits"""
_PLAIN = ("product", "product-with-bias")
_LEVELS = 4
"""different numbers, such as those of a mask, that many functions give"""
_SAMPLE = 1 << 12
"""elements of which functions of one element are computed"""
_MOST_ROWS, _MOST_COLUMNS = 64, 128
"""of a product that are computed, or up to twice as many"""
_MOST_FACTORS = 4
"""tensors that such a function may be multiplied by"""
_FEW = 256
"""elements from which on it can be told whether an error is a function of them"""
_MANY = 64
"""elements from which on statistics tell a function"""
_CUT = 0.05
"""share of zeros from which on a side is cut off at 0"""
_LOWEST = ((-0.1701, "gelu or silu"), (-0.2785, "silu"))
"""how far down functions go, the highest first: gelu to −0.170, silu to −0.278"""
_LEAST_SLOPE = 1e-3
_SMOOTH = 0.3
"""what neighbours of a function differ by, as a share of its size; of independent numbers it is √2"""
_OF_ROUNDING = 0.1
"""share of the error that may be left over where numbers are rounded: ties, and the order of sums"""
_BY_FAR = 4
"""times what the best formula leaves over: another one that leaves less is as good"""
_SAME = 1e-9
"""relative distance up to which two formulas are one for these numbers: relu and relu6 where all are below 6"""
_MANY_NAMES = 3
"""formulas between which the numbers do not tell: none is named"""
_SQRT2 = math.sqrt(2.0)


# Functions of one element


def _erf(x: np.ndarray) -> np.ndarray:
    return np.fromiter((math.erf(value) for value in x.reshape(-1).tolist()), np.float64, x.size).reshape(x.shape)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


IDENTITY = "the identity"
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu by erf": lambda x: 0.5 * x * (1 + _erf(x / _SQRT2)),
    "gelu by tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "quick gelu, x · sigmoid(1.702 x)": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "relu": lambda x: np.maximum(x, 0.0),
    "squared relu": lambda x: np.maximum(x, 0.0) ** 2,
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0.0))),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "softplus": _softplus,
    "hardswish": lambda x: x * np.clip(x + 3, 0.0, 6.0) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0.0, 6.0) / 6,
    IDENTITY: lambda x: x,
}
"""by the name in messages"""
_IDENTITIES = ("*Dropout*", "Identity", "*Norm*", "Linear", "*Conv*", "*Embedding*")
"""classes that have no activation"""


def _activation_formulas(half: Half, evidence: Evidence) -> Iterator[Formula]:
    """Yield f(x) of what the tensor may be made from, and f(x) · y where two such have its size."""
    if any(fnmatchcase(half.class_name, pattern) for pattern in _IDENTITIES) and evidence.role is Role.OUTPUT:
        return
    found = half.values
    if found is None:
        return
    sources = common_sources(evidence)[half is evidence.b]
    step = max(1, found.size // _SAMPLE)
    cut = [x.reshape(-1)[::step] for x in sources if x.size == found.size]
    sample = found.reshape(-1)[::step]
    for at, x in enumerate(cut):
        yield from _leaky(x, sample)
        for name, function in ACTIVATIONS.items():
            value = function(x)
            yield note("function", name=name), value
            for y in (each for other, each in enumerate(cut[:_MOST_FACTORS]) if other != at):
                yield note("function", name=name), value * y


@once
def common_sources(evidence: Evidence) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return what the tensor may be made from on both sides: what one side alone has says nothing of how the two differ."""
    before = evidence.role is Role.INPUT
    a, b = ([each.values for each in half.sources(before)] for half in evidence.halves)
    joined = [
        part
        for half, others in ((evidence.a, b), (evidence.b, a))
        for parts in half.joined_sources(before)
        if any(_are_one(parts, other, evidence.tolerance) for other in others)
        for part in parts
    ]
    common = [x for x in a if any(_are_one([x], y, evidence.tolerance) for y in b)]
    return joined + common, joined + [y for y in b if any(_are_one([x], y, evidence.tolerance) for x in a)]


def _are_one(parts: list[np.ndarray], whole: np.ndarray, tolerance: float) -> bool:
    """Return True if one or several tensors are one of the other side but for noise.

    Where they lie otherwise, sizes, norms and ends tell.
    """
    if sum(part.size for part in parts) != whole.size:
        return False
    if parts[0].shape == whole.shape:
        return distance(parts[0], whole) <= tolerance
    norm = math.hypot(*(float(np.linalg.norm(part)) for part in parts))
    ends = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
    return bool(np.allclose([norm, *ends], [np.linalg.norm(whole), whole.min(), whole.max()], rtol=tolerance, atol=0.0))


def _leaky(x: np.ndarray, found: np.ndarray) -> Iterator[Formula]:
    """Yield the leaky relu of which the slope is solved from what was found."""
    below = np.minimum(x, 0.0)
    squares = float(below @ below)
    slope = float(below @ found) / squares if squares else 0.0
    if _LEAST_SLOPE < abs(slope) < 1 - _LEAST_SLOPE:
        yield note("leaky-relu", slope=float(f"{slope:.4g}")), np.maximum(x, 0.0) + slope * below


def _sampled(half: Half) -> np.ndarray | None:
    found = half.values
    some = None if found is None else found.reshape(-1)[:: max(1, found.size // _SAMPLE)]
    return some if some is not None and len(np.unique(some)) > _LEVELS else None


# Softmax


def _softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        e = np.exp(x - np.max(x, axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)


def _softmax_formulas(half: Half, evidence: Evidence) -> Iterator[Formula]:
    if not any("softmax" in name.casefold() for name in evidence.classes):
        return
    for x in half.given():
        for axis in range(x.ndim):
            yield note("softmax-over-axis", axis=axis), _softmax(x, axis)
        largest = np.max(x, axis=-1, keepdims=True)
        e = np.exp(x - largest)
        yield note("softmax-with-one-added"), e / (e.sum(axis=-1, keepdims=True) + np.exp(-largest))
        yield note("log-softmax"), x - largest - np.log(e.sum(axis=-1, keepdims=True))
        for name in ("bfloat16", "float16"):
            yield note("softmax-in", format=name), rounded(_softmax(rounded(x, name)), name)
        width = x.shape[-1]
        for what, scale in (("√width", math.sqrt(width)), ("width", width), ("2", 2.0), ("8", 8.0)):
            yield note("softmax-of-divided-scores", by=what), _softmax(x / scale)
            yield note("softmax-of-multiplied-scores", by=what), _softmax(x * scale)


# Linear layers


def _linear_formulas(half: Half, evidence: Evidence) -> Iterator[Formula]:
    """Yield some rows and columns of x Wᵀ + b and how it is mistaken: the weight not transposed, without bias, in fewer bits."""
    weight, bias = half.parameter("weight"), half.parameter("bias")
    if weight is None or weight.ndim != 2:
        return
    for x in half.given():
        if x.shape[-1] == weight.shape[1]:
            yield from _products(half, _some_rows(x), weight[_some(len(weight), _MOST_COLUMNS)], bias)
        if x.shape[-1] == weight.shape[0] == weight.shape[1]:
            columns = _some(len(weight), _MOST_COLUMNS)
            added = 0.0 if bias is None else bias[columns]
            yield note("product-not-transposed"), _some_rows(x) @ weight[:, columns] + added


def _products(half: Half, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> Iterator[Formula]:
    """Yield the product of some rows and some rows of the weight, and how it is mistaken."""
    plain = x @ weight.T
    if bias is None:
        yield note("product"), plain
    else:
        bias = bias[_some(len(bias), _MOST_COLUMNS)]
        yield note("product-with-bias"), plain + bias
        yield note("product-without-bias"), plain
        yield note("product-with-bias-twice"), plain + 2 * bias
    for name in ROUNDED:
        if ROUNDED[name] > 4 * unit_roundoff(half.dtype):
            product = rounded(x, name) @ rounded(weight, name).T
            yield note(_ROUNDED_PRODUCT, format=name), product if bias is None else product + bias


def _some(size: int, most: int) -> slice:
    """Return indices that are spread evenly over all, at most twice as many as asked for."""
    return slice(0, size, max(1, size // most))


def _some_rows(values: np.ndarray) -> np.ndarray:
    rows = values.reshape(-1, values.shape[-1])
    return rows[_some(len(rows), _MOST_ROWS)]


def _sampled_product(half: Half) -> np.ndarray | None:
    """Return the rows and columns of a tensor that `_products` gives."""
    values = half.values
    if values is None or not values.ndim:
        return None
    return _some_rows(values)[:, _some(values.shape[-1], _MOST_COLUMNS)]


# Sums with what came in


def _residual_formulas(half: Half, evidence: Evidence) -> Iterator[Formula]:
    """Yield what was made inside a block on both sides, with and without what came into it."""
    found = half.values
    if found is None:
        return
    common = common_sources(evidence)[half is evidence.b]
    parts = [
        each for each in half.sources(False)
        if each.values.shape == found.shape and any(np.array_equal(each.values, y) for y in common)
    ]  # fmt: skip
    inputs = [each.values for each in parts if each.is_input]
    inner = [(each.name, each.values) for each in parts if not each.is_input]
    for name, x in inner:
        yield note("output-alone", of=name), x
        for given in inputs:
            yield note("output-plus-input", of=name), x + given
            yield note("output-plus-twice-the-input", of=name), x + 2 * given
    for (one, x), (other, y) in itertools.combinations(inner, 2):
        yield note("outputs-without-input", one=one, other=other), x + y
        for given in inputs:
            yield note("outputs-plus-input", one=one, other=other), x + y + given


# Which of them it is


def _fitting(found: np.ndarray, formulas: Iterable[Formula], limit: float) -> dict[Note, tuple[float, np.ndarray]]:
    """Return the formulas that give one side's tensor up to noise: what they leave over, and what they give."""
    fits: dict[Note, tuple[float, np.ndarray]] = {}
    for name, value in formulas:
        rest = distance(value, found) if value.shape == found.shape else math.inf
        if rest <= limit and (name not in fits or rest < fits[name][0]):
            fits[name] = rest, value
    return fits


def _best(fits: dict[Note, tuple[float, np.ndarray]]) -> Note | None:
    """Return the best; with those that are nearly as good and give other numbers, None where these are many."""
    if not fits:
        return None
    best = min(fits, key=lambda name: fits[name][0])
    rest, value = fits[best]
    others = fits.items()
    near = [name for name, (other, its) in others if other <= _BY_FAR * rest and distance(value, its) > _SAME]
    if not near:
        return best
    return note("one-of", ways=(best, *near)) if len(near) < _MANY_NAMES else None


def _told(
    evidence: Evidence,
    formulas: Callable[[Half, Evidence], Iterable[Formula]],
    *,
    sample: Callable[[Half], np.ndarray | None] = lambda half: half.values,
    share: float = 0.0,
) -> Names:
    """Return which formula gives A's tensor and which B's; None for one that none gives.

    Where one of them gives both, none is named. A formula may leave over ``share`` of the error.
    """
    fits = []
    for half in evidence.halves:
        noise = min(evidence.tolerance, 64 * unit_roundoff(half.dtype)) or evidence.tolerance
        limit = max(noise, evidence.tolerance / 4, share * evidence.error)
        found = sample(half)
        fits.append({} if found is None else _fitting(found, formulas(half, evidence), limit))
    return (None, None) if set(fits[0]) & set(fits[1]) else (_best(fits[0]), _best(fits[1]))


def _sentence(names: Names, code: str = "computes") -> Found | None:
    a, b = names
    if a is None or b is None:
        return None
    return verified(Note(code, {"a": a, "b": b}), by="from-records", a=a, b=b)


def activation(evidence: Evidence) -> Found | None:
    """Two functions of one element, told apart by their recorded argument."""
    if evidence.metrics.estimated:
        return _cut_off_at_zero(evidence)
    names = _told(evidence, _activation_formulas, sample=_sampled)
    if None not in names:
        return _sentence(names)
    known = next(
        (side for side, name in zip("AB", names, strict=True) if name not in (None, note("function", name=IDENTITY))),
        None,
    )
    if known is None or not _is_function(evidence):
        return None
    name = names[known == "B"]
    said = note("computes-another-function", function=name, **sides(known == "A"))
    return strong(said, **{known.lower(): name})


def returns_input(evidence: Evidence) -> Found | None:
    """One side returns its input, bit for bit."""
    has_weights = any(half.reader.modules[half.module].n_params for half in evidence.halves)
    is_replaced = evidence.classes[0] != evidence.classes[1]
    if any("dropout" in name.casefold() for name in evidence.classes) or not (has_weights or is_replaced):
        return None  # one that is not active; a function of which nothing is known
    unchanged = [_is_unchanged(half) for half in evidence.halves]
    if unchanged[0] == unchanged[1]:
        return None
    side, other = ("A", "B") if unchanged[0] else ("B", "A")
    names = [set(_own_parameters(half)) for half in (evidence.halves if side == "A" else evidence.halves[::-1])]
    if names[0] and names[0] == names[1]:
        return None  # a scale may be 1
    alone = sorted(names[1] - names[0]) if not names[0] else []
    said = note("returns-its-input", side=side, other=other, only=tuple(alone))
    return verified(said, by="from-input-and-output", side=side, only=alone)


def _is_unchanged(half: Half) -> bool:
    digest = half.tensor.hash
    return bool(digest and half.tensor.norm) and any(each.hash == digest for each in half.call(Role.INPUT).values())


def _own_parameters(half: Half) -> list[str]:
    return [each.slot for each in half.reader.parameters if each.module == half.module and not each.is_buffer]


def _cut_off_at_zero(evidence: Evidence) -> Found | None:
    """From statistics: nothing of one side is below 0, and many elements are 0; the other side goes on below 0."""
    size = evidence.size
    if size < _MANY:
        return None
    for side, half, other in (("A", evidence.a, evidence.b), ("B", evidence.b, evidence.a)):
        share, low = half.tensor.zeros / size, other.tensor.low
        is_cut = (
            half.tensor.low == 0 and half.tensor.high > 0 and share > _CUT and other.tensor.zeros < size * share / 4
        )
        if not is_cut or not low < 0 < other.tensor.high:
            continue
        function = next((name for bound, name in _LOWEST if bound <= low), "")
        said = note(
            "cut-off-at-zero", side=side, other="B" if side == "A" else "A", share=share, low=low, function=function
        )
        return weak(said, share=share, min=low)
    return None


def _is_function(evidence: Evidence) -> bool:
    """Return True if the error depends on the element that the module was given, and on nothing else."""
    values = evidence.values
    has_parts = any(not each.is_input for each in evidence.a.sources(False))
    inputs = [x for x in evidence.a.given() if values is not None and x.size == values.a.size and not has_parts]
    if values is None or evidence.role is not Role.OUTPUT or not inputs or values.a.size < _FEW:
        return False
    error = values.difference.reshape(-1)[np.argsort(inputs[0].reshape(-1))]
    return float(np.linalg.norm(np.diff(error))) <= _SMOOTH * float(np.linalg.norm(error))


def computes(evidence: Evidence, of: str, code: str) -> Found | None:
    """Two ways to compute it from what was recorded."""
    return _sentence(_told(evidence, _FORMULAS[of]), code)


_FORMULAS = {"softmax": _softmax_formulas, "residual": _residual_formulas}


@once
def told_linear(evidence: Evidence) -> Names:
    """Return which product of the recorded input and weight each side is, None for one that is none."""
    return _told(evidence, _linear_formulas, sample=_sampled_product, share=_OF_ROUNDING)


def linear(evidence: Evidence, is_rounded: bool) -> Found | None:
    """Two products of the recorded input and weight, in the same number of bits."""
    names = told_linear(evidence)
    return _sentence(names) if _is_rounded(names) is is_rounded else None


def _is_rounded(names: Names) -> bool:
    ways = [way for name in names if name is not None for way in name.facts.get("ways", (name,))]
    return any(way.code == _ROUNDED_PRODUCT for way in ways)


def share_of_input(evidence: Evidence) -> Found | None:
    """The difference is a multiple of what came in."""
    values = evidence.values
    if values is None or factor_of(evidence) is not None:
        return None
    for x in evidence.a.given():
        squares = float(np.vdot(x, x)) if x.shape == values.a.shape else 0.0
        share = float(np.vdot(x, values.difference)) / squares if squares else 0.0
        if share and evidence.explains(values.a + share * x, values.b):
            return verified(note("multiple-of-input", share=share), share=share)
    return None


def may_end_before(evidence: Evidence) -> bool:
    """Return True if the modules hold others, and it is a guess that they are a pair: one may end where the other goes on."""
    sides = ((half.module, half.reader.modules) for half in evidence.halves)
    return evidence.is_guess and any(each.parent == module for module, modules in sides for each in modules)


def exchanged_gate(evidence: Evidence) -> Found | None:
    """The activation is applied to the other factor."""
    values = evidence.values
    if values is None:
        return None
    sources = common_sources(evidence)[0]
    factors = [x.reshape(values.a.shape) for x in sources if x.size == values.a.size][:_MOST_FACTORS]
    rests = [
        (max(distance(function(x) * y, values.a), distance(function(y) * x, values.b)), name)
        for name, function in ACTIVATIONS.items()
        for x, y in itertools.permutations(factors if name != IDENTITY else (), 2)
    ]
    rest, name = min(rests, default=(math.inf, ""))
    if rest > evidence.tolerance:
        return None
    return verified(note("gate-and-up-exchanged", activation=name), by="from-records", activation=name)


def output_of_one_rank(evidence: Evidence) -> Found | None:
    """On one side, a linear layer returns only this rank's product."""
    names = told_linear(evidence) if are_of_ranks(evidence) else (None, None)
    name = names[0] or names[1]
    if None not in names or name is None or name.code not in _PLAIN:
        return None
    said = note("output-of-one-rank", product=name, **sides(names[0] is not None))
    return verified(said, by="from-input-and-weight", alone=said.facts["side"])
