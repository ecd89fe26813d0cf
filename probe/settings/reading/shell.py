"""Options in a shell script: those of the command that trains, with variables, strings and arrays put in.

Nothing is run. What only a shell would know (a command's output, a condition on something unknown) is unknown.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import dropwhile, islice
from pathlib import Path
from typing import Any

from probe.settings.reading.shell_words import Command, closing, commands, split
from probe.settings.values import parsed

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PARAMETER = re.compile(r"(\w+|[@*#])(?:\[([@*]|\d+)\])?(.*)", re.DOTALL)
_OPTION = re.compile(r"--[A-Za-z]")
_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:[./]\w+)*)=(.*)", re.DOTALL)
"""of Hydra"""
_HOLDS_OPTIONS = re.compile(r"arg|opt|flag|extra|\[[@*]\]", re.IGNORECASE)
"""in the name of a variable that stands for several options"""
_IN_TEXT = re.compile(r"\s--[A-Za-z]|\s[\w.]+\.[\w.]+=")
_NUMBER = re.compile(r"-\.?\d")
_SUM = re.compile(r"[\d\s+*/()-]{1,100}")
_UNKNOWN, _UNSET, _OPTIONS = "\0", "\1", "\2"
"""stand for what only a shell would know, for a variable that the script does not set, and for options in one of these"""
_NOT_KNOWN = re.compile(f"[{_UNKNOWN}{_UNSET}{_OPTIONS}]")
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_LAUNCHING = ("exec", "time", "nohup", "do", "then", "else", "{", "!")
_RUN_OTHERS = ("eval", "bash", "sh", "srun", "ssh", "mpirun", "docker", "kubectl", "nohup", "ray")
_SUCCEED = ("cd", "mkdir", "echo", "set", "source", ".", ":", "true", "export", "ulimit", "module", "rm", "sleep")
_STOPS = ("|", "|&", "&", "&&", ";", ">", ">>", "&>", "2>&1")
"""what a command ends with that stands in a variable"""
_OPENING, _CONDITION = ("if", "for", "while", "until", "case", "select"), ("if", "elif", "while")
_CONTINUING = ("then", "do", "else")
_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_TESTS = {"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
          "-ge": operator.ge}  # fmt: skip
_DEEPEST = 20
_MOST, _MOST_WORDS, _LONGEST = 10_000, 100_000, 1 << 20


@dataclass
class Script:
    """What was found in a script."""

    options: dict[str, Any] = field(default_factory=dict)
    """by name, with _ for -; an option without a value is True"""
    variables: dict[str, str] = field(default_factory=dict)
    """environment variables that it exports"""
    unknown: frozenset[str] = frozenset()
    """options whose values only a shell knows"""
    is_complete: bool = True
    """no further options come from what only a shell knows"""


def script(text: str, folder: Path | None = None) -> Script:
    """Return the options of the command in a script that has the most of them, and what it exports.

    A file that only collects options, for another script to use, is taken as a whole. What a script in a folder sources from
    there is read too.
    """
    reader = _Reader(folder)
    reader.read(text)
    best = max(reader.commands, key=lambda words: len(_named(words)), default=[])
    if not _named(best):
        values = [value if isinstance(value, list) else split(value) for value in reader.values.values()]
        best = [word for words in values if words and _OPTION.match(words[0]) for word in words]
    return _script(_behind_launcher(best), reader)


def _named(words: list[str]) -> list[str]:
    return [word for word in words if _OPTION.match(word) or "." in word.partition("=")[0] and _OVERRIDE.match(word)]


@dataclass
class _Block:
    """A condition or a loop around commands."""

    word: str
    value: bool | None
    """whether this branch is taken; None where that is not known"""
    subject: str = ""
    """of a case"""
    is_done: bool | None = False
    """a branch before this one was taken"""
    is_pattern: bool = False
    """the next words are a pattern of a case"""


class _Reader:
    """Follows assignments and simple conditions."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.values: dict[str, str | list[str]] = {}
        self.exported: dict[str, str] = {}
        self.commands: list[list[str]] = []
        self.sources = False
        """it reads other files, whose variables are not known"""
        self._blocks: list[_Block] = []
        self._status: bool | None = True
        """of the command before"""
        self._is_condition = False
        """the commands up to ``then`` are a condition"""

    def read(self, text: str, depth: int = 0) -> None:
        """Follow the commands of a text."""
        for command in commands(text):
            self._take(command, depth)

    def _take(self, command: Command, depth: int) -> None:
        words, block = command.words, self._blocks[-1] if self._blocks else None
        if block is not None and block.is_pattern and words[0] != "esac":
            self._pattern(block, command)
        elif words[0] in _OPENING or words[0] == "elif" and block is not None:
            self._open(words)
        elif words[0] in _CONTINUING and block is not None:
            if words[0] == "else":
                block.value = _not(block.is_done)
            elif self._is_condition:
                self._is_condition = False
                if words[0] == "do":
                    self._status = _both(self._status, None)  # once or often
                block.value = self._status if block.is_done is False else _both(_not(block.is_done), self._status)
                block.is_done = _either(block.is_done, self._status)
            rest = [*dropwhile(_CONTINUING.__contains__, words)]
            if rest:
                self._take(Command(rest, "", command.after, command.body), depth)
        elif words[0] in ("fi", "done", "esac"):
            if self._blocks:
                self._blocks.pop()
        elif command.before in ("&&", "||") and self._status is (command.before == "||"):
            pass
        else:
            is_sure = command.before not in ("&&", "||") or self._status is not None
            self._run(command, depth, is_sure)
        if command.after == ";;" and self._blocks and self._blocks[-1].word == "case":
            self._blocks[-1].is_pattern = True

    def _open(self, words: list[str]) -> None:
        word = words[0]
        if word == "elif":
            self._blocks[-1].value = _not(self._blocks[-1].is_done)
        elif word == "case":
            subject = "".join(self._fields(words[1])) if len(words) > 1 else ""
            self._blocks.append(_Block(word, False, subject, is_pattern=True))
        else:
            if word in ("for", "select") and len(words) > 1:
                self.values[words[1]] = _UNKNOWN
            self._blocks.append(_Block(word, True if word in _CONDITION else None))
        if word in _CONDITION:
            self._is_condition, self._status = True, True
            self._run(Command(words[1:] or ["true"], "", "", ""), 0, True)

    def _pattern(self, block: _Block, command: Command) -> None:
        """Take a pattern of a case, which ends in a bracket."""
        words = command.words[1:] if command.words[0] in ("in", "case") else command.words
        if command.words[0] == "case" or not words:
            return
        for word in words:
            plain = "".join(self._fields(word))
            if _NOT_KNOWN.search(block.subject + plain):
                same: bool | None = None
            else:
                same = bool(re.fullmatch(re.escape(plain).replace(r"\*", ".*"), block.subject))
            block.value = _either(block.value if command.before == "|" else False, _both(_not(block.is_done), same))
        if command.after == ")":
            block.is_pattern = False
            block.is_done = _either(block.is_done, block.value)

    def _run(self, command: Command, depth: int, is_sure: bool) -> None:
        taken = [block.value for block in self._blocks]
        if False in taken:
            return
        is_sure = is_sure and None not in taken
        words = [*command.words]
        while words and words[0] in _LAUNCHING:
            words.pop(0)
        is_export = bool(words) and words[0] in ("export", "declare")
        if words and words[0] in _DECLARING:
            words = [word for word in words[1:] if not word.startswith("-")]
        has_words = any(_ASSIGNMENT.fullmatch(word) is None for word in words)
        while words and (match := _ASSIGNMENT.fullmatch(words[0])):
            words.pop(0)
            self._assign(match[1], match[3], bool(match[2]), is_export or has_words, is_sure)
        self._status = _both(self._status if self._is_condition and command.before == "&&" else True, self._held(words))
        if not words or is_export or self._is_condition:
            return
        if words[0] in ("source", "."):
            self._source("".join(self._fields(words[1])) if words[1:] else "", depth)
            return
        if words[0] == "read" and command.body:
            self._assign(words[-1], command.body, False, False, is_sure)
            return
        fields = [*islice((each for word in words for each in self._fields(word)), _MOST_WORDS)]
        fields = fields[: next((at for at, each in enumerate(fields) if each in _STOPS), None)]
        if fields and len(self.commands) < _MOST:
            self.commands.append(fields)
            if depth < 3 and fields[0].rpartition("/")[2] in _RUN_OTHERS:
                for text in filter(_IN_TEXT.search, [*fields, command.body]):
                    self.read(text, depth + 1)

    def _source(self, name: str, depth: int) -> None:
        """Read a file beside the script."""
        place = None if self.folder is None or not name or _NOT_KNOWN.search(name) else self.folder / name
        try:
            if place is None or depth > _DEEPEST or place.stat().st_size > _LONGEST:
                raise OSError
            text = place.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            self.sources = True
        else:
            self.read(text, depth + 1)

    def _held(self, words: list[str]) -> bool | None:
        """Return whether a test on known values holds; None where that is not known."""
        if not words:
            return True
        if words[0] == "!":
            return _not(self._held(words[1:]))
        if words[0] not in ("[", "[[", "test"):
            return True if words[0] in _SUCCEED else False if words[0] == "false" else None
        inside = [" ".join(self._fields(word)) for word in words[1:] if word not in ("]", "]]")]
        if len(inside) == 2 and inside[0] in ("-n", "-z"):
            if _UNKNOWN in inside[1]:
                return None
            return (inside[0] == "-n") == bool(inside[1].strip(_UNSET))
        if len(inside) != 3 or _NOT_KNOWN.search(inside[0] + inside[2]):
            return None
        if inside[1] in ("=", "==", "!="):
            return (inside[1] != "!=") == (inside[0] == inside[2])
        is_whole = all(re.fullmatch(r"-?\d{1,18}", each) for each in (inside[0], inside[2]))
        return _TESTS[inside[1]](int(inside[0]), int(inside[2])) if is_whole and inside[1] in _TESTS else None

    def _assign(self, name: str, raw: str, adds: bool, exports: bool, is_sure: bool) -> None:
        value: str | list[str]
        if raw.startswith("("):
            value = [each for found in commands(raw[1:-1], is_list=True) for word in found.words
                     for each in self._fields(word)]  # fmt: skip
        else:
            value = " ".join(self._fields(raw, splits=False))
        before = self.values.get(name, "")
        if adds and isinstance(before, list):
            value = [*before, *(value if isinstance(value, list) else [value])]
        elif adds:
            value = f"{before} {value}".strip() if isinstance(value, str) else [*split(before), *value]
        if not is_sure and value != before:
            value = [_UNKNOWN] if isinstance(value, list) else _UNKNOWN
        if (len(value) if isinstance(value, str) else sum(map(len, value))) > _LONGEST:
            value = _UNKNOWN
        self.values[name] = value
        if exports and isinstance(value, str) and not _NOT_KNOWN.search(value):
            self.exported[name] = value

    def _fields(self, word: str, *, splits: bool = True) -> list[str]:
        """Return the words that a word becomes: several where it is a variable outside of quotes, or an array."""
        found: list[str] = []
        is_open, size = False, 0
        for value, is_quoted in self._pieces(word, False, 0):
            if isinstance(value, str) and (is_quoted or not splits):
                parts = [value]
            else:
                words = value if isinstance(value, list) else split(value)
                parts = (
                    words if is_quoted or isinstance(value, str) else [each for word in words for each in word.split()]
                )
                is_open = is_open and not (isinstance(value, str) and value[:1].isspace())
            size += sum(map(len, parts))
            if is_open and parts:
                found[-1] += parts[0]
                parts = parts[1:]
            found += parts
            is_open = bool(found) and not (isinstance(value, str) and not is_quoted and value[-1:].isspace() and splits)
            if size > _LONGEST:
                return [_UNKNOWN]
        return found

    def _pieces(self, word: str, is_quoted: bool, depth: int) -> Iterator[tuple[str | list[str], bool]]:
        """Yield the parts of a word with variables put in, and whether each stands in quotes."""
        at = 0
        while at < len(word):
            sign, end = word[at], at + 1
            if sign == "\\":
                end = at + 2
                kept = word[at:end] if is_quoted and word[at + 1 : end] not in '"\\$`\n' else word[at + 1 : end]
                yield kept.removeprefix("\n"), True
            elif sign == "'" and not is_quoted:
                end = closing(word, at)
                yield word[at + 1 : end].removesuffix("'"), True
            elif sign == '"' and not is_quoted:
                end = closing(word, at)
                inner = word[at + 1 : end].removesuffix('"')
                yield from self._pieces(inner, True, depth) if inner else [("", True)]
            elif sign == "`":
                end = closing(word, at)
                yield _UNKNOWN, True
            elif sign == "$" and (match := re.compile(r"\w+|[@*#?$!-]").match(word, at + 1)):
                name = match[0] if match[0][0].isalpha() or match[0][0] == "_" else match[0][0]
                end = at + 1 + len(name)
                yield self._parameter(name, depth), is_quoted
            elif sign == "$" and word[at + 1 : at + 2] in ("(", "{"):
                end = closing(word, at + 1)
                inner = word[at + 2 : end - 1]
                if word[at + 1] == "{":
                    yield self._parameter(inner, depth), is_quoted
                else:
                    yield self._output(inner), is_quoted
            else:
                plain = re.compile(r"[^\\'\"`$]+" if not is_quoted else r"[^\\`$]+").match(word, at)
                end = plain.end() if plain else end
                yield word[at:end], True
            at = end

    def _parameter(self, text: str, depth: int) -> str | list[str]:
        """Return what stands in ``${…}``."""
        match = _PARAMETER.fullmatch(text)
        if match is None or depth > _DEEPEST:
            return _UNKNOWN
        name, index, rest = match[1], match[2], match[3]
        if name in "@*#":
            return "0" if name == "#" else []
        value = self.values.get(name)
        if isinstance(value, list) and index not in ("@", "*"):
            at = int(index or 0)
            value = value[at] if at < len(value) else ""
        if not rest and _HOLDS_OPTIONS.search(text) and (value is None or value == _UNKNOWN):
            return [_OPTIONS] if value or self.sources else []
        form = re.match(r":?[-=+]", rest)
        if form is None:
            return _UNKNOWN if rest else _UNSET if value is None else value
        otherwise = "".join(each if isinstance(each, str) else " ".join(each)
                            for each, _ in self._pieces(rest[form.end() :], False, depth + 1))  # fmt: skip
        if "+" in form[0]:
            return otherwise if value else ""
        return value if value or value is not None and ":" not in form[0] else otherwise

    def _output(self, text: str) -> str:
        """Return what a command in ``$(…)`` prints: a sum, or the script's folder; else it is unknown."""
        if text.startswith("(") and text.endswith(")"):
            return self._computed(text[1:-1])
        is_folder = "dirname" in text and ("BASH_SOURCE" in text or "$0" in text) and ".." not in text
        return str(self.folder) if is_folder and self.folder is not None else _UNKNOWN

    def _computed(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            known = self.values.get(found[1], _UNKNOWN)
            return known if isinstance(known, str) else _UNKNOWN

        text = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", value, text)
        try:
            return str(_sum(ast.parse(text.strip(), mode="eval").body)) if _SUM.fullmatch(text) else _UNKNOWN
        except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError):
            return _UNKNOWN


def _sum(node: ast.expr) -> int:
    """Return what numbers between + - * / come to."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_sum(node.left), _sum(node.right))
    raise ValueError


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _both(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _either(a: bool | None, b: bool | None) -> bool | None:
    return _not(_both(_not(a), _not(b)))


def _behind_launcher(words: list[str]) -> list[str]:
    """Leave out the options of torchrun and the like: what comes before the program."""
    programs = [at for at, word in enumerate(words) if word.endswith(".py")]
    programs += [at for at in range(1, len(words)) if words[at - 1] in ("-m", "--module") and "launch" not in words[at]]
    at = next((at for at in programs if _named(words[at:])), -1)
    return words[at + 1 :]


def _script(words: list[str], reader: _Reader) -> Script:
    """Take options by name; what follows one is its value, several values are a list."""
    found: dict[str, Any] = {}
    name, is_complete = "", True
    for word in words:
        override = _OVERRIDE.fullmatch(word)
        if _OPTION.match(word):
            name, sign, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            found[name] = parsed(value) if sign else True
            name = "" if sign else name
        elif override and (not name or found[name] is not True or "." in override[1]):
            found[override[1]], name = parsed(override[2]), ""
        elif word == _OPTIONS or word in (_UNKNOWN, _UNSET) and not (name and found[name] is True):
            is_complete = is_complete and word == _UNSET and not reader.sources
        elif name and not word.isspace() and not (word.startswith("-") and not _NUMBER.match(word)):
            value = parsed(word)
            known = found[name]
            found[name] = value if known is True else [*(known if isinstance(known, list) else [known]), value]
    for name in [each for each in found if each.startswith("no_") and found[each] is True]:
        found.setdefault(name.removeprefix("no_"), False)
    unknown = frozenset(
        name for name, value in found.items()
        if any(_NOT_KNOWN.search(str(each)) for each in (value if isinstance(value, list) else [value]))
    )  # fmt: skip
    options = {name: value for name, value in found.items() if name not in unknown}
    return Script(options, reader.exported, unknown, is_complete)
