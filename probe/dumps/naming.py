"""Patterns for names: which step, module, call, role and slot a file's or a tensor's name says.

``step{step:int}/{module}.{call:int}.{role}.{slot}.npy`` reads ``step3/layers.0.mlp.1.output.0.npy``. ``{role=param_grad}``
says what the names do not. A pattern with ``(?P<module>…)`` is a regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from probe.dumps.seen import PHASES
from probe.errors import ConfigError
from probe.records import Role

_ROLES = {role.label: role for role in PHASES} | {"in": Role.INPUT, "out": Role.OUTPUT, "parameter": Role.PARAM}
_NUMBER = r"\d{1,18}"
_WORDS = {
    "step": _NUMBER, "rank": _NUMBER, "micro": _NUMBER, "call": _NUMBER, "order": _NUMBER, "module": ".+", "slot": ".+", "dtype": r"\w+",
    "role": "|".join(map(re.escape, sorted(_ROLES, key=len, reverse=True))),
}  # fmt: skip
"""what a pattern may name, and how it looks"""
_TOKEN = re.compile(r"\{(\w+)(?::(\w+)|=([^{}]*))?\}")
MINDSPORE = (
    r"(?:(?:(?:(?:.*/)?rank_(?P<rank>\d+)/)?(?:.*/)?\d+/)?(?P<step>\d+)/)?\w+\.(?P<module>[^./]+)\.\d+\.\d+\.(?P<order>\d{10,18})"
    r"\.(?P<role>input|output)\.(?P<slot>\d+)\.\w+(?:\.(?P<dtype>\w+))?\.npy"
)
"""how MindSpore's Dump calls a tensor, below ``rank_0/Net/0/0``; older versions leave out the dtype"""
_PASSES = r"(?:.*/)?TP\d+_PP\d+_Rank(?P<rank>\d{1,9})_pid\d+/Pass(?P<step>\d{1,18})\.pt/(?P<module>.+)"
"""SGLang's ``--debug-tensor-dump-output-folder``: a file for each forward pass"""
_PLACES = "step{step}/rank{rank}/", "step{step}/", "rank{rank}/", ""
_DEFAULTS = (MINDSPORE, _PASSES, *(f"{place}{{module}}" for place in _PLACES))


@dataclass(frozen=True, slots=True)
class Named:
    """What a name says."""

    module: str
    step: int = 0
    rank: int = 0
    micro: int = 0
    call: int = 0
    order: int = -1  # not said
    role: Role = Role.OUTPUT
    slot: str = "0"
    dtype: str = ""
    """of which the file may have but the bits, or wider numbers"""


Pattern = tuple[re.Pattern[str], dict[str, str]]
"""an expression, and what it says of every name"""


def patterns_of(pattern: str | None) -> list[Pattern]:
    """Return what names are held against, one after the other.

    None is the default: the name is the path of a module, below folders ``step3`` and ``rank0``, the tensor its output 0.
    Raises ConfigError where it is no pattern.
    """
    return [_compiled(each) for each in (_DEFAULTS if pattern is None else (pattern,))]


def said_by(name: str, patterns: Sequence[Pattern], suffixes: Sequence[str]) -> Named | None:
    """Return what a name says, whose suffix a pattern need not have; None where it does not fit."""
    bare = next((name.removesuffix(each) for each in suffixes if name.endswith(each)), name)
    for regex, constants in patterns:
        has_suffix = regex.pattern.rstrip("$)").endswith(tuple(map(re.escape, suffixes)))
        if found := regex.fullmatch(name if has_suffix else bare):
            said = constants | {key: text for key, text in found.groupdict().items() if text is not None}
            numbers = {
                key: int(said[key]) for key in _WORDS if _WORDS[key] == _NUMBER and said.get(key, "").isdecimal()
            }
            module, role = said.get("module", "").replace("/", ".").strip("."), _ROLES.get(said.get("role", "output"))
            if role is None or max((number for key, number in numbers.items() if key != "order"), default=0) >= 2**31:
                continue
            return Named(module, role=role, slot=said.get("slot", "0"), dtype=said.get("dtype", ""), **numbers)
    return None


def _compiled(pattern: str) -> Pattern:
    constants: dict[str, str] = {}
    text, end = "" if "(?P<" not in pattern else pattern, 0
    for token in _TOKEN.finditer(pattern) if not text else ():
        name, _, value = token.groups()
        text += re.escape(pattern[end : token.start()])
        text += f"(?P<{name}>{_WORDS.get(name, '')})" if value is None else ""
        constants |= {name: value} if value is not None else {}
        end = token.end()
    try:
        regex = re.compile(text if "(?P<" in pattern else text + re.escape(pattern[end:]))
    except re.error as error:
        raise ConfigError(f"--pattern {pattern!r} cannot be read: {error}") from None
    for name in [*regex.groupindex, *constants]:
        if name not in _WORDS:
            raise ConfigError(f"--pattern {pattern!r}: {{{name}}} is not known; expected {', '.join(_WORDS)}")
    if "module" not in {*regex.groupindex, *constants} or constants.get("role", "output") not in _ROLES:
        raise ConfigError(f"--pattern {pattern!r} needs a {{module}}, and a role of {', '.join(_ROLES)}")
    return regex, constants
