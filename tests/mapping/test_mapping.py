"""Layer mappings: what is parsed, and what every error says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from probe.errors import MappingError, ProbeError
from probe.mapping import LayerMapping, Rule, library, load_mapping
from probe.mapping.parsing import parse_mapping
from tests.published.trees import DATA

TEMPLATES = {
    "template-qwen2.5vl-mindspeed-mm.yaml": (8, 23),
    "template-qwen2.5vl-llamafactory.yaml": (9, 26),
    "template-qwen2.5-mindspeed-llm.yaml": (6, 11),
    "template-qwen2.5-llamafactory.yaml": (6, 11),
}


def test_rules_with_their_lines() -> None:
    mapping = parse_mapping("# comment\nTopLayer:\n  0.module: module\n\nMLP:\n  linear_fc1: up.proj\n", "map.yaml")
    assert mapping.rules == (
        Rule("TopLayer", ("0", "module"), (("module",),), 3),
        Rule("MLP", ("linear_fc1",), (("up", "proj"),), 6),
    )
    assert mapping.name == "map.yaml"
    assert [str(rule) for rule in mapping.rules] == [
        "line 3: TopLayer: 0.module: module",
        "line 6: MLP: linear_fc1: up.proj",
    ]


@pytest.mark.parametrize("file", TEMPLATES)
def test_published_templates_are_parsed(file: str) -> None:
    mapping = load_mapping(DATA / file)
    sections, rules = TEMPLATES[file]
    assert (len({rule.section for rule in mapping.rules}), len(mapping.rules)) == (sections, rules)
    lines = (DATA / file).read_text(encoding="utf-8").splitlines()
    for rule in mapping.rules:
        assert lines[rule.line - 1].strip() == f"{'.'.join(rule.source)}: {'.'.join(rule.target)}"


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "{}"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    assert parse_mapping(text, "m").rules == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "m, line 1: expected sections named by a module class, got a list"),
        ("just text", "m, line 1: expected sections named by a module class, got 'just text'"),
        ("---\n", "m, line 1: expected sections named by a module class, got nothing"),
        ("~", "m, line 1: expected sections named by a module class, got nothing"),
        ("A:\n  b: c\n\nB: [x]\n", "m, line 4: expected paths below B, got a list; ignore and rules have one"),
        (
            "ignored: [x]\n",
            "m, line 1: expected paths below ignored, got a list; ignore and rules have one; did you mean ignore?",
        ),
        ("A:\nB:\n  c: d\n", "m, line 1: expected paths below A, got nothing"),
        ("A: self_attn\n", "m, line 1: expected paths below A, got 'self_attn'"),
        ("A:\n  b: c\n  d:\n", "m, line 3: A: d: expected the path on the other side, got nothing"),
        ("A:\n  b: null\n", "m, line 2: A: b: expected the path on the other side, got nothing"),
        ("A:\n  b: []\n", "m, line 2: A: b: expected the path on the other side, got an empty list"),
        ("A:\n  b: [c, [d]]\n", "m, line 2: A: b: expected the path on the other side, got a list"),
        ("A:\n  b:\n  - c\n  -\n", "m, line 4: A: b: expected the path on the other side, got nothing"),
        ("A:\n  ~: c\n", "m, line 2: expected a name, got nothing"),
        ("A:\n  ? [b]\n  : c\n", "m, line 2: expected a name, got a list"),
        ("? {a: b}\n: {c: d}\n", "m, line 1: expected a name, got a mapping"),
        ("A:\n  b: c\n  d: e\n  b: f\n", "m, line 4: b stands here a second time; the first is on line 2"),
        ("A:\n  b: c\nA:\n  d: e\n", "m, line 3: A stands here a second time; the first is on line 1"),
        ("A:\n  b: c\n b: d\n", "m, line 3: not valid YAML (expected <block end>, but found '<block mapping start>')"),
        ("A:\n\tb: c\n", "m, line 2: not valid YAML (found character '\\t' that cannot start any token)"),
        ("A: {b: c\n", "m, line 1: not valid YAML (expected ',' or '}', but got '<stream end>')"),
        ("A: *b\n", "m, line 1: not valid YAML (found undefined alias 'b')"),
        ("A: {b: c}\n---\nA: {d: e}\n", "m, line 2: not valid YAML (but found another document)"),
    ],
)
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(MappingError, match=f"^{re.escape(message)}$"):
        parse_mapping(text, "m")


def test_control_characters_are_an_error() -> None:
    with pytest.raises(MappingError, match=r"^m, line 2: not valid YAML \(.*special characters are not allowed"):
        parse_mapping("A:\n  b: \x00\n", "m")


@pytest.mark.thorough
@pytest.mark.parametrize("text", ["[" * 20_000, "{a: " * 20_000, "- " * 20_000], ids=["lists", "mappings", "dashes"])
def test_endless_nesting_is_an_error_and_no_crash(text: str) -> None:
    with pytest.raises(MappingError, match="^m: nested too deeply for a layer mapping$"):
        parse_mapping(text, "m")


@pytest.mark.parametrize(
    ("text", "source", "target"),
    [
        ("A: {0: 1}", ("0",), ("1",)),
        ("A: {0.10: 1.10}", ("0", "10"), ("1", "10")),
        ("A: {yes: on}", ("yes",), ("on",)),
        ("A: {1_0: 0x1}", ("1_0",), ("0x1",)),
        ("A: {'~': 'null'}", ("~",), ("null",)),
    ],
    ids=["integers", "floats", "bools", "odd integers", "quoted nulls"],
)
def test_names_that_yaml_takes_for_numbers_stay_what_was_written(
    text: str, source: tuple[str, ...], target: tuple[str, ...]
) -> None:
    assert [(rule.source, rule.target) for rule in parse_mapping(text, "m").rules] == [(source, target)]


TOKENS = [
    "A", "b", "TopLayer", "ignore", "params", "to", "split", "groups", "axis", "order", "transpose", "permute", "in", "out",
    "true", "1", "{i}", "{", "}", "[", "]", ", ", ": ", ":\n  ", "\n", "\n  ", "\n    ", "- ", "'", "*", "**", "/", ".", "&a ", "*a",
]  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text("AB: {}[]-?*&!|>%@`'\"#,\n\t.~0", max_size=60),
    st.lists(st.sampled_from(TOKENS), max_size=25).map("".join),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text("abc.*~ ", max_size=5) | st.dates(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("AB.c", max_size=4), inner, max_size=3),
        max_leaves=10,
    ).map(yaml.safe_dump),
)


@pytest.mark.thorough
@given(TEXTS)
@example("&a {b: *a}")
@example("A: &x {b: c}\nB: *x")
@example("A: {<<: {b: c}}")
@example("!!python/object/apply:os.getcwd []")
@example("A: {b: !!binary x}")
@example("\ud800: {a: b}")
@example("A: {x: {to: [a, b], split: {groups: 9999999999999999999999}}}")
@example("A: {x: {to: [a, b], split: {order: [" + "9" * 5000 + "]}}}")
@example("A: {x: {to: a, permute: [1, null]}}")
@example("A: {x: {to: a, permute: [[1], 0]}}")
@example("A: {x: {to: a, transpose: {a: b}}}")
@example("A: {params: {x: {to: [a], split: []}}}")
@example("'*/*': {a: b}")
@example("'//': {a: b}")
@example("ignore: [/]")
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_mapping_or_a_mapping_error(text: str) -> None:
    try:
        mapping = parse_mapping(text, "m")
    except MappingError as error:
        assert str(error).startswith("m")
        return
    assert isinstance(mapping, LayerMapping)
    for rule in mapping.rules:
        assert rule.line >= 1 and rule.source and rule.target


@given(st.binary(max_size=100))
def test_any_bytes_in_a_file_are_a_mapping_or_a_mapping_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.yaml"
    file.write_bytes(raw)
    try:
        assert isinstance(load_mapping(file), LayerMapping)
    except MappingError:
        pass


# Where mappings come from


def test_none_is_the_empty_mapping() -> None:
    assert load_mapping(None) == LayerMapping()


def test_a_dict_is_parsed_like_a_file(tmp_path: Path) -> None:
    sections = {"TopLayer": {"0.module": "module"}, "Net": {"b": "c", "a": "d"}}
    file = tmp_path / "map.yaml"
    file.write_text(yaml.safe_dump(sections, sort_keys=False), encoding="utf-8")
    assert load_mapping(sections).rules == load_mapping(file).rules == load_mapping(str(file)).rules


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"A": ["b"]}, "the mapping, line 1: expected paths below A, got a list"),
        ({"A": {"b": None}}, "the mapping, line 2: A: b: expected the path on the other side, got nothing"),
        ({"A": {"b": Path("c")}}, "the mapping: not names and paths (cannot represent an object: PosixPath('c'))"),
        ({"A": {("b", "c"): "d"}}, "the mapping, line 2: expected a name, got a list"),
    ],
)
def test_a_dict_that_is_no_mapping(sections: dict[str, object], message: str) -> None:
    with pytest.raises(MappingError, match=f"^{re.escape(message)}"):
        load_mapping(sections)


def test_a_file_with_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_bytes(b"\xef\xbb\xbfA:\r\n  b: c\r\n")
    assert load_mapping(file).rules == (Rule("A", ("b",), (("c",),), 2),)


def test_a_file_that_is_too_large_is_not_parsed(tmp_path: Path) -> None:
    file = tmp_path / "run.h5"
    with file.open("wb") as out:
        out.truncate(100 << 20)
    with pytest.raises(MappingError, match="has 104857600 bytes; a layer mapping has at most 262144"):
        load_mapping(file)


def test_the_library_is_found_by_name_and_every_file_in_it_is_a_mapping() -> None:
    known = library()
    assert "megatron-core/qwen2" in known
    for name in known:
        assert load_mapping(name).rules, name
        assert load_mapping(name).name == name


def test_a_name_that_is_almost_right() -> None:
    with pytest.raises(
        MappingError,
        match="^there is no layer mapping megatron-core/qwn2: neither a file nor the name of one; "
        "did you mean megatron-core/qwen2[^?]*\\?$",
    ):
        load_mapping("megatron-core/qwn2")


def test_a_name_that_is_nothing_lists_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(
        MappingError, match="neither a file nor the name of one; those that come with probe: .*qwen2"
    ) as caught:
        load_mapping(tmp_path / "nothing-of-that-kind")
    assert isinstance(caught.value, ProbeError) and isinstance(caught.value, ValueError)


def test_a_folder_is_no_mapping(tmp_path: Path) -> None:
    with pytest.raises(MappingError, match="there is no layer mapping"):
        load_mapping(tmp_path)


def test_a_file_goes_before_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "megatron-core").mkdir()
    (tmp_path / "megatron-core" / "qwen2").write_text("Mine: {a: b}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load_mapping("megatron-core/qwen2").rules == (Rule("Mine", ("a",), (("b",),), 1),)
