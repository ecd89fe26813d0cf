"""`make_inputs`: arrays that are the same, bit for bit, on every machine and for every framework.

The random words are those of Philox-4x64-10 (Salmon and others, 2011) as ``numpy.random.Philox(key=[seed,
XXH3-64(name in UTF-8)]).random_raw()`` gives them, which numpy promises never to change; every input has a stream of its own. What
is made of them takes integer arithmetic and single IEEE operations only, no logarithm or cosine that a library
may round otherwise:

- ids: ``low + ((word >> 32) · (high − low) >> 32)``
- uniform: ``low + (word >> 11) · 2**-53 · (high − low)``
- normal: the sum of the 12 halves of 6 words, each times 2**-32, minus 6: mean 0, variance 1, nothing beyond ±6
- mask: rows of ones with zeros behind them; the first row has none, the others between none and all but one
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import xxhash

from probe import origins
from probe.adapters.base import adapter_for
from probe.adapters.frameworks import FRAMEWORKS
from probe.errors import ConfigError, RecordingError
from probe.numbers.statistics import dtype_of, is_float

KINDS = ("normal", "uniform", "ids", "labels", "mask")
_KEYS = ("shape", "dtype", "kind", "low", "high", "vocab")
_CHUNK = 1 << 17
_TEXT = re.compile(
    r"(?P<dtype>\w+)\s*\[(?P<shape>[\d\s,]*)\]\s*(?P<kind>[a-z]+)?\s*"
    r"(?:<\s*(?P<below>\d+)|(?P<low>[-+.\de]+?)\s*\.\.\s*(?P<high>[-+.\de]+))?"
)
_EXAMPLE = "'int64[2,128] < 32000', 'float32[2,3,8,8]', 'float32[4] uniform -1..1' or 'bool[2,128] mask'"


@dataclass(frozen=True)
class InputSpec:
    """What one input is to be."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    kind: str
    low: float
    high: float

    def __str__(self) -> str:
        shape = ",".join(map(str, self.shape))
        limits = "" if self.kind in ("normal", "mask") else f" {self.low:g}..{self.high:.17g}"
        return f"{self.name} {self.dtype.name}[{shape}] {self.kind}{limits}"


def make_inputs(spec: Mapping[str, str | Mapping[str, Any]], seed: int = 42, to: Any = None) -> dict[str, Any]:
    """Make inputs and labels that are identical on every machine and in every framework.

    Parameters
    ----------
    spec
        by name, what each is to be: ``"int64[2,128] < 32000"`` (ids), ``"float32[2,3,8,8]"`` (normal), ``"float32[4] uniform
        -1..1"``, ``"int64[2] labels < 10"``, ``"bool[2,128] mask"``; or a mapping with shape, dtype, kind, low, and
        high (or vocab)
    seed
        from 0 to 2**64 − 1
    to
        a framework's name (``"torch"``, ``"paddle"``, ``"mindspore"``), or a model: its tensors, on its device.
        Without it, numpy arrays

    Raises
    ------
    ConfigError
        what is asked for makes no sense, or the framework has no such dtype
    """
    if not isinstance(spec, Mapping) or not spec:
        raise ConfigError(f"make_inputs was given {spec!r}; expected a mapping like {{'x': 'float32[2,8]'}}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**64:
        raise ConfigError(f"make_inputs: seed={seed!r}; expected an integer from 0 to 2**64 - 1")
    specs = [_parsed(str(name), given) for name, given in spec.items()]
    make = (lambda array: array) if to is None else tensor_maker(to)
    made = {each.name: make(_array(each, int(seed))) for each in specs}
    origins.note_input(f"make_inputs, seed {seed}: {'; '.join(map(str, specs))}")
    return made


def tensor_maker(to: Any) -> Callable[[np.ndarray], Any]:
    """Return what makes tensors of a framework, given by its name or by a model, from arrays.

    Raises
    ------
    ConfigError
        it is no framework, is not installed, or (later) has no such dtype
    """
    try:
        framework, model = (to, None) if isinstance(to, str) else (adapter_for(to).framework, to)
    except RecordingError:
        framework, model = f"a {type(to).__module__}.{type(to).__qualname__}", None
    if framework not in FRAMEWORKS:
        raise ConfigError(
            f"{framework} is no framework and no model of one; expected {', '.join(FRAMEWORKS)}, or a model"
        )
    try:
        module = FRAMEWORKS[framework].part("seeding")
    except ImportError as error:
        raise ConfigError(f"{framework} cannot be imported: {error}") from None

    def make(array: np.ndarray) -> Any:
        try:
            return module.to_tensor(array, model)
        except (TypeError, KeyError) as error:
            raise ConfigError(f"no tensor of {framework} can be made from {array.dtype.name}: {error}") from None

    return make


# What is asked for


def _parsed(name: str, given: str | Mapping[str, Any]) -> InputSpec:
    parts = _from_text(name, given) if isinstance(given, str) else _from_mapping(name, given)
    dtype = _dtype(name, parts["dtype"])
    kind = parts.get("kind") or ("normal" if is_float(dtype) else "mask" if dtype.kind == "b" else "ids")
    if kind not in KINDS:
        raise ConfigError(f"{name}: kind {kind!r} is not known; expected one of {', '.join(KINDS)}")
    low, high = parts.get("low"), parts.get("high")
    if kind in ("normal", "mask") and (low is not None or high is not None):
        raise ConfigError(f"{name}: {kind} takes no limits")
    if kind in ("ids", "labels") and high is None:
        raise ConfigError(
            f"{name}: {kind} need a limit: the size of the vocabulary, or the number of classes ('< 32000')"
        )
    low = 0 if low is None else low
    high = 1 if high is None else high
    spec = InputSpec(name, _shape(name, parts["shape"]), dtype, kind, low, high)
    _check(spec)
    return spec


def _from_text(name: str, text: str) -> dict[str, Any]:
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{name}: {text!r} cannot be read; expected something like {_EXAMPLE}")
    number = int if found["kind"] != "uniform" else float
    try:
        low = None if found["low"] is None else number(found["low"])
        high = found["below"] if found["high"] is None else found["high"]
        limits = {"low": low, "high": None if high is None else number(high)}
        shape = [int(size) for size in found["shape"].split(",") if size.strip()]
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r} cannot be read ({error}); expected something like {_EXAMPLE}") from None
    return {"dtype": found["dtype"], "shape": shape, "kind": found["kind"], **limits}


def _from_mapping(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}: {given!r} is neither text nor a mapping; expected something like {_EXAMPLE}")
    for key in given:
        if key not in _KEYS:
            near = difflib.get_close_matches(str(key), _KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{name}: {key!r} is not known; expected {', '.join(_KEYS)}{hint}")
    for key in ("shape", "dtype"):
        if key not in given:
            raise ConfigError(f"{name}: {key!r} is missing")
    if "vocab" in given and "high" in given:
        raise ConfigError(f"{name}: vocab and high are the same limit; give one of them")
    return {**given, "high": given.get("high", given.get("vocab"))}


def _dtype(name: str, given: object) -> np.dtype:
    text = str(getattr(given, "name", None) or getattr(given, "__name__", None) or given).rpartition(".")[2]
    try:
        dtype = dtype_of(text)
    except (TypeError, AttributeError):
        raise ConfigError(
            f"{name}: dtype {given!r} is not known; expected one like float32, bfloat16, int64, bool"
        ) from None
    if dtype.kind not in "biuf" and not is_float(dtype):
        raise ConfigError(f"{name}: inputs of dtype {dtype.name} cannot be made; expected floats, integers or bool")
    return dtype


def _shape(name: str, given: Any) -> tuple[int, ...]:
    sizes = (given,) if isinstance(given, (int, np.integer)) else given
    try:
        shape = tuple(sizes)
    except TypeError:
        shape = (None,)
    if not all(isinstance(size, (int, np.integer)) and size >= 0 and not isinstance(size, bool) for size in shape):
        raise ConfigError(f"{name}: shape {given!r}; expected integers that are not negative")
    return tuple(map(int, shape))


def _check(spec: InputSpec) -> None:
    name, dtype = spec.name, spec.dtype
    wants = {"normal": "floats", "uniform": "floats", "ids": "integers", "labels": "integers"}.get(spec.kind, "")
    if wants and (wants == "floats") is not is_float(dtype):
        raise ConfigError(f"{name}: {spec.kind} are {wants}, and {dtype.name} is not of that kind")
    if spec.kind == "mask" and not spec.shape:
        raise ConfigError(f"{name}: a mask needs at least one axis")
    if spec.kind in ("normal", "mask"):
        return
    for limit in (spec.low, spec.high):
        is_number = isinstance(limit, (int, np.integer) if wants == "integers" else (int, float, np.number))
        if not is_number or isinstance(limit, bool) or not math.isfinite(limit):
            raise ConfigError(f"{name}: {limit!r} is no limit of {wants}")
    if not spec.low < spec.high:
        raise ConfigError(f"{name}: nothing lies between {spec.low} and {spec.high}")
    if wants == "integers" and spec.high - spec.low > 2**32:
        raise ConfigError(f"{name}: from {spec.low} to {spec.high} are more than 2**32 numbers")
    if wants == "integers" and (
        dtype.kind == "b" or spec.low < np.iinfo(dtype).min or spec.high - 1 > np.iinfo(dtype).max
    ):
        raise ConfigError(f"{name}: {dtype.name} cannot hold numbers from {spec.low} to {spec.high - 1}")


# Making it


def _array(spec: InputSpec, seed: int) -> np.ndarray:
    words = np.random.Philox(key=np.array([seed, xxhash.xxh3_64_intdigest(spec.name.encode())], np.uint64))
    if spec.kind == "mask":
        return _mask(spec, words)
    flat = np.empty(math.prod(spec.shape), spec.dtype)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        part[:] = _values(spec, words, part.size)
    return flat.reshape(spec.shape)


def _values(spec: InputSpec, words: np.random.Philox, count: int) -> np.ndarray:
    if spec.kind in ("ids", "labels"):
        return _below(words, count, spec.high - spec.low).astype(spec.dtype) + spec.dtype.type(spec.low)
    if spec.kind == "uniform":
        share = (words.random_raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        found = share * (float(spec.high) - float(spec.low)) + float(spec.low)
    else:
        halves = words.random_raw(6 * count).view(np.uint32).reshape(count, 12)
        found = halves.sum(1, dtype=np.uint64).astype(np.float64) * 2.0**-32 - 6.0
    if hasattr(ml_dtypes, spec.dtype.name):
        found = found.astype(np.float32)  # the same way to the shorter ones in every version
    return found.astype(spec.dtype)


def _below(words: np.random.Philox, count: int, limit: float) -> np.ndarray:
    return (words.random_raw(count) >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32)


def _mask(spec: InputSpec, words: np.random.Philox) -> np.ndarray:
    length, rows = spec.shape[-1], math.prod(spec.shape[:-1])
    ones = _below(words, rows, max(length, 1)).astype(np.int64) + 1
    ones[:1] = length
    return (np.arange(length) < ones[:, None]).reshape(spec.shape).astype(spec.dtype)
