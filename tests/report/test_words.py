"""The words of notes: each code has some, and no others do; they use the facts that the note has."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

from probe.answer.why import ANSWERS, LEFT
from probe.notes import as_json, note
from probe.report.words import TABLES, WORDS
from probe.report.words.forms import filled

PACKAGE = Path(__file__).parent.parent.parent / "probe"


GIVE_CODES = {"finds", "Wrong", "Verdict"}
"""what the verdict calls with the code of a tensor or a finding"""
GIVE_NOTES = re.compile("^from probe.(notes|checks.outcome) import", re.MULTILINE)
CODE_AT = {"note": 0, "_doubt": 0, "fault": 1, "fine": 1, "unchecked": 1}
"""which argument is the code, by what makes a note, or a line of a check"""
DYNAMIC = ("rotary-", "logprobs-")
"""beginnings of codes of which the rest is computed"""


def sources() -> list[Path]:
    """Return the files that give codes."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "comparison" not in path.relative_to(PACKAGE).parts[:1])


def made() -> Iterator[tuple[str, set[str], str]]:
    """Yield the code of each note that probe makes, the names of its facts, and where."""
    for path in sources():
        text = path.read_text(encoding="utf-8")
        if not GIVE_NOTES.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in CODE_AT:
                at = CODE_AT[getattr(node.func, "id", getattr(node.func, "attr", ""))]
                code = node.args[at] if len(node.args) > at else None
                if isinstance(code, ast.Constant):
                    yield code.value, {key.arg or "**" for key in node.keywords}, f"{path.name}:{node.lineno}"


def used(code: str) -> set[str]:
    """Return the names of the facts that the words of a code use."""
    words = WORDS[code]
    return set(fields(words)) if isinstance(words, str) else set(signature(words).parameters)


def fields(template: str) -> Iterator[str]:
    """Yield the names of the facts in a template, those in its choices too."""
    for _, names, spec, _ in string.Formatter().parse(template):
        for name in names.split(",") if names and not names.isdigit() else ():
            yield re.split(r"[.\[]", name)[0]
        yield from fields(spec) if spec else ()


def test_a_note_has_words_for_its_code_and_facts_for_its_words() -> None:
    found = list(made())
    assert len(found) > 100
    for code, facts, where in found:
        assert code in WORDS, f"{where}: give {code} words in probe/report/words"
        assert "**" in facts or used(code) <= facts, f"{where}: the words of {code} need {used(code) - facts}"
        if "**" not in facts and not isinstance(WORDS[code], str):
            assert used(code) == facts, f"{where}: the words of {code} take no {facts - used(code)}"


def test_every_sentence_has_a_code_that_is_given() -> None:
    given = set()
    for path in PACKAGE.rglob("*.py"):
        is_words = path.is_relative_to(PACKAGE / "report" / "words")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_note = (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("note", "Note")
            )
            inside = ast.walk(node) if is_note or not is_words else ()
            given |= {each.value for each in inside if isinstance(each, ast.Constant)}
    given |= set(
        re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", (PACKAGE / "diagnosis" / "hints.yaml").read_text(encoding="utf-8"))
    )
    unsaid = [code for code in WORDS if code not in given and not code.startswith(DYNAMIC)]
    assert not unsaid, "nothing gives these codes: delete their words"


def test_every_code_of_a_tensor_and_of_a_finding_has_a_sentence() -> None:
    given = set()
    for path in (PACKAGE / "verdict").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in GIVE_CODES:
                texts = (each.value for arg in (*node.args, *node.keywords) for each in ast.walk(arg)
                         if isinstance(each, ast.Constant) and isinstance(each.value, str))  # fmt: skip
                given |= {text for text in texts if re.fullmatch("[a-z]+(-[a-z]+)*", text)}
    assert len(given) > 20 and given <= LEFT.keys() | ANSWERS.keys(), given - LEFT.keys() - ANSWERS.keys()


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

NAMES = {"not judged", "not comparable", "the identity", "wall time", "Chip Name", "NPU ID"}
"""of a pair of tensors, of a function, of a column, of what npu-smi prints: names of several words"""
DECIDING = ("verdict", "matching", "curve_comparison", "checks", "settings")
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
    deciding = [path for name in DECIDING for path in (PACKAGE / name).rglob("*.py")]
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


# ---- how a template writes its facts --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "facts", "text"),
    [
        ("{error:.1e} at {path:root}", {"error": 0.012, "path": ""}, "1.2e-02 at the root"),
        ("{count:many pair} {count:1?is|are} off", {"count": 1}, "1 pair is off"),
        ("{count:many pair} {count:1?is|are} off", {"count": 2}, "2 pairs are off"),
        ("{names:1?one|{names:number}}", {"names": ["a", "b"]}, "2"),
        ("{side:A?less|more}", {"side": "B"}, "more"),
        ("off{why:?: {why}|.}", {"why": None}, "off."),
        ("off{why:?: {why}|.}", {"why": "a|b"}, "off: a|b"),
        ("{a:?a {b:?b|c}|d}{e:?f}", {"a": True, "b": "", "e": ()}, "a c"),
        ("{by:?{by:g} given}", {"by": 0.0}, "0 given"),
        ("{a,b:in-each}", {"a": ["x.1", "x.2"], "b": []}, "x.* ×2 in A"),
        ("{places[0]}{places:1?| and {places:less-one} more}", {"places": ["x", "y", "z"]}, "x and 2 more"),
        ("0.{key}: layers.{{i+8}}", {"key": "k"}, "0.k: layers.{i+8}"),
        ("{a:=b?{a} on both|{a}, {b}}", {"a": 1, "b": 2}, "1, 2"),
        ("{taken:each {0} for {1}}", {"taken": (("q", "k"), ("k", "q"))}, "q for k, k for q"),
        ("{name!r} of {names:join or}", {"name": "n", "names": ("a", "b")}, "'n' of a or b"),
    ],
)
def test_fields_choose_and_write(template: str, facts: dict[str, object], text: str) -> None:
    assert filled(template, facts) == text
