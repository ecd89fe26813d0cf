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

_ROLES = {role.label: role for role in PHASES} | {
    "in": Role.INPUT, "inputs": Role.INPUT, "out": Role.OUTPUT, "outputs": Role.OUTPUT, "grad": Role.PARAM_GRAD,
    "weight": Role.PARAM, "parameter": Role.PARAM,
}  # fmt: skip
_NUMBER = r"\d{1,9}"
_WORDS = {
    "step": _NUMBER, "rank": _NUMBER, "micro": _NUMBER, "call": _NUMBER, "order": _NUMBER, "module": ".+", "slot": ".+",
    "role": "|".join(map(re.escape, sorted(_ROLES, key=len, reverse=True))),
}  # fmt: skip
"""what a pattern may name, and how it looks"""
_TOKEN = re.compile(r"\{(\w+)(?::(\w+)|=([^{}]*))?\}")
_DEFAULTS = ("step{step}/rank{rank}/{module}", "step{step}/{module}", "rank{rank}/{module}", "{module}")


@dataclass(frozen=True, slots=True)
class Named:
    """What a name says."""

    module: str
    step: int = 0
    rank: int = 0
    micro: int = 0
    call: int = 0
    order: int = -1
    """−1 where the name does not say it"""
    role: Role = Role.OUTPUT
    slot: str = "0"


class Naming:
    """A pattern, or the default: the name is the path of a module, the tensor its output 0.

    Parameters
    ----------
    pattern
        None for the default, which also knows folders ``step3`` and ``rank0``
    suffixes
        of files, which a pattern need not have

    Raises
    ------
    ConfigError
        it is no pattern
    """

    def __init__(self, pattern: str | None, suffixes: Sequence[str] = ()) -> None:
        patterns = _DEFAULTS if pattern is None else (pattern,)
        self._known = [_compiled(each) for each in patterns]
        self._suffixes = tuple(suffixes)
        self.has_order = pattern is not None and "order" in self._known[0][0].groupindex

    def read(self, name: str) -> Named | None:
        """Return what a name says; None where it does not fit."""
        bare = next((name.removesuffix(each) for each in self._suffixes if name.endswith(each)), name)
        for regex, constants in self._known:
            found = regex.fullmatch(name) if bare != name and self._takes_suffix(regex) else regex.fullmatch(bare)
            if found is not None:
                return _named(
                    {**constants, **{key: text for key, text in found.groupdict().items() if text is not None}}
                )
        return None

    def _takes_suffix(self, regex: re.Pattern[str]) -> bool:
        return any(regex.pattern.endswith((re.escape(each), each)) for each in self._suffixes)


def _named(said: dict[str, str]) -> Named:
    numbers = {name: int(said[name]) for name in ("step", "rank", "micro", "call", "order") if name in said}
    role = _ROLES.get(said.get("role", "output"))
    if role is None:
        raise ConfigError(f"role {said['role']!r} is not known; expected {', '.join(_ROLES)}")
    return Named(said["module"].replace("/", ".").strip("."), role=role, slot=said.get("slot", "0"), **numbers)


def _compiled(pattern: str) -> tuple[re.Pattern[str], dict[str, str]]:
    constants: dict[str, str] = {}
    text, parts, end = pattern, [], 0
    if "(?P<" not in pattern:
        for token in _TOKEN.finditer(pattern):
            name, _, value = token.groups()
            parts.append(re.escape(pattern[end : token.start()]))
            end = token.end()
            if name in _WORDS and value is None:
                parts.append(f"(?P<{name}>{_WORDS[name]})")
            constants |= {name: value} if value is not None else {}
            _require_known(pattern, [name])
        text = "".join([*parts, re.escape(pattern[end:])])
    try:
        regex = re.compile(text)
    except re.error as error:
        raise ConfigError(f"--pattern {pattern!r} cannot be read: {error}") from None
    _require_known(pattern, [*regex.groupindex])
    if "module" not in {*regex.groupindex, *constants}:
        raise ConfigError(
            f"--pattern {pattern!r} has no {{module}}: expected for example '{{module}}.{{role}}.{{slot}}.npy'"
        )
    return regex, constants


def _require_known(pattern: str, names: Sequence[str]) -> None:
    for name in names:
        if name not in _WORDS:
            raise ConfigError(f"--pattern {pattern!r}: {{{name}}} is not known; expected {', '.join(_WORDS)}")
