"""Options in a shell script: those of the command that trains, with variables, strings and arrays put in where that is simple.

Nothing is run. What only a shell would know (a command's output, a condition on something unknown) stays out.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from probe.settings.values import parsed

_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?[-=]([^}]*))?\}|([A-Za-z_]\w*))")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")
_SUM = re.compile(r"^[\d\s+*/()-]{1,100}$")
_OPTION = re.compile(r"^--[A-Za-z]")
_NUMBER = re.compile(r"^-\d|^-\.\d")
_TEST = re.compile(r"^\[\[?\s+(.*?)\s+\]\]?$", re.DOTALL)
_UNKNOWN = "\0"
"""stands for what only a shell would know"""
_STOPS = {"|", "||", "&&", "&", ";", ">", ">>", "2>&1", "<"}
_WORDS = {"do", "done", "then", "else", "fi", "in", "exec", "time", "nohup"}
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_DEEPEST = 20
_MOST = 10_000


@dataclass
class Script:
    """What was found in a script."""

    options: dict[str, Any] = field(default_factory=dict)
    """by name, with _ for -; an option without a value is True"""
    variables: dict[str, str] = field(default_factory=dict)
    """environment variables that it exports"""


def script(text: str) -> Script:
    """Return the options of the command in a script that has the most of them, and what it exports.

    A file that only collects options, for another script to use, is taken as a whole.
    """
    reader = _Reader()
    for line in _statements(text):
        reader.take(line)
    best = max(reader.commands, key=lambda words: sum(map(bool, map(_OPTION.match, words))), default=[])
    if not any(map(_OPTION.match, best)):
        best = [word for value in reader.values.values() for word in _split(value) if value.lstrip().startswith("--")]
    return Script(_options(_behind_launcher(best)), reader.exported)


def _statements(text: str) -> Iterator[str]:
    """Yield the commands of a script: lines that go on are put together, comments and line ends inside of brackets left out."""
    statement, quote, depth = "", "", 0
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        kept, quote, depth = _scanned(line, quote, depth)
        statement += f"{kept}\n" if quote else f"{kept} "
        if not quote and depth == 0:
            yield from filter(None, map(str.strip, _parted(statement)))
            statement = ""
    if statement.strip():
        yield statement.strip()


def _scanned(line: str, quote: str, depth: int) -> tuple[str, str, int]:
    """Return a line without its comment, the quote that is still open, and how many round brackets are."""
    kept = ""
    for at, sign in enumerate(line):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (at == 0 or line[at - 1] in " \t(;"):
            break
        elif sign in "()":
            depth = max(depth + (1 if sign == "(" else -1), 0)
        kept += sign
    return kept, quote, depth


def _parted(statement: str) -> list[str]:
    """Return the commands between semicolons outside of quotes."""
    parts, quote = [""], ""
    for sign in statement:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == ";":
            parts.append("")
            continue
        parts[-1] += sign
    return parts


class _Reader:
    """Follows assignments and simple conditions."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        """of variables; elements of an array that hold blanks are quoted"""
        self.exported: dict[str, str] = {}
        self.commands: list[list[str]] = []
        self._taken: list[bool] = []
        """for each condition around a line: whether this branch is taken"""

    def take(self, statement: str) -> None:
        """Follow one command."""
        first, _, rest = statement.partition(" ")
        if first in ("if", "elif", "case", "for", "while", "until", "then", "else", "fi", "esac", "done"):
            self._branch(first, rest)
        elif all(self._taken):
            self._run(statement)

    def _branch(self, word: str, rest: str) -> None:
        if word in ("if", "case", "for", "while", "until"):
            self._taken.append(self._holds(rest) if word == "if" else False)
        elif word in ("fi", "esac", "done") and self._taken:
            self._taken.pop()
        elif word == "elif" and self._taken:
            self._taken[-1] = not self._taken[-1] and self._holds(rest)
        elif word == "else" and self._taken:
            self._taken[-1] = not self._taken[-1]
        if word in ("then", "else") and rest.strip():
            self.take(rest.strip())

    def _holds(self, condition: str) -> bool:
        """Tell whether a test on known values holds; False where that is not known."""
        match = _TEST.match(condition.strip())
        words = [_unquoted(self._filled(word)) for word in _split(match[1], keeps_quotes=True)] if match else []
        if len(words) == 2 and words[0] in ("-n", "-z"):
            return (words[0] == "-n") == bool(words[1].strip(_UNKNOWN))
        if len(words) == 3 and words[1] in ("=", "==", "-eq", "!=", "-ne") and _UNKNOWN not in words[0] + words[2]:
            return (words[1] in ("=", "==", "-eq")) == (words[0] == words[2])
        return False

    def _run(self, statement: str) -> None:
        is_export = statement.startswith(("export ", "declare -x "))
        rest = (
            statement.removeprefix("export ")
            .removeprefix("declare -x ")
            .removeprefix("local ")
            .removeprefix("readonly ")
            .strip()
        )
        words = list(_words(rest))
        while words and (match := _ASSIGNMENT.match(words[0])):
            words.pop(0)
            self._assign(match[1], match[3], adds=bool(match[2]), exports=is_export or any(map(_OPTION.match, words)))
        if is_export:
            return
        command = [each for word in words for each in self._expanded(word)]
        if len(self.commands) < _MOST and command:
            self.commands.append(_until_stop(command))

    def _assign(self, name: str, value: str, adds: bool, exports: bool) -> None:
        if value.startswith("("):
            made = " ".join(
                _quoted(each) for word in _words(value[1:].rpartition(")")[0]) for each in self._expanded(word)
            )
        else:
            made = _unquoted(self._filled(value))
        self.values[name] = f"{self.values.get(name, '')} {made}".strip() if adds else made
        if exports and _UNKNOWN not in made:
            self.exported[name] = made

    def _expanded(self, word: str) -> list[str]:
        """Return the words that a word becomes: several where it is a variable outside of quotes, or an array."""
        is_array = "[@]" in word or "[*]" in word
        filled = self._filled(word)
        if word[:1] in "'\"" and not is_array:
            return [_unquoted(filled)]
        return _split(_unquoted(filled) if word[:1] in "'\"" else filled)

    def _filled(self, text: str) -> str:
        """Put values in the place of variables, outside of single quotes."""
        if text.startswith("'"):
            return text
        for _ in range(_DEEPEST):
            filled = _ARITHMETIC.sub(self._computed, _VARIABLE.sub(self._value, text))
            if filled == text or len(filled) > 1 << 20:
                break
            text = filled
        return re.sub(r"\$\([^)]*\)|`[^`]*`|\$[\w*@#?]", _UNKNOWN, text)

    def _value(self, match: re.Match[str]) -> str:
        name, otherwise = match[1] or match[3], match[2]
        value = self.values.get(name, "")
        return value or (_unquoted(otherwise) if otherwise else value if name in self.values else _UNKNOWN)

    def _computed(self, match: re.Match[str]) -> str:
        text = re.sub(r"\b([A-Za-z_]\w*)\b", lambda found: self.values.get(found[1], _UNKNOWN), match[1])
        try:
            return str(_sum(ast.parse(text.strip(), mode="eval").body)) if _SUM.match(text) else _UNKNOWN
        except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
            return _UNKNOWN


def _sum(node: ast.expr) -> int:
    """Return what numbers between + - * / come to."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_sum(node.left), _sum(node.right))
    raise ValueError


def _words(text: str, keeps_quotes: bool = True) -> Iterator[str]:
    """Yield the words of a command, quotes and what is inside of brackets kept together."""
    word, quote, depth = "", "", 0
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "({":
            depth += 1
        elif sign in ")}":
            depth = max(depth - 1, 0)
        elif sign.isspace() and depth == 0:
            if word:
                yield word if keeps_quotes else _unquoted(word)
            word = ""
            continue
        word += sign
    if word:
        yield word if keeps_quotes else _unquoted(word)


def _split(text: str, keeps_quotes: bool = False) -> list[str]:
    return list(_words(text, keeps_quotes))


def _unquoted(text: str) -> str:
    """Take the quotes off a word, wherever they begin."""
    return re.sub(r"'([^']*)'|\"([^\"]*)\"", lambda match: match[1] if match[1] is not None else match[2], text)


def _quoted(word: str) -> str:
    return f"'{word}'" if any(map(str.isspace, word)) and "'" not in word else word


def _until_stop(words: list[str]) -> list[str]:
    """Return a command without what it is piped to."""
    end = next((at for at, word in enumerate(words) if word in _STOPS), len(words))
    return [word for word in words[:end] if word not in _WORDS]


def _behind_launcher(words: list[str]) -> list[str]:
    """Leave out the options of torchrun and the like: what comes before the program."""
    programs = [at for at, word in enumerate(words) if word.endswith(".py")]
    at = next((at for at in programs if any(map(_OPTION.match, words[at:]))), -1)
    return words[at + 1 :]


def _options(words: list[str]) -> dict[str, Any]:
    """Return options by name; what follows one is its value, several values are a list."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if _OPTION.match(word):
            name, _, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            found[name] = parsed(value) if value else True
        elif name and not (word.startswith("-") and not _NUMBER.match(word)):
            value = parsed(word)
            known = found[name]
            found[name] = value if known is True else [*(known if isinstance(known, list) else [known]), value]
    for name in [each for each in found if each.startswith("no_") and found[each] is True]:
        found.setdefault(name.removeprefix("no_"), False)
    return {name: value for name, value in found.items() if not (isinstance(value, str) and _UNKNOWN in value)}
