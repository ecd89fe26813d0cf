"""Reading values: numbers, flags, dtypes and words as they stand in a configuration, and what a name's ending does to them."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from probe.settings.setting import Dialect, Kind, Setting

_DTYPES = {
    "float32": "float32", "fp32": "float32", "float": "float32", "f32": "float32", "32": "float32",
    "bfloat16": "bfloat16", "bf16": "bfloat16",
    "float16": "float16", "fp16": "float16", "half": "float16", "f16": "float16", "float64": "float64",
    "fp64": "float64", "double": "float64",
    "float8_e4m3fn": "float8", "fp8": "float8",
}  # fmt: skip
_TRUE = {"true", "yes", "on", "1", "t", "y", "enable", "enabled"}
_FALSE = {"false", "no", "off", "0", "f", "n", "disable", "disabled", "none", "null", ""}
_NOTHING = {"none", "null", ""}
_SAME = 1e-15
_PREFIXES = re.compile(r"^(?:torch|paddle|mindspore|ms|mstype|np|numpy|jnp)\.")
_PATTERN = re.compile(r"^[\d\s\[\]()+*,]{1,200}$")
_LONGEST_PATTERN = 10_000
"""elements of a list that is written as a product"""


class Unreadable(Exception):
    """A value is none of its setting's kind."""


def parsed(text: str) -> Any:
    """Return what a text on a command line, or behind a list's dots, means: a number, a flag, None, JSON, or the text."""
    text = text.strip()
    plain = text.lower()
    if plain in _NOTHING:
        return None
    if plain in ("true", "false"):
        return plain == "true"
    is_nested = text[:1] in "{[(" and text[-1:] in "}])"
    for reads in (json.loads, ast.literal_eval) if is_nested else (int, float):
        try:
            return reads(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return text.strip("'\"")


def normalised(row: Setting, value: Any, dialect: Dialect | None = None) -> Any:
    """Return a value as values of a setting are compared; None where it says nothing.

    Raises Unreadable where it is none of the setting's kind.
    """
    if isinstance(value, str) and value.strip().lower() in _NOTHING and row.kind is not Kind.CHOICE:
        value = None
    if value is None:
        return row.none
    if value == row.none:  # a default: "off"
        return value
    return _READERS[row.kind](row, value, dialect)


def _number(row: Setting, value: Any, dialect: Dialect | None) -> Any:
    if isinstance(value, bool):
        return float(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise Unreadable from None
    if math.isnan(number):
        raise Unreadable
    return row.none if row.none == "off" and number <= 0 else number


def _flag(row: Setting, value: Any, dialect: Dialect | None) -> bool:
    if isinstance(value, (bool, int, float)):
        return bool(value)
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise Unreadable


def _dtype(row: Setting, value: Any, dialect: Dialect | None) -> str | None:
    if isinstance(value, bool):
        raise Unreadable
    word = _PREFIXES.sub("", str(value).strip().lower())
    return None if word == "auto" else _DTYPES.get(word, word)


def _choice(row: Setting, value: Any, dialect: Dialect | None) -> str:
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, str):
        raise Unreadable
    word = value.strip().lower().rpartition(".")[2]
    own = f"{dialect}:{word}" if dialect else word
    return row.words.get(own, row.words.get(word, word))


def _text(row: Setting, value: Any, dialect: Dialect | None) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value).strip()


_READERS: dict[Kind, Callable[[Setting, Any, Dialect | None], Any]] = {
    Kind.NUMBER: _number, Kind.FLAG: _flag, Kind.DTYPE: _dtype, Kind.CHOICE: _choice, Kind.TEXT: _text,
}  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def alike(a: Any, b: Any, slack: float = 0.0) -> bool:
    """Return True if two normalised values mean the same; numbers may be apart by ``slack``."""
    if _is_number(a) and _is_number(b):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=_SAME) or abs(a - b) <= slack
    if isinstance(a, str) and isinstance(b, str):
        return a.lower() == b.lower()
    return a == b


# What stands behind a name's bar


def made(action: str, value: Any) -> Any:
    """Return what a name's ending makes of a value; `MISSING` where it then says nothing.

    Raises Unreadable where the ending is for other values.
    """
    name, _, argument = action.partition(":")
    try:
        return _ACTIONS[name](value, argument)
    except (TypeError, ValueError, LookupError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
        raise Unreadable from None


class _Missing:
    """Stands for a value that is not there."""


MISSING = _Missing()


def _is_true(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in _FALSE
    return bool(value)


def _item(at: int) -> Callable[[Any, str], Any]:
    def item(value: Any, _: str) -> Any:
        values = parsed(value) if isinstance(value, str) else value
        return values[at]

    return item


def _left_and_self(value: Any, _: str) -> Any:
    """Megatron counts the keys to the left of a query, others the query too."""
    if value is None:
        return "off"
    values = [int(each) for each in re.findall(r"-?\d+", str(value))]
    return "off" if values[0] < 0 else values[0] + 1


def _leading_zeros(value: Any, _: str) -> Any:
    """Return how many layers come before the first with experts: of ``[0]*3+[1]*58`` 3."""
    pattern = _pattern(value)
    if pattern is None:
        return MISSING
    return next((at for at, each in enumerate(pattern) if each), len(pattern))


def _pattern(value: Any) -> list[int] | None:
    """Return a list that is written as sums and products of lists, as Megatron reads them."""
    if isinstance(value, (list, tuple)):
        return [int(each) for each in value]
    if not isinstance(value, str) or not _PATTERN.match(value) or "[" not in value:
        return None
    return _of_pattern(ast.parse(value.strip(), mode="eval").body)


def _of_pattern(node: ast.expr) -> list[int]:
    if isinstance(node, ast.List):
        return [int(each.value) for each in node.elts if isinstance(each, ast.Constant)]  # type: ignore[arg-type]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_of_pattern(node.left), *_of_pattern(node.right)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Constant):
        times, of_one = int(node.right.value), _of_pattern(node.left)  # type: ignore[arg-type]
        if times * len(of_one) <= _LONGEST_PATTERN:
            return of_one * times
    raise ValueError


_ACTIONS: Mapping[str, Callable[[Any, str], Any]] = {
    "not": lambda value, _: MISSING if value is None else not _is_true(value),
    "means": lambda value, word: word if _is_true(value) and str(value).lower() != "auto" else MISSING,
    "is": lambda value, word: str(value).lower() == word,
    "is_not": lambda value, word: str(value).lower() != word,
    "unless": lambda value, word: MISSING if value is None or str(value).lower() == word else value,
    "first": _item(0),
    "second": _item(1),
    "left_and_self": _left_and_self,
    "leading_zeros": _leading_zeros,
    "number": lambda value, _: value if _is_number(value) else MISSING,
    "positive": lambda value, _: value if value is not None and float(value) > 0 else MISSING,
    "inverse_root": lambda value, _: MISSING if value is None else float(value) ** -0.5,
    "pre_or_post": lambda value, _: "pre" if _is_true(value) else "post",
    "is_fused": lambda value, _: MISSING if value is None else str(value).lower() != "eager",
    "is_set": lambda value, _: bool(value) and str(value).lower() not in _NOTHING,
    "is_glu": lambda value, _: True if str(value).lower() in ("swiglu", "geglu", "fusedswiglu") else MISSING,
    "is_gated": lambda value, _: str(value).lower().startswith("gated"),
    "ungated": lambda value, _: str(value).lower().removeprefix("gated-"),
}  # fmt: skip
"""what may stand behind a name's bar, with an argument behind a colon"""
