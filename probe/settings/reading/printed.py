"""Arguments as programs print them: Megatron's list with dots, ``Namespace(…)``, ``TrainingArguments(…)``, ``LlamaConfig {…}``."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from probe.settings.values import parsed

_DOTTED = re.compile(r"(?:^|\s)([A-Za-z_]\w*) \.{2,} (.*)$")
_ASSIGNED = re.compile(r"^\s*([A-Za-z_]\w*)\s*=\s*(.*?),?\s*$")
_KEYED = re.compile(r"^\s*[\"']?([A-Za-z_][\w.]*)[\"']?\s*:\s+(.*?),?\s*$")
_CALLED = re.compile(r"\b([A-Z]\w*)\(")
_FEW = 3
"""lines below which a text is no list of arguments"""


def printed_arguments(text: str) -> dict[str, Any]:
    """Return the arguments that a text lists; nothing where it lists none."""
    for reads in (_dotted, _printed_json, _called, _literal, _lines):
        found = reads(text)
        if len(found) >= _FEW:
            return found
    return {}


def _dotted(text: str) -> dict[str, Any]:
    """Read ``  num_layers ....... 24``, behind a rank or a time too."""
    matches = filter(None, map(_DOTTED.search, text.splitlines()))
    return {match[1]: parsed(match[2]) for match in matches}


def _printed_json(text: str) -> dict[str, Any]:
    """Read a configuration that transformers prints: its class, and JSON behind it."""
    start = text.find("{")
    if start < 0:
        return {}
    try:
        found, _ = json.JSONDecoder().raw_decode(text[start:])
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _called(text: str) -> dict[str, Any]:
    """Read ``Namespace(num_layers=24, …)``, on one line or on many."""
    match = _CALLED.search(text)
    if match is None:
        return {}
    lines = {each[1]: each[2] for each in map(_ASSIGNED.match, text[match.end() :].splitlines()) if each}
    if len(lines) >= _FEW:
        return {name: _value(value) for name, value in lines.items()}
    try:
        body = ast.parse(_whole(text[match.start() :]), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {each.arg: _of_node(each.value) for each in body.keywords if each.arg} if isinstance(body, ast.Call) else {}


def _whole(text: str) -> str:
    """Return a text up to the bracket that closes its first one."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and sign == ")":
            return text[: at + 1]
    return text


def _literal(text: str) -> dict[str, Any]:
    """Read a dict as Python prints it."""
    start = text.find("{")
    if start < 0:
        return {}
    try:
        found = ast.literal_eval(text[start : text.rfind("}") + 1])
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return {}
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def _lines(text: str) -> dict[str, Any]:
    """Read a line for each argument: ``num_layers: 24`` or ``num_layers=24``."""
    matches = [_KEYED.match(line) or _ASSIGNED.match(line) for line in text.splitlines()]
    found = [each for each in matches if each]
    is_list = len(found) * 2 > sum(bool(line.strip()) for line in text.splitlines())
    return {each[1]: _value(each[2]) for each in found} if is_list else {}


def _value(text: str) -> Any:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else parsed(text)


def _of_node(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
