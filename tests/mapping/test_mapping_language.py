"""The language of layer mappings: patterns, lists, layouts, what is left out, and the error of each mistake."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.errors import MappingError
from probe.mapping import ParameterRule, Split, load_mapping
from probe.mapping.parsing import parse_mapping
from probe.mapping.patterns import binds, filled, parsed_key, parsed_path, parsed_section, places
from tests.published.trees import tree

# What is parsed


@pytest.mark.parametrize(
    ("text", "names", "class_name", "rank"),
    [
        ("TopLayer", (), "", (True, 0, False)),
        ("MLP", None, "MLP", (False, 0, True)),
        ("text.**/MLP", ("**", "text", "**"), "MLP", (True, 1, True)),
        ("text.decoder.*.mlp", ("**", "text", "decoder", "*", "mlp"), "", (True, 3, False)),
        ("/model.visual", ("model", "visual"), "", (True, 2, False)),
        ("/", (), "", (True, 0, False)),
        ("layers.{i}", ("**", "layers", "{i}"), "", (True, 1, False)),
        ("**/Identity", ("**", "**"), "Identity", (True, 0, True)),
    ],
)
def test_names_of_sections(
    text: str, names: tuple[str, ...] | None, class_name: str, rank: tuple[bool, int, bool]
) -> None:
    section = parse_mapping(f"{text!r}: {{a: b}}", "m").sections[0]
    assert (section.path and section.path.names) == names
    assert (section.class_name, section.rank, section.name) == (class_name, rank, text)


def test_the_long_form_and_the_short_one() -> None:
    long = parse_mapping("A:\n  qkv:\n    to: [q, k, v]\n", "m").rules[0]
    short = parse_mapping("A:\n\n  qkv: [q, k, v]\n", "m").rules[0]
    assert long.targets == short.targets == (("q",), ("k",), ("v",))
    assert (long.line, short.line, str(short)) == (2, 3, "line 3: A: qkv: [q, k, v]")
    assert short.split == Split(1, 0, ())


@pytest.mark.parametrize(
    ("text", "split", "target"),
    [
        ("{groups: 4}", Split(4), "q"),
        ("{groups: num_query_groups}", Split("num_query_groups"), "q"),
        ("{groups: text_config.kv_heads}", Split("text_config.kv_heads"), "q"),
        ("{order: [k, q, v]}", Split(order=(1, 0, 2)), "k"),
        ("{order: [2, 0, 1]}", Split(order=(2, 0, 1)), "v"),
    ],
)
def test_how_several_lie_in_one(text: str, split: Split, target: str) -> None:
    rule = parse_mapping(f"A: {{qkv: {{to: [attn.q, attn.k, attn.v], split: {text}}}}}", "m").rules[0]
    assert (rule.split, rule.target) == (split, ("attn", target))


def test_parameters_of_a_section_and_of_a_key() -> None:
    mapping = parse_mapping(
        "A:\n  params:\n    gamma: weight\n    w: {to: ['{i}.up', '{i}.gate'], split: {axis: in}, transpose: true}\n"
        "  fc: {to: fc2, params: {beta: bias}, permute: [1, 0]}\n",
        "m",
    )
    assert mapping.sections[0].params == (
        ParameterRule("A", ("gamma",), (("weight",),), 3),
        ParameterRule("A", ("w",), (("{i}", "up"), ("{i}", "gate")), 4, Split(axis=1), True),
    )
    assert [rule.is_stacked for rule in mapping.sections[0].params] == [False, True]
    assert mapping.rules[0].params == (ParameterRule("A: fc", ("beta",), (("bias",),), 5),)
    assert mapping.rules[0].permute == (1, 0)


def test_words_that_are_reserved_only_where_they_are_used_so() -> None:
    mapping = parse_mapping("A: {params: parameters}\nignore: {a: b}\n", "m")
    assert [(rule.section, rule.source) for rule in mapping.rules] == [("A", ("params",)), ("ignore", ("a",))]
    assert not mapping.ignored
    assert [each.name for each in parse_mapping("ignore: ['**.drop', a/Identity]", "m").ignored] == [
        "**.drop",
        "a/Identity",
    ]


@given(st.integers(1, 99), st.integers(0, 99), st.integers(0, 10**6))
def test_a_number_is_told_from_what_it_makes_and_from_nothing_else(factor: int, offset: int, number: int) -> None:
    pattern = f"h{{{factor}*i+{offset}}}"
    (name,) = filled((pattern,), {"i": str(number)})
    assert name == f"h{factor * number + offset}" and binds(name, pattern, {}) == {"i": str(number)}
    bound = binds(f"h{number}", pattern, {})
    assert (bound is not None) == (number >= offset and (number - offset) % factor == 0)
    assert bound is None or filled((pattern,), bound) == (f"h{number}",)


@pytest.mark.parametrize(
    ("name", "pattern", "value"),
    [
        ("h3", "h{i+1}", "2"), ("h3", "h{2*i+1}", "1"), ("h3", "h{3*i}", "1"), ("h4", "h{3*i}", None), ("h0", "h{i+1}", None),
        ("h03", "h{i}", "03"), ("h03", "h{i+1}", None), ("h" + "9" * 5000, "h{i+1}", None), ("h3", "h{1*i+0}", "3"),
    ],
)  # fmt: skip
def test_what_a_placeholder_stands_for(name: str, pattern: str, value: str | None) -> None:
    found = binds(name, pattern, {})
    assert found == (None if value is None else {"i": value})
    assert filled(("x{2*i}",), {"i": "9" * 5000}) == ("x",)


def test_a_question_mark_behind_a_name() -> None:
    text = "A?:\n  q?: x\n  k: y\n  params: {'w?': v, b: c}\nB: {s: t}\nignore: ['**.drop?', x]\n"
    mapping = parse_mapping(text, "m")
    assert [(section.name, section.is_optional) for section in mapping.sections] == [("A", True), ("B", False)]
    assert [(rule.source, rule.is_optional) for rule in mapping.rules] == [
        (("q",), True), (("k",), False), (("s",), False),
    ]  # fmt: skip
    assert [(rule.source, rule.is_optional) for rule in mapping.parameter_rules()] == [(("w",), True), (("b",), False)]
    assert [(each.name, each.is_optional) for each in mapping.ignored] == [("**.drop", True), ("x", False)]
    with pytest.raises(MappingError, match="^m, line 3: A: q is named a second time; the first is on line 2$"):
        parse_mapping("A:\n  q: x\n  q?: y\n", "m")


# Mistakes, each with its line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers.{i}: h.{j}", "line 2: A: layers.{i}: {j} in h.{j} does not stand in the key"),
        ("layers: h.{i}", "line 2: A: layers: {i} in h.{i} does not stand in the key"),
        ("layers.{i: h", "line 2, column 10: 'layers.{i': expected a placeholder such as {i}, {i+1}, {2*i} or {2*i+1}, got {"),
        ("layers.{}: h", "line 2, column 10: 'layers.{}': expected a placeholder such as {i}, {i+1}, {2*i} or {2*i+1}, got {}"),
        ("h.{2*i}: 'l.{i-1}'", "line 2, column 15: 'l.{i-1}': expected a placeholder such as {i}, {i+1}, {2*i} or {2*i+1}, got "
         "{i-1}"),
        *(
            (f"h.{bad}: l", f"line 2, column 5: 'h.{bad}': expected a placeholder such as {{i}}, {{i+1}}, {{2*i}} or {{2*i+1}}, got "
             f"{bad}")
            for bad in ("{0*i}", "{i*2}", "{2i}", "{2*i+i}", "{i//2}", "{1}", "{i+ 1}", "{02*i}", "{i+1234567890}")
        ),
        ("h.{2*i}: l.{j+1}", "line 2: A: h.{2*i}: {j} in l.{j+1} does not stand in the key"),
        ("b{i}{j}: h", "line 2, column 7: 'b{i}{j}': where one number ends and the next begins cannot be told"),
        ("layers.*: h", "line 2: 'layers.*': * is for the names of sections; in a key, {i} stands for any number"),
        ("a..b: c", "line 2: 'a..b': a name before, behind or between the dots is missing"),
        ("a: b.", "line 2: 'b.': a name before, behind or between the dots is missing"),
        ("'': b", "line 2: a path is empty"),
        ("qkv: [q]", "line 2: A: qkv: a list with one entry; expected several, or the path without a list"),
        ("qkv: {to: [q]}", "line 2: A: qkv: a list with one entry; expected several, or the path without a list"),
        ("qkv: [q, k, q]", "line 2: A: qkv: q stands in the list twice"),
        ("qkv: {too: [q, k]}", "line 2: A: qkv: too is not known; expected to, from, split, transpose, permute, rotary or params"
         "; did you mean to?"),
        ("qkv: {split: {groups: 2}}", "line 2: A: qkv: expected to: with the path on the other side"),
        ("qkv: {to: q, split: {groups: 2}}", "line 2: A: qkv: split says how several lie in one; here is only q"),
        ("qkv: {to: [q, k], split: {group: 2}}", "line 2: A: qkv: group is not known; expected groups or order"
         "; did you mean groups?"),
        ("qkv: {to: [q, k], split: {axis: in}}", "line 2: A: qkv: axis is for parameters: say it below params"),
        ("qkv: {to: [q, k], split: {groups: 0}}", "line 2: A: qkv: groups: expected a number, or a key of the recorded "
         "model_config, got '0'"),
        ("qkv: {to: [q, k], split: {groups: -1}}", "line 2: A: qkv: groups: expected a number, or a key of the recorded "
         "model_config, got '-1'"),
        ("qkv: {to: [q, k], split: {groups: [2]}}", "line 2: A: qkv: groups: expected a number, or a key of the recorded "
         "model_config, got a list"),
        ("qkv: {to: [q, k], split: {order: [q, v]}}", "line 2: A: qkv: order: expected each entry of the list once, by "
         "position (the first is 0) or last name, got 'v'"),
        ("qkv: {to: [q, k], split: {order: [0, 0]}}", "line 2: A: qkv: order: expected each entry of the list once, by "
         "position (the first is 0) or last name"),
        ("fc: {to: fc, transpose: 1}", "line 2: A: fc: transpose: expected true or false, got '1'"),
        ("fc: {to: fc, permute: [0, 2]}", "line 2: A: fc: permute: expected every axis once, such as [1, 0]"),
        ("fc: {to: fc, permute: 10}", "line 2: A: fc: permute: expected every axis once, such as [1, 0]"),
        ("fc: {to: fc, permute: [1, 0], transpose: true}", "line 2: A: fc: expected transpose or permute, got both"),
        ("fc: {to: fc, params: {w: [weight]}}", "line 2: A: fc: params: w: a list with one entry; expected several, or the "
         "name without a list"),
        ("fc: {to: fc, params: {w: ['{i}.a', '{j}.b']}}", "line 2: A: fc: params: w: expected one placeholder, the same in "
         "every path, or none"),
        ("fc: {to: fc, params: {w: {to: a, split: {axis: out}}}}", "line 2: A: fc: params: w: split says how several lie in "
         "one; here is only a"),
        ("fc: {to: fc, params: {w: {to: [a, b], split: {axis: up}}}}", "line 2: A: fc: params: w: axis: expected out, in or a number (the first is 0), "
         "got 'up'"),
        ("fc: {to: fc, params: {w: {to: a, from: b}}}", "line 2: A: fc: params: w: expected to or from, got both"),
        ("fc: {to: fc, from: b}", "line 2: A: fc: expected to or from, got both"),
        ("fc: {from: b}", "line 2: A: fc: from is for several of this side; for one, write b: fc"),
        ("fc: {from: [b, c], params: {x: y}}", "line 2: A: fc: params says what a module of this side calls its own; from "
         "names several"),
        ("h.{i}: {from: [q, 'k.{i}']}", "line 2: A: h.{i}: {i} of the key does not stand in q"),
        ("h: {from: ['q.{i}', k]}", "line 2: A: h: {i} in q.{i} does not stand in the key"),
        ("q: x\n  qkv: {from: [q, k]}", "line 3: A: q is named a second time; the first is on line 2"),
        ("qkv: {from: [q, k]}\n  qk: {from: [q, k]}", "line 3: A: q is named a second time; the first is on line 2"),
        ("params: {w?: v}", "line 2: not valid YAML (expected ',' or '}', but got '?'): in braces a name with ? needs quotes"),
        ("qkv: {to: qkv, split: {parts: 3}}", "line 2: A: qkv: split: groups is missing; expected parts, how many lie in it, "
         "and groups, in how many groups here, or order, in which they lie there"),
        ("qkv: {to: qkv, split: {parts: 1, groups: 2}}", "line 2: A: qkv: parts: expected how many equal parts there are, or "
         "their sizes beside each other, such as [4, 1, 1]"),
        ("qkv: {to: qkv, split: {parts: [4, 0], groups: 2}}", "line 2: A: qkv: parts: expected how many equal parts there are, or "
         "their sizes beside each other, such as [4, 1, 1]"),
        ("qkv: {to: qkv, split: {parts: 3, groups: {her: 2}}}", "line 2: A: qkv: groups: her is not known; expected here or "
         "there"),
        ("qkv: {to: qkv, split: {parts: 3, groups: 2, order: [0]}}", "line 2: A: qkv: order: expected each part once, by position (the "
         "first is 0)"),
        ("qkv: {to: qkv, split: {order: [0, 2]}}", "line 2: A: qkv: order: expected each part once, by position (the first is 0), "
         "got '2'"),
        ("qkv: {to: qkv, split: {groups: 2}}", "line 2: A: qkv: split says how several lie in one; here is only qkv"),
        ("qkv: {to: qkv, split: {order: [1, 0], axis: 1}}", "line 2: A: qkv: split: axis is not known; expected parts, how many lie in "
         "it, and groups, in how many groups here, or order, in which they lie there"),
        ("q: {to: q, rotary: 4}", "line 2: expected rotary: heads and here, got '4'"),
        ("q: {to: q, rotary: {heads: 4}}", "line 2: A: q: rotary: expected heads, how many, and here: interleaved or halves; here "
         "is missing"),
        ("q: {to: q, rotary: {heads: 0, here: halves}}", "line 2: A: q: heads: expected a number, or a key of the recorded "
         "model_config, got '0'"),
        ("q: {to: q, rotary: {heads: 4, here: half}}", "line 2: A: q: here: expected interleaved or halves, got 'half'"),
        ("q: {to: q, rotary: {head: 4, here: halves}}", "line 2: A: q: head is not known; expected heads and here; did you mean "
         "heads?"),
        ("qk: {to: [q, k], rotary: {heads: 4, here: halves}}", "line 2: A: qk: rotary is for one module on either side; here are 2"),
        ("q: {to: q, params: {w: {to: w, rotary: {heads: 4, here: halves}}}}", "line 2: A: q: params: w: rotary is not known; "
         "expected to, from, split, transpose, permute or reshape"),
        ("params: {w: {to: [a, b], reshape: true}}", "line 2: A: params: w: reshape is for one parameter on either side, the key "
         "this side's"),
        ("params: {w: {to: a, reshape: 2}}", "line 2: A: params: w: reshape: expected true or false, got '2'"),
        ("fc: {to: fc, params: [w]}", "line 2: expected parameters of A: fc, got a list"),
        ("{i}: h", "line 2: expected a name, got a mapping: a path that begins with { needs quotes"),
        ("layers.{i}: {i}", "line 2: A: layers.{i}: expected the path on the other side, got a mapping: a path that begins "
         "with { needs quotes"),
        ("layers.{i}: {i}.x", "line 2: not valid YAML (expected <block end>, but found '<scalar>'): a path that begins with "
         "{ needs quotes"),
    ],
)  # fmt: skip
def test_mistakes_in_a_section(text: str, message: str) -> None:
    with pytest.raises(MappingError, match=f"^m, {re.escape(message)}$"):
        parse_mapping(f"A:\n  {text}\n", "m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b*: {c: d}", "line 1: 'a.b*': * stands for one whole name, ** for any number of them, {i} for digits"),
        ("'*': {c: d}\na/: {c: d}", "line 2: 'a/': expected a path, then /ClassName or nothing"),
        ("a/b/C: {c: d}", "line 1: 'a/b/C': expected a path, then /ClassName or nothing"),
        ("ignore:\n- a\n- '**'", "line 3: ignore: ** leaves out the whole model"),
        ("ignore:\n- a\n-", "line 3: expected a path of what is to be ignored, got nothing"),
        ("ignore:\n- a\n- {b: c}", "line 3: expected a path of what is to be ignored, got a mapping"),
        ("ignore: a", "line 1: expected paths below ignore, got 'a'"),
    ],
)
def test_mistakes_in_the_names_of_sections(text: str, message: str) -> None:
    with pytest.raises(MappingError, match=f"^m, {re.escape(message)}$"):
        parse_mapping(text, "m")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A:\n  b: c\n  d e\n  f: g\n", 3),
        ('A:\n  b: "c\n  d: e\n\n', 2),
        ("A:\n  b: [c,\n  d: e\n", 2),
        ("A:\n  b: c: d\n", 2),
        ("A: {b: c\n\n\n", 1),
        ("# \u2028 \x85\nA:\n  b: [c]\n", 3),
        ("A:\r\n  b: [c]\r\n", 2),
        ("A:\r  b: [c]\r", 2),
        ("\ufeffA:\n  b: [c]\n", 2),
        ("A:\n  b:\n    [c]\n", 2),
        ("A:\n  b: x\x01y\n", 2),
    ],
    ids=["no colon", "open quote", "open list", "two colons", "open brace", "other line breaks", "windows", "mac",
         "byte order mark", "value below", "control character"],
)  # fmt: skip
def test_lines_are_those_that_an_editor_shows(text: str, line: int) -> None:
    with pytest.raises(MappingError, match=f"^m, line {line}: "):
        parse_mapping(text, "m")


# Files that mean harm


@pytest.mark.thorough
def test_a_small_file_that_stands_for_a_large_one_is_refused_quickly() -> None:
    text = "A: &a {" + ", ".join(f"k{i}: v" for i in range(9_000)) + "}\n"
    text += "".join(f"B{i}: *a\n" for i in range(9_000))
    begin = time.process_time()
    with pytest.raises(MappingError, match="^m: more than 20000 keys; a layer mapping has fewer$"):
        parse_mapping(text, "m")
    assert time.process_time() - begin < 5


def test_lists_of_lists_of_lists_are_no_paths() -> None:
    text = "a: &a [x]\n" + "".join(f"{n}: &{n} [{', '.join([f'*{o}'] * 9)}]\n" for o, n in pairwise("abcdefghi"))
    with pytest.raises(
        MappingError, match="^m, line 1: expected paths below a, got a list; ignore and rules have one$"
    ):
        parse_mapping(text, "m")


def test_a_hundred_megabytes_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    with file.open("wb") as out:
        out.truncate(100 << 20)
    begin = time.process_time()
    with pytest.raises(MappingError, match="a layer mapping has at most 262144"):
        load_mapping(file)
    with pytest.raises(MappingError, match="^m has 300000 characters; a layer mapping has at most 262144$"):
        parse_mapping(" " * 300_000, "m")
    assert time.process_time() - begin < 1


def test_dicts_without_end_are_errors() -> None:
    own: dict[str, object] = {}
    own["A"] = own
    deep: object = "x"
    for _ in range(5_000):
        deep = {"a": deep}
    for sections, what in ((own, "the mapping, line"), ({"A": deep}, "the mapping: nested too deeply")):
        with pytest.raises(MappingError, match=f"^{what}"):
            load_mapping(sections)


# Patterns


@pytest.mark.parametrize(
    ("name", "pattern", "before", "after"),
    [
        ("12", "{i}", {}, {"i": "12"}),
        ("block07", "block{i}", {}, {"i": "07"}),
        ("1_2", "{i}_{j}", {}, {"i": "1", "j": "2"}),
        ("1_2", "{i}_{i}", {}, None),
        ("1_1", "{i}_{i}", {}, {"i": "1"}),
        ("3", "{i}", {"i": "4"}, None),
        ("", "{i}", {}, None),
        ("²", "{i}", {}, None),
        ("1\n", "{i}", {}, None),
        ("a.b", "a{i}b", {}, None),
        ("a+1", "a+{i}", {}, {"i": "1"}),
    ],
)
def test_placeholders(name: str, pattern: str, before: dict[str, str], after: dict[str, str] | None) -> None:
    assert binds(name, pattern, before) == after


def test_what_a_placeholder_stands_for_is_put_in() -> None:
    assert filled(("h", "block{i}", "{j}_{i}"), {"i": "3", "j": "4"}) == ("h", "block3", "4_3")


def test_places_come_by_number_and_through_wrappers() -> None:
    net = tree({
        "": "DistributedDataParallel", "module": "Net", **{f"module.{n}": "Block" for n in ("10", "9", "x", "0")},
        "module.10.up": "Linear", "module.9.up": "Linear", "module.x.up": "Linear",
    })  # fmt: skip
    found = [(net.path(index), bound) for index, bound in places(net, 0, parsed_key("{i}.up"))]
    assert found == [("module.9.up", {"i": "9"}), ("module.10.up", {"i": "10"})]
    assert [net.path(index) for index, _ in places(net, 0, ("x", "up"))] == ["module.x.up"]


def test_paths_and_classes() -> None:
    assert parsed_section("Net") == (None, "Net")
    assert parsed_path("a.b/C")[1] == "C"
    assert parsed_path("drop")[0].names == ("**", "drop"), "what is ignored is a path, not a class"
