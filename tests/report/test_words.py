"""The words of notes: each code has some, and no others do; they use the facts that the note has."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

from probe.comparison.notes import as_json, note
from probe.report.words import TABLES, WORDS

PACKAGE = Path(__file__).parent.parent.parent / "probe"


def made() -> Iterator[tuple[str, set[str], str]]:
    """Yield the code of each note that probe makes, the names of its facts, and where."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "from probe.comparison.notes import" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "note":
                (code,) = node.args
                if isinstance(code, ast.Constant):
                    yield code.value, {key.arg or "**" for key in node.keywords}, f"{path.name}:{node.lineno}"


def used(code: str) -> set[str]:
    """Return the names of the facts that the words of a code use."""
    words = WORDS[code]
    if isinstance(words, str):
        return {name.partition(".")[0].partition("[")[0] for _, name, *_ in string.Formatter().parse(words) if name}
    return set(signature(words).parameters)


def test_a_note_has_words_for_its_code_and_facts_for_its_words() -> None:
    found = list(made())
    assert len(found) > 100
    for code, facts, where in found:
        assert code in WORDS, f"{where}: give {code} words in probe/report/words"
        assert "**" in facts or used(code) <= facts, f"{where}: the words of {code} need {used(code) - facts}"
        if "**" not in facts and not isinstance(WORDS[code], str):
            assert used(code) == facts, f"{where}: the words of {code} take no {facts - used(code)}"


def test_no_code_has_two_words() -> None:
    assert len(WORDS) == sum(map(len, TABLES))


def test_a_note_is_json_with_its_code_its_facts_and_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORDS, "inner", "{count} of {names}")  # type: ignore[index]
    monkeypatch.setitem(WORDS, "outer", lambda first, inner: f"{first}: {inner}")  # type: ignore[index]
    said = note("outer", first="a", inner=note("inner", count=2, names=("x", "y")))
    inner = {"code": "inner", "facts": {"count": 2, "names": ["x", "y"]}, "text": "2 of ('x', 'y')"}
    assert as_json(said) == {"code": "outer", "facts": {"first": "a", "inner": inner}, "text": "a: 2 of ('x', 'y')"}
    assert len({said, note("outer", first="a", inner=note("inner", count=2, names=("x", "y")))}) == 1


# ---- nothing is decided by words ------------------------------------------------------------------------

NAMES = {"not judged", "not comparable", "the identity"}
"""of a pair of tensors, and what a function is called: names of several words"""
READERS = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "removeprefix",
    "removesuffix",
    "find",
    "index",
    "count",
}


def sentences(node: ast.AST, known: dict[str, ast.AST]) -> set[str]:
    """Return the texts of several words in an expression, those of the module's own constants among them."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and " " in each.value.strip():
            found.add(each.value)
        elif isinstance(each, ast.Name) and each.id in known:
            found |= sentences(known[each.id], {})
    return found - NAMES


def read(tree: ast.Module) -> set[str]:
    """Return the texts that a module compares with others, or looks for in them."""
    known = {
        target.id: node.value
        for node in tree.body if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name) and isinstance(node.value, (ast.Constant, ast.Tuple))
    }  # fmt: skip
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found |= sentences(node, known)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
            found |= set().union(*(sentences(each, known) for each in node.args))
    return found


def test_nothing_is_decided_by_what_a_sentence_says() -> None:
    deciding = [path for name in ("comparison", "matching") for path in (PACKAGE / name).rglob("*.py")]
    found = {path.name: read(ast.parse(path.read_text(encoding="utf-8"))) for path in deciding}
    assert found and not any(found.values()), "compare codes, or notes"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("if 'the loss differs' in said: pass", "the loss differs"),
        ("_LOSS = 'the loss'\nif finding.hint == _LOSS: pass", "the loss"),
        ("_OF = ('look at ', 'B has it')\nreturned = own.startswith(_OF)", "B has it"),
        ("if f'{count} of them' in texts: pass", " of them"),
    ],
)
def test_texts_that_decide_are_seen(code: str, text: str) -> None:
    assert text in read(ast.parse(code))
