"""Lines put into the text of a mapping."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from probe.errors import MappingError
from probe.mapping import library
from probe.mapping.adding import Line, with_lines
from probe.mapping.parsing import parse_mapping

TEXT = """\
# by hand
GPTModel:   # the root
  decoder.layers: model.layers

SelfAttention:
    linear_qkv:   # group by group
        to: [q_proj, k_proj, v_proj]
        split: {groups: 2}
    # not named: core_attention

# what is left out
ignore:
- "**.dropout"
"""


def test_a_line_stands_at_the_end_of_its_section_and_nothing_else_changes() -> None:
    found = with_lines(
        TEXT, "map.yaml", [Line("SelfAttention", "linear_proj", "o_proj"), Line("TopLayer", "out", "head")]
    )
    before, after = TEXT.splitlines(), found.splitlines()
    assert [line for line in after if line not in before] == ["    linear_proj: o_proj", "TopLayer:", "  out: head"]
    assert [line for line in after if line in before and line] == [line for line in before if line]
    assert after.index("    linear_proj: o_proj") == before.index("        split: {groups: 2}") + 1
    assert found.endswith('- "**.dropout"\n\nTopLayer:\n  out: head\n')


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", Line("TopLayer", "0", "layers.1"), 'TopLayer:\n  "0": layers.1\n'),
        ("A:\n  b: c", Line("A", "d", "e"), "A:\n  b: c\n  d: e\n"),
        ("A:\r\n  b: c # why\r\n# end\r\n", Line("A", "d", "e"), "A:\r\n  b: c # why\r\n  d: e\r\n# end\r\n"),
        ("A?:\n  b: c\n", Line("A", "d", "e"), "A?:\n  b: c\n  d: e\n"),
        ("A:\n  b: {to: [c,\n    d]}\nB:\n  x: z\n", Line("A", "e", "f"), "A:\n  b: {to: [c,\n    d]}\n  e: f\nB:\n  x: z\n"),
        ("", Line("A", "b", ("c", "d")), "A:\n  b: {to: [c, d], split: {groups: as_recorded}}\n"),
        ("", Line("A", ("c", "on"), "b"), 'A:\n  b: {from: [c, "on"], split: {groups: as_recorded}}\n'),
        ("# nothing yet\n", Line("/text.head", "on", "y"), '# nothing yet\n\n"/text.head":\n  "on": "y"\n'),
    ],
    ids=["empty", "no end of line", "carriage returns", "optional section", "over two lines", "several there", "several here", "words of YAML"],
)  # fmt: skip
def test_where_and_how(text: str, line: Line, expected: str) -> None:
    assert with_lines(text, "map.yaml", [line]) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"A": {"b": "c"}}', "map.yaml, line 1: is written in braces, into which nothing can be put; write it as lines, as in d: e"),
        ("A: {b: c}\n", "map.yaml, line 1: A: is written in one line; write it as lines, as in d: e"),
        ("- A\n", "map.yaml, line 1: expected sections named by a module class"),
        ("A:\n  d: c\n", "map.yaml, line 3: d stands here a second time; the first is on line 2"),
        ("A: [\n", "map.yaml, line 1: not valid YAML"),
    ],
)  # fmt: skip
def test_what_cannot_take_a_line(text: str, message: str) -> None:
    with pytest.raises(MappingError) as raised:
        with_lines(text, "map.yaml", [Line("A", "d", "e")])
    assert str(raised.value).startswith(message)


@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_names_are_never_yaml(key: str, target: str) -> None:
    """Whatever they are, one entry more is there, or none and an error."""
    try:
        found = with_lines(TEXT, "map.yaml", [Line("GPTModel", key, target)])
    except MappingError:
        return
    expected = yaml.safe_load(TEXT)
    expected["GPTModel"][key] = target
    assert yaml.safe_load(found) == expected


@pytest.mark.parametrize("name", library())
def test_every_mapping_that_comes_with_probe_takes_lines(name: str) -> None:
    text = library()[name].read_text(encoding="utf-8")
    sections = [section.name for section in parse_mapping(text, name).sections]
    added = [Line(section, "of.the.test", "there") for section in sections]
    found, before = yaml.safe_load(with_lines(text, name, added)), yaml.safe_load(text)
    changed = {key: value for key, value in found.items() if before.get(key) != value}
    assert len(changed) == len(set(sections)) and all(each.pop("of.the.test") == "there" for each in changed.values())
    assert found == before
