"""The commands of a shell script and their words, with quotes and what is in brackets as they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_CLOSING = {"'": "'", '"': '"', "`": "`", "(": ")", "{": "}"}
_OPERATOR = re.compile(r"&&|\|\||;;&?|;&|<<<|<<-?|&>>?|>>|[<>]&|>\||\|&|[\n;&|()<>]")
_PLAIN = re.compile(r"[^\s\\'\"`$#;&|()<>]+")
_QUOTED_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"]|['\"])+")
_QUOTED = re.compile(r"(?:^|(?<==))(['\"])([^'\"]*)\1$")
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class Command:
    """A command."""

    words: list[str]
    before: str
    """the operator between it and the one before"""
    after: str
    """the operator behind it"""
    body: str
    """of a here-document"""


def closing(text: str, at: int, depth: int = 0) -> int:
    """Return the place behind the quote or bracket that opens at a place; the end of the text where it is not closed."""
    opening = text[at]
    if opening == "'":
        return (text.find("'", at + 1) + 1) or len(text)
    end, at = _CLOSING[opening], at + 1
    while at < len(text) and depth < _DEEPEST:
        sign = text[at]
        if sign == "\\":
            at += 2
            continue
        if sign == end:
            return at + 1
        is_expansion = sign == "$" and text[at + 1 : at + 2] in ("(", "{")
        if is_expansion and opening != "`":
            at = closing(text, at + 1, depth + 1)
        elif opening in "({" and sign in "'\"`(" or opening == '"' and sign == "`":
            at = closing(text, at, depth + 1)
        elif opening == "(" and sign == "#" and text[at - 1] in " \t\n(":
            at = _line_end(text, at)
        else:
            at += 1
    return len(text)


def commands(text: str, *, is_list: bool = False) -> Iterator[Command]:
    """Yield the commands of a script without comments; of an array's elements, in which line ends are blanks, one."""
    words: list[str] = []
    waiting: list[tuple[str, bool]] = []
    before, body = "", ""
    for token, is_operator in _tokens(text.replace("\r\n", "\n"), waiting):
        if not is_operator:
            words.append(token)
        elif token[0] in "\2":
            body = token[1:]
        elif not is_list:
            if words or token == ";;":
                yield Command(words or [":"], before, token, body)
            elif token == "\n" and before in ("&&", "||", "|"):
                continue
            words, before, body = [], token, ""
    if words:
        yield Command(words, before, "\n", body)


def _tokens(text: str, waiting: list[tuple[str, bool]]) -> Iterator[tuple[str, bool]]:
    """Yield words, operators, and here-documents behind a ``\\2``; redirections are left out."""
    at, word, is_target, tests = 0, "", "", False
    while at < len(text):
        sign, end = text[at], at + 1
        if text.startswith("\\\n", at):
            at += 2
            continue
        if sign == "\\":
            end = at + 2
        elif sign in "'\"`":
            end = closing(text, at)
        elif sign == "$" and text[at + 1 : at + 2] in ("(", "{"):
            end = closing(text, at + 1)
        elif sign == "(" and word.endswith("="):
            end = closing(text, at)
        elif sign == "#" and not word:
            at = _line_end(text, at)
            continue
        elif sign in " \t\n" or sign in ";&|()<>" and not (tests and word != "]]"):
            operator = _OPERATOR.match(text, at)
            end = operator.end() if operator else end
            is_number = operator is not None and word.isdecimal() and sign in "<>"
            if word and not is_target and not is_number:
                tests = word == "[[" or tests and word != "]]"
                yield word, False
            elif is_target.startswith("<<") and word:
                waiting.append((re.sub(r"[\\'\"]", "", word), is_target == "<<-"))
            is_target = "" if word or operator else is_target
            word = ""
            if operator and sign in "<>" or operator and operator[0] in ("&>", "&>>"):
                is_target = operator[0]
            elif operator and operator[0] == "\n":
                tests = False
                for mark, is_indented in waiting:
                    here, end = _here_document(text, end, mark, is_indented)
                    yield f"\2{here}", True
                waiting.clear()
                yield "\n", True
            elif operator:
                yield operator[0], True
            at = end
            continue
        elif plain := _PLAIN.match(text, at):
            end = plain.end()
        word += text[at:end]
        at = end
    if word and not is_target:
        yield word, False


def _here_document(text: str, at: int, mark: str, is_indented: bool) -> tuple[str, int]:
    """Return a here-document that begins at a place, and the place behind it."""
    start = at
    while at < len(text):
        end = _line_end(text, at)
        line = text[at:end]
        if (line.lstrip("\t") if is_indented else line) == mark:
            return text[start:at], min(end + 1, len(text))
        at = end + 1
    return text[start:], len(text)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def split(text: str) -> list[str]:
    """Return the words of a value, without quotes around them."""
    return [_QUOTED.sub(r"\2", word) for word in _QUOTED_WORD.findall(text)]
