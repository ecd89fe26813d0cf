"""The document that the page shows: trees as rows, axes, tensors, curves of both runs, the data flow, and the page around it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import probe
from probe.answer.comparison import Comparison
from probe.commands.cli import main
from probe.errors import StoreError
from probe.matching import Bundle, Matching, Pair, Reason
from probe.matching.result import Direction
from probe.records import ModuleInfo, Role
from probe.report.graph.flow import Flow, Kind, as_sum, flow_of
from probe.report.html import as_html
from probe.report.html import curves as curves_module
from probe.report.html.axes import Axes
from probe.report.html.columns import Words, number
from probe.report.html.curves import curves
from probe.report.html.document import document
from probe.report.html.page import page
from probe.report.html.rows import Row, State, merged
from probe.report.html.sources import MOST, sources
from probe.report.html.tensors import BINS, LONGEST_PROFILE, WORST, drawn
from probe.report.layout import file_names
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.testing import sample
from probe.verdict.side import Side
from tests.report.reading import MAPPING, Port, compared, document_in, recorded
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import gpt, record

# ---- The document that the page shows, and the page around it.


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compared(tmp_path_factory.mktemp("report"), task="tensor")


@pytest.fixture(scope="module")
def made(comparison: Comparison) -> dict[str, Any]:
    return document(comparison)


def word(made: dict[str, Any], name: str, at: int) -> str:
    return made["words"][made["tensors"][name][at]]


def test_every_column_is_as_long_as_its_table(made: dict[str, Any], comparison: Comparison) -> None:
    tensors = dict(made["tensors"])
    tensors.pop("nonfinite")
    columns = [*tensors.pop("statistics_a").values(), *tensors.pop("statistics_b").values(), *tensors.values()]
    assert {len(column) for column in columns} == {len(comparison.slots)}
    assert {len(column) for column in made["tree"].values()} == {len(made["tree"]["a"])}
    assert len({len(column) for column in made["calls"].values()}) == 1
    assert {len(column) for column in made["pairs"].values()} == {len(comparison.matching.pairs)}


def test_tensors_have_the_statistics_of_both_recordings(made: dict[str, Any], comparison: Comparison) -> None:
    with probe.open(comparison.path_a) as a, probe.open(comparison.path_b) as b:
        runs = {"a": a, "b": b}
        for at, slot in enumerate(comparison.slots):
            assert word(made, "verdict", at) == slot.verdict and word(made, "slot_a", at) == slot.slot_a
            for side, run in runs.items():
                path, name = (slot.path_a, slot.slot_a) if side == "a" else (slot.path_b, slot.slot_b)
                of = [each for each in run[path] if (each.phase, each.role, each.slot, each.call)
                      == (slot.phase, slot.role, name, slot.call)]  # fmt: skip
                found = made["tensors"][f"statistics_{side}"]
                assert any(found["norm"][at] == pytest.approx(each.norm, rel=1e-5)
                           and found["max"][at] == pytest.approx(each.max, rel=1e-5) for each in of)  # fmt: skip


def test_the_finding_names_its_row_and_tensor(made: dict[str, Any], comparison: Comparison) -> None:
    first, modules = made["findings"][0], made["sides"]["b"]["modules"]
    assert modules["path"][made["tree"]["b"][first["row"]]] == "decoder.1.ln2"
    shown = comparison.slots[first["tensor"]]
    assert (shown.verdict, shown.metrics) == ("introduced", comparison.divergences[0].metrics)
    assert first["headline"] == "step 0 · forward · introduced" and first["evidence"]


@pytest.mark.thorough
def test_limits_that_were_chosen_are_told_from_rounding(comparison: Comparison, made: dict[str, Any]) -> None:
    assert not any(made["tensors"]["is_fixed"]) and not made["findings"][0]["is_fixed"]
    paths = comparison.path_a, comparison.path_b
    found = probe.compare(*paths, mapping=MAPPING, rtol=1e-3, atol=1e-6)
    fixed = document(found)
    assert fixed["findings"][0]["is_fixed"] and fixed["findings"][0]["measure"] == "times the tolerance"
    at = fixed["findings"][0]["tensor"]
    assert fixed["tensors"]["is_fixed"][at] and word(fixed, "measure", at) == "times the tolerance"
    assert fixed["tensors"]["limit"][at] == 1
    rules = [{"path": "decoder.1.*", "rtol": 1e-3, "metric": "rel_l2"}]
    some = document(probe.compare(*paths, mapping=MAPPING, rules=rules))["tensors"]["is_fixed"]
    assert 0 < sum(some) < len(some)
    wide = document(probe.compare(*paths, mapping=MAPPING, rtol=0.5, metric="rel_l2"))
    assert wide["answer"]["verdict"] == "aligned" and wide["closest_is_fixed"]


# ---- Lines of source


def lines_of(found: dict[str, Any], words: Words, side: str, module: int, what: str) -> list[str] | str:
    excerpt = found["excerpts"][found[side][str(module)][what]]
    return excerpt.get("why_not") or words.all[excerpt["text"]].splitlines()


def side_with(*modules: ModuleInfo, created: str = "2100-01-01T00:00:00+0000") -> Any:
    return SimpleNamespace(modules=modules, info=SimpleNamespace(created=created))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    head = "class Net:\n    def forward(\n        self, x: int = 1,  # one:\n    ) -> int:\n"
    path.write_text(head + "".join(f"        x = {k}\n" for k in range(5, 40)) + "\tlast\nclass Next:\n")
    return path


def test_lines_around_a_place_are_shown_without_their_indent(program: Path) -> None:
    words, file = Words(), str(program)
    root, norm = ModuleInfo("", "Net", -1, file, 2), ModuleInfo("norm", "Norm", 0, called_from=f"{file}:12")
    operation = ModuleInfo("norm/add.0", "torch.add", 1, file, 39, arguments="{}")
    rows = [Row(k, k, k, State.PAIRED) for k in range(3)]
    side = side_with(root, norm, operation)
    found = sources(rows, [2], (side, side), words)
    assert lines_of(found, words, "a", 1, "called") == [f"x = {k}" for k in range(9, 16)]
    assert lines_of(found, words, "a", 0, "forward")[:2] == [") -> int:", "    x = 5"], "behind its head"
    assert lines_of(found, words, "b", 2, "called")[-1] == "last", "what follows is no part of it"
    assert found["a"] == found["b"] and len(found["excerpts"]) == 3, "what both have is held once"


def test_what_cannot_be_shown_is_said(program: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("secret\n" * 9)
    (tmp_path / "bytes.py").write_bytes(b"\xff\n" * 9)
    hidden = ["/gone/net.py", f"{tmp_path}/key.pem", "net.py", "a\0.py", f"{tmp_path}/bytes.py"]
    places = [*hidden, str(program), "/env/site-packages/torch/nn/linear.py"]
    modules = [ModuleInfo("", "Net", -1, place, 5 if place in hidden else 99, called_from="x:1e9") for place in places]
    rows, words = [Row(k, -1, k, State.PAIRED) for k in range(len(modules))], Words()
    found = sources(rows, [0], (side_with(*modules), side_with()), words)
    said = [lines_of(found, words, "a", k, "forward") for k in range(6)]
    assert said[:5] == ["There is no such file to be read where the page was made."] * 5
    assert said[5] == "This file has 41 lines where the page was made." and "6" not in found["a"]
    old = side_with(ModuleInfo("", "Net", -1, str(program), 5), created="1999-01-01")
    assert sources(rows[:1], [0], (old, side_with()), words)["excerpts"][0]["is_newer"]


def test_lines_are_those_nearest_to_the_first_finding_and_not_too_many(program: Path) -> None:
    operations = [ModuleInfo(f"/add.{k}", "add", 0, str(program), k % 40 + 1, arguments="{}") for k in range(39)]
    other = [ModuleInfo(f"/mul.{k}", "mul", 0, f"/gone/{k}.py", 1, arguments="{}") for k in range(1000)]
    modules = [ModuleInfo("", "Net", -1, str(program), 2), *operations, *other]
    rows = [Row(k, -1, k, State.PAIRED, depth=min(k, 1)) for k in range(len(modules))]
    found = sources(rows, [500, 900], (side_with(*modules), side_with()), Words())
    assert len(found["excerpts"]) == MOST and {"0", "500", "900"} <= found["a"].keys() and "100" not in found["a"]
    assert sources(rows, [], (side_with(*modules), side_with()), Words()) is None


def test_the_page_has_the_lines_of_the_finding(made: dict[str, Any]) -> None:
    row = made["findings"][0]["row"]
    for side in "ab":
        excerpt = made["sources"]["excerpts"][made["sources"][side][str(made["tree"][side][row])]["forward"]]
        lines = Path(made["words"][excerpt["file"]]).read_text().splitlines()
        assert made["words"][excerpt["text"]].splitlines()[0] == lines[excerpt["first"] - 1].strip()


def test_axes_have_names_where_shapes_tell(made: dict[str, Any]) -> None:
    assert made["findings"][0]["drawn"]["names"] == ["batch", "token", "channel"]


def test_values_are_drawn_as_they_were_compared(made: dict[str, Any], comparison: Comparison) -> None:
    drawn, metrics = made["findings"][0]["drawn"], comparison.divergences[0].metrics
    assert drawn["worst"][0]["at"] == list(metrics.max_abs_at)
    assert abs(drawn["worst"][0]["b"] - drawn["worst"][0]["a"]) == pytest.approx(metrics.max_abs, rel=1e-3)


def test_without_values_nothing_is_drawn(tmp_path: Path) -> None:
    first = document(compared(tmp_path))["findings"][0]
    assert first["drawn"] is None and first["not_drawn"].startswith(
        'no values were recorded of it: record both runs with task="tensor"'
    )


def test_what_is_too_large_is_not_drawn(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.report.html.document.LARGEST", 100)
    first = document(comparison)["findings"][0]
    assert (first["drawn"], first["not_drawn"]) == (None, "its 192 elements are too many to draw (up to 100)")


def test_modules_have_their_source(made: dict[str, Any]) -> None:
    modules = made["sides"]["b"]["modules"]
    at = modules["path"].index("decoder.1")
    assert made["words"][modules["file"][at]].endswith("reading.py") and modules["line"][at] > 1
    assert made["words"][modules["class"][at]] == "PortedBlock"


def test_what_has_no_partner_brings_its_records(made: dict[str, Any]) -> None:
    modules = made["sides"]["b"]["modules"]["path"]
    left = {modules[int(module)]: records for module, records in made["loose"]["b"].items()}
    assert set(left) == {f"decoder.{n}.residual" for n in range(3)}
    assert [made["words"][record[2]] for record in left["decoder.0.residual"]][:3] == ["0", "1", "0"]
    assert made["loose"]["a"] == {}


@pytest.mark.thorough
def test_steps_and_calls(tmp_path: Path) -> None:
    made = document(compared(tmp_path, fault=False, steps=2))
    assert set(made["tensors"]["step"]) == set(made["calls"]["step"]) == {0, 1}
    assert (
        made["curves"]["scalars"][0]["name"] == "loss"
        and made["curves"]["scalars"][0]["steps"] == [0, 1]
        and made["findings"] == []
    )


def test_a_mapping_is_drafted_where_pairs_were_found_without_one(tmp_path: Path) -> None:
    found = probe.compare(*recorded(tmp_path))
    assert Reason.SAME_VALUES in {pair.reason for pair in found.matching.pairs}
    made = document(found)
    assert "embed: words" in made["mapping"]["base"] and made["mapping"]["from"] == "a"


def test_beside_a_mapping_lines_stand_alone(made: dict[str, Any]) -> None:
    assert made["mapping"] == {"base": "", "from": "a", "why_not": ""}


def test_a_recording_that_is_gone(tmp_path: Path) -> None:
    comparison = compared(tmp_path)
    (tmp_path / "b.h5").unlink()
    with pytest.raises(StoreError, match="there is no file"):
        as_html(comparison)


# The page


def test_the_page_holds_the_document_and_nothing_of_it_is_markup(comparison: Comparison, made: dict[str, Any]) -> None:
    text = as_html(comparison)
    assert document_in(text) == json.loads(json.dumps(made))
    assert "decoder.1.ln2" not in text
    assert "<title>diverged: a.h5 and b.h5</title>" in text


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    a, b = recorded(tmp_path)
    for path, folder in ((a, "paddle"), (b, "torch")):
        (tmp_path / folder / "logs").mkdir(parents=True)
        path.rename(tmp_path / folder / "logs" / "run.h5")
    text = as_html(probe.compare(tmp_path / "paddle/logs/run.h5", tmp_path / "torch/logs/run.h5", mapping=MAPPING))
    assert "<title>diverged: paddle/logs/run.h5 and torch/logs/run.h5</title>" in text
    assert [document_in(text)["sides"][side]["file"] for side in "ab"] == ["paddle/logs/run.h5", "torch/logs/run.h5"]
    assert file_names("x/run.h5", "x/run.h5") == ("run.h5", "run.h5")


def test_titles_are_escaped() -> None:
    text = page({}, "</title><img src=x onerror=alert(1)>\u202e <!--data-->")
    assert r"<title>&lt;/title&gt;&lt;img src=x onerror=alert(1)&gt;\u202e &lt;!--data--&gt;</title>" in text
    assert document_in(text) == {}


def test_the_page_asks_for_nothing_and_allows_only_its_own_script_and_style() -> None:
    text = page({}, "")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
    for name, content in (("script", re.findall(r"<script>(.*?)</script>", text, re.S)),
                          ("style", re.findall(r"<style>(.*?)</style>", text, re.S))):  # fmt: skip
        assert len(content) == 1
        digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert not re.search(r"""(src|href)=["']|@import|url\((?!#)""", text)


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path)
    (tmp_path / "map.yaml").write_text(json.dumps(MAPPING), encoding="utf-8")
    done = CliRunner().invoke(main, ["compare", "a.h5", "b.h5", "-lm", "map.yaml", "-o", "report.html"])
    assert done.exit_code == 1 and "diverged; the report is in report.html" in done.output
    assert document_in(Path("report.html").read_text(encoding="utf-8"))["answer"]["verdict"] == "diverged"


def test_values_of_a_turned_tensor_are_drawn_in_the_order_of_a(tmp_path: Path) -> None:
    """A [s, b, h] against a [b, s, h]: the picture has one element that is wrong, not all of them."""
    from probe.records import Role
    from probe.report.again import values_together
    from probe.store.reading.reader import Reader
    from probe.verdict.side import Side
    from tests.store.files import Tensor, write_tensors

    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    y = x.transpose(1, 0, 2).copy()
    y[4, 2, 1] += 1
    write_tensors(tmp_path / "x.h5", [Tensor(x)], values=True)
    write_tensors(tmp_path / "y.h5", [Tensor(y)], values=True)
    with Reader(tmp_path / "x.h5") as first, Reader(tmp_path / "y.h5") as second:
        x, y = (Side(each, 0, {}).calls[0].of(Role.OUTPUT)["0"] for each in (first, second))
        a, b = values_together(x, y, may_permute=True)
    assert np.argwhere(a != b).tolist() == [[2, 4, 1]]


def test_an_undecided_comparison_has_a_page_too(tmp_path: Path) -> None:
    path = record(tmp_path / "a.h5", gpt())
    shutil.copy(path, tmp_path / "b.h5")
    made = document_in(as_html(probe.compare(path, tmp_path / "b.h5")))
    assert made["answer"]["verdict"] == "undecided" and made["doubts"]


@pytest.mark.thorough
def test_view_opens_it_in_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = recorded(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(asked.append(url)))
    done = CliRunner().invoke(main, ["view", str(a), str(b), "-o", str(tmp_path / "x y.html")])
    assert done.exit_code == 1 and asked == [(tmp_path / "x y.html").as_uri()]
    assert "no browser could be started here: open that file in one" in done.output
    done = CliRunner().invoke(main, ["view", str(a), str(b), "-o", str(tmp_path / "none" / "x.html")])
    assert done.exit_code == 3 and "cannot write" in done.output


# ---- Both trees as one list of rows.


def tree(*paths: str, classes: dict[str, str] | None = None) -> Tree:
    places = {path: index for index, path in enumerate(paths)}
    return Tree([
        ModuleInfo(path, (classes or {}).get(path, "M"), places[path.rpartition(".")[0]] if path else -1) for path in paths
    ])  # fmt: skip


def shown(
    a: Tree, b: Tree, pairs: dict[str, str], called: tuple[set[str], set[str]] = (set(), set()), **more: object
) -> list[str]:
    found = [Pair(a.by_path[left], b.by_path[right], Reason.MAPPED) for left, right in pairs.items()]
    matching = Matching(tuple(found), (), (), Direction.A_TO_B, **more)
    rows = merged(matching, a, b, *({path: State.UNMATCHED for path in paths} for paths in called))
    side = lambda of, index: of.path(index) or "root" if index >= 0 else "-"  # noqa: E731
    return [f"{'  ' * row.depth}{side(a, row.a)} | {side(b, row.b)} {row.state}" for row in rows]


def test_what_b_alone_has_stands_behind_what_it_follows() -> None:
    a = tree("", "m", "m.x", "m.y", "head")
    b = tree("", "first", "x", "new", "new.inner", "y", "out", "last")
    found = shown(a, b, {"": "", "m.x": "x", "m.y": "y", "head": "out"}, ({"m"}, {"new", "last"}))
    assert found == [
        "root | root paired",
        "  - | first uncalled",
        "  m | - unmatched",
        "    m.x | x paired",
        "    - | new unmatched",
        "      - | new.inner uncalled",
        "    m.y | y paired",
        "  head | out paired",
        "  - | last unmatched",
    ]


def test_an_operation_of_one_side_alone_is_no_module_without_a_partner() -> None:
    modules = [ModuleInfo("", "Net", -1), ModuleInfo("/to.0", "torch.Tensor.to", 0, arguments="{}")]
    a, b = (Tree(each, operations=True) for each in (modules, modules[:1]))
    assert shown(a, b, {"": ""}) == ["root | root paired", "  /to.0 | - alone"]


def test_what_follows_a_holder_that_b_alone_has_follows_what_is_in_it() -> None:
    a = tree("", "model", "model.words", "model.layers", "model.norm", "head")
    b = tree(*" embedding embedding.words rotary decoder decoder.layers decoder.dropout decoder.norm out".split(" "))
    pairs = {
        "": "",
        "model.words": "embedding.words",
        "model.layers": "decoder.layers",
        "model.norm": "decoder.norm",
        "head": "out",
    }
    found = shown(a, b, pairs, (set(), {"embedding", "rotary", "decoder", "decoder.dropout"}))
    assert found == [
        "root | root paired",
        "  - | embedding unmatched",
        "  model | - uncalled",
        "    model.words | embedding.words paired",
        "    - | rotary unmatched",
        "    - | decoder unmatched",
        "    model.layers | decoder.layers paired",
        "    - | decoder.dropout unmatched",
        "    model.norm | decoder.norm paired",
        "  head | out paired",
    ]


def test_parts_wrappers_and_what_is_ignored() -> None:
    a = tree("", "module", "module.qkv", "module.rope", classes={"": "DistributedDataParallel"})
    b = tree("", "q", "k", "rope", classes={})
    parts = Bundle("B", a.by_path["module.qkv"], (b.by_path["q"], b.by_path["k"]))
    found = shown(a, b, {"module": "", "module.qkv": "q"}, bundles=(parts,),
                  ignored_a=frozenset({3}), ignored_b=frozenset({3}))  # fmt: skip
    assert found == [
        "root | - passed over",
        "  module | root paired",
        "    module.qkv | q paired",
        "    - | k part",
        "    - | rope ignored",
        "    module.rope | - ignored",
    ]


def test_very_deep_trees() -> None:
    deep = tree("", *[".".join("x" * (n + 1)) for n in range(3000)])
    assert len(shown(deep, deep, {"": ""})) == 6001


def test_children_stand_in_the_order_of_their_first_calls() -> None:
    a = tree("", "layers", "layers.0", "layers.0.mlp", "layers.0.extra", "layers.0.norm", "norm", "embed", "unused")
    b = tree("", "late", "early", "norm")
    found = [Pair(0, 0, Reason.MAPPED), Pair(a.by_path["norm"], b.by_path["norm"], Reason.MAPPED)]
    called = [a.by_path[path] for path in ("", "embed", "layers.0", "layers.0.norm", "layers.0.mlp", "norm")]
    begins = ({module: when for when, module in enumerate(called)}, {0: 0, 2: 1, 3: 2, 1: 3})
    rows = merged(Matching(tuple(found), (), (), Direction.A_TO_B), a, b, {}, {}, begins)
    names = [a.path(row.a) if row.a >= 0 else f"B: {b.path(row.b)}" for row in rows]
    assert names == [
        "", "B: early", "embed", "unused", "layers", "layers.0", "layers.0.norm", "layers.0.mlp", "layers.0.extra", "norm", "B: late",
    ]  # fmt: skip


# ---- What axes are called, where shapes tell.

CONFIG = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 97,
}


def slot(shape: tuple[int, ...], role: Role = Role.OUTPUT, **more: Any) -> Any:
    return SimpleNamespace(
        **{"shape_a": shape, "role": role, "dtype_a": "float32", "slot_a": "0", "class_a": "Linear", **more}
    )


IDS = slot((2, 7), Role.INPUT, dtype_a="int64")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((2, 7, 32), ["batch", "token", "channel"]), ((7, 2, 32), ["token", "batch", "channel"]), ((14, 32), ["token", "channel"]),
        ((2, 7, 97), ["batch", "token", "word"]), ((2, 7, 5), ["batch", "token", "channel"]), ((2, 7), ["batch", "token"]),
        ((2, 4, 7, 7), ["batch", "head", "token", "token"]), ((2, 4, 7, 8), ["batch", "head", "token", "channel"]),
        ((5, 3), ["", ""]), ((4,), [""]), ((), []), ((2, 5), ["", ""]), ((1, 7), ["", "token"]),
    ],
)  # fmt: skip
def test_what_modules_are_given_and_return(shape: tuple[int, ...], expected: list[str]) -> None:
    assert Axes.of([IDS], CONFIG).names(slot(shape)) == expected


def test_without_token_ids_only_the_configuration_tells() -> None:
    axes = Axes.of([slot((2, 3, 8, 8), Role.INPUT)], {})
    assert axes.names(slot((2, 3, 8, 8))) == ["", "", "", ""]
    assert Axes.of([], CONFIG).names(slot((2, 7, 32))) == ["", "", "channel"]


def test_a_size_that_may_be_two_things_has_no_name() -> None:
    config = {"num_attention_heads": 32, "hidden_size": 32}
    assert Axes.of([], config).names(slot((5, 32))) == ["", ""]


@pytest.mark.parametrize(
    ("given", "order", "expected"),
    [
        (slot((8, 4), Role.PARAM, slot_a="weight"), (0, 1), ["out", "in"]),
        (slot((4, 8), Role.PARAM_GRAD, slot_a="weight"), (1, 0), ["in", "out"]),
        (slot((8, 4, 3, 3), Role.DELTA, slot_a="weight"), (), ["out", "in", "kernel row", "kernel column"]),
        (slot((97, 32), Role.STATE, slot_a="weight.exp_avg", class_a="VocabParallelEmbedding"), (), ["word", "channel"]),
        (slot((32,), Role.PARAM, slot_a="bias"), (), [""]), (slot((8, 4), Role.PARAM, slot_a="scales"), (), ["", ""]),
    ],
)  # fmt: skip
def test_weights(given: Any, order: tuple[int, ...], expected: list[str]) -> None:
    assert Axes.of([IDS], CONFIG).names(given, order) == expected


# ---- What the values of two tensors show.


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    a = np.random.default_rng(0).standard_normal((2, 300, 70))
    b = a.copy()
    b[1, 7, 3] += 0.5
    b[0, 299, :] += 1e-4
    return a, b


def test_the_worst_elements_come_first(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    worst = drawn(a, b)["worst"]
    assert len(worst) == WORST and worst[0]["at"] == [1, 7, 3]
    assert worst[0]["b"] - worst[0]["a"] == pytest.approx(0.5, abs=1e-5)
    assert {tuple(each["at"][:2]) for each in worst[1:]} == {(0, 299)}


def test_profiles_show_the_index(pair: tuple[np.ndarray, np.ndarray]) -> None:
    profiles = {each["axis"]: each for each in drawn(*pair)["profiles"]}
    assert [len(profiles[axis]["rms"]) for axis in range(3)] == [2, LONGEST_PROFILE, 70]
    assert int(np.argmax(profiles[2]["rms"])) == 3
    assert profiles[0]["rms"][1] == pytest.approx(0.5 / np.sqrt(300 * 70), rel=1e-4)
    quiet = np.array(profiles[1]["rms"]) == 0
    assert quiet.sum() == LONGEST_PROFILE - 2  # index 7 and index 299


def test_maps_are_bounded_and_show_the_place(pair: tuple[np.ndarray, np.ndarray]) -> None:
    maps = drawn(*pair)["maps"]
    assert [each["axes"] for each in maps] == [[0, 1], [0, 2], [1, 2]]
    last = maps[-1]
    assert (last["rows"], last["columns"], len(last["shades"])) == (BINS, BINS, BINS * BINS)
    shades = np.reshape(last["shades"], (BINS, BINS))
    assert np.unravel_index(shades.argmax(), shades.shape) == (7 * BINS // 300, 3 * BINS // 70)
    assert (shades[-1] > 0).all() and not shades[-2].any()


def test_histograms_count_every_element(pair: tuple[np.ndarray, np.ndarray]) -> None:
    found = drawn(*pair)
    assert sum(found["values"]["a"]) == sum(found["values"]["b"]) == pair[0].size
    assert sum(found["errors"]["counts"]) == 71 and found["errors"]["zeros"] == pair[0].size - 71


def test_nan_on_one_side_is_the_worst() -> None:
    a = np.ones((4, 4))
    b = a.copy()
    a[0, 0] = b[0, 0] = np.nan
    b[2, 1] = np.inf
    b[3, 3] = 2
    found = drawn(a, b)
    assert [each["at"] for each in found["worst"]] == [[2, 1], [3, 3]]
    assert found["worst"][0]["b"] == "inf" and found["nonfinite"] == 1
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "array",
    [np.zeros(()), np.zeros((3,)), np.zeros((1, 1)), np.full((2, 2), np.nan), np.full((2, 2), 1e308)],
)
def test_nothing_to_see(array: np.ndarray) -> None:
    found = drawn(array, array.copy())
    assert found["worst"] == [] and found["nonfinite"] == 0
    json.dumps(found, allow_nan=False)


def test_overflowing_differences() -> None:
    a = np.array([1e308, 1.0])
    found = drawn(a, -a)
    assert found["worst"][0]["at"] == [0] and found["values"] is None


def test_numbers_in_json() -> None:
    assert [number(x) for x in (float("nan"), float("inf"), -float("inf"), 1.23456789, 12)] == [
        None,
        "inf",
        "-inf",
        1.23457,
        12,
    ]


# ---- Curves of both runs beside each other, in a bounded number of points.

STEPS = 40


def logged(path: Path, spike: int = -1) -> Path:
    """Record a model that learns nothing, with a loss of its own."""
    nn.manual_seed(0)
    model = nn.Linear(3, 3)
    with probe.capture(model, path):
        for step in range(STEPS):
            model(Tensor(sample((2, 3), step))).sum().backward()
            probe.step(loss=1 / (step + 1) + (step == spike), lr=0.1)
    return path


def named(found: list[dict[str, object]]) -> dict[str, dict[str, object]]:
    return {str(each["name"]): each for each in found}


def test_loss_rates_and_norms_of_both(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5", steps=3), record(tmp_path / "b.h5", Port(), steps=3)
    compared = probe.compare(a, b, mapping=MAPPING)
    found = curves(str(a), str(b), compared.slots, 0)
    scalars, norms = named(found["scalars"]), named(found["norms"])
    assert list(scalars)[:3] == ["loss", "grad_norm of the recorded gradients", "lr"]
    assert scalars["loss"]["steps"] == [0, 1, 2] and len(scalars["loss"]["a"]) == len(scalars["loss"]["b"]) == 3
    one = norms["embed.weight ⟷ words.weight"]
    with probe.open(a) as run:
        known = [each.norm for each in run["embed"] if each.role.label == "param_grad" and each.phase.label == "update"]
    assert one["a"] == pytest.approx(known, rel=1e-5) and len(known) == 3


def test_what_only_one_has_is_no_curve(tmp_path: Path) -> None:
    a = logged(tmp_path / "a.h5")
    b = record(tmp_path / "b.h5", steps=2)
    assert [each["name"] for each in curves(str(a), str(b), (), 0)["scalars"]] == ["loss", "lr"]


def test_steps_of_b_are_counted_as_those_of_a(tmp_path: Path) -> None:
    a, b = logged(tmp_path / "a.h5"), logged(tmp_path / "b.h5")
    loss = named(curves(str(a), str(b), (), -10)["scalars"])["loss"]
    assert loss["steps"] == list(range(STEPS + 10)) and loss["a"][STEPS] is None and loss["b"][:10] == [None] * 10
    assert loss["b"][10] == loss["a"][0]


def test_a_long_curve_keeps_what_stands_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves_module, "MOST_POINTS", 16)
    a, b = logged(tmp_path / "a.h5"), logged(tmp_path / "b.h5", spike=17)
    loss = named(curves(str(a), str(b), (), 0)["scalars"])["loss"]
    assert len(loss["steps"]) <= 16 and loss["total"] == STEPS
    assert {0, 17, STEPS - 1} <= set(loss["steps"])
    at = loss["steps"].index(17)
    assert loss["b"][at] - loss["a"][at] == pytest.approx(1, rel=1e-4)


def test_gradients_that_are_one_on_the_other_side_have_one_norm() -> None:
    from probe.curve_comparison.reading.series import Series
    from probe.report.html.curves import _together

    steps = np.arange(3)
    norms = {name: Series(name, steps, np.full(3, value)) for name, value in (("q", 3.0), ("k", 4.0))}
    assert _together(norms, "q + k").values.tolist() == [5, 5, 5]
    assert _together(norms, "q + v") is None


def test_gradients_that_differ_by_more_than_rounding_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is far off by rounding alone does not stand before one that is wrong by itself."""
    paths = [str(record(tmp_path / f"{seed}.h5", gpt(seed), steps=2)) for seed in (0, 1)]
    names = [name for name, module in gpt().modules() if hasattr(module, "weight")]
    verdicts = {(f"{name}.weight", f"{name}.weight"): "noise" for name in names}
    monkeypatch.setattr(curves_module, "_gradients", lambda slots: verdicts)
    by_difference = [each["name"] for each in curves(*paths, (), 0)["norms"]]
    verdicts[by_difference[-1], by_difference[-1]] = "introduced"
    found = curves(*paths, (), 0)["norms"]
    assert [each["name"] for each in found] == [by_difference[-1], *by_difference[:-1]]
    assert [each["verdict"] for each in found[:2]] == ["introduced", "noise"]


def test_the_worst_verdict_of_a_gradient_counts(tmp_path: Path) -> None:
    answer = compared(tmp_path, steps=2)
    wanted = {each.verdict for each in answer.slots if each.role is Role.PARAM_GRAD and each.path_a == "layers.1.norm2"}
    found = {each["name"]: each["verdict"] for each in document(answer)["curves"]["norms"]}
    assert found["layers.1.norm2.weight ⟷ decoder.1.ln2.weight"] in wanted - {"noise", "equal"}


# ---- The data flow of a recording: who made what each module was given.


def flow_in(path: Path, micro: int = 0) -> tuple[Flow, list[str]]:
    """Return the flow of the first step, and what each of its nodes is called."""
    with Reader(path) as reader:
        flow = flow_of(Side(reader, 0, {}), micro)
        paths = [module.path for module in reader.modules]
    names = []
    for node in flow.nodes:
        where = paths[node.module] if node.module >= 0 else ""
        call = f"#{node.call}" if node.call else ""
        names.append(
            {Kind.CALL: where + call, Kind.CODE: f"{where}:{node.text}", Kind.INPUT: f"<{node.text}>"}[node.kind]
        )
    return flow, names


def into(flow: Flow, names: list[str], target: str) -> list[set[str]]:
    """Return what leads to each of the nodes of a name, in their order."""
    return [
        {names[edge.source] for edge in flow.edges if edge.target == at}
        for at, name in enumerate(names)
        if name == target
    ]


def test_residuals_are_sums_and_every_module_has_who_made_its_input(tmp_path: Path) -> None:
    flow, names = flow_in(record(tmp_path / "a.h5", gpt()))
    assert into(flow, names, "embed") == [{"<0>"}]
    assert into(flow, names, "layers.0.norm1") == [{"embed"}]
    assert into(flow, names, "layers.1:+") == [{"layers.0:+", "layers.1.attn.o"}, {"layers.1:+", "layers.1.mlp.down"}]
    assert into(flow, names, "layers.1.norm2") == [{"layers.1:+"}]
    assert into(flow, names, "layers.1.attn.q") == [{"layers.1.norm1"}]
    assert into(flow, names, "layers.1.mlp.act") == [{"layers.1.mlp.gate"}]
    assert into(flow, names, "head") == [{"norm"}]
    known = {(names[edge.source], names[edge.target]): edge.is_known for edge in flow.edges}
    assert known["layers.1.attn.o", "layers.1:+"] and not all(known.values()), "what attention computes is a guess"


def test_what_stands_inside_a_call_comes_behind_it(tmp_path: Path) -> None:
    flow, names = flow_in(record(tmp_path / "a.h5", gpt()))
    assert all(node.parent < at for at, node in enumerate(flow.nodes))
    parents = {names[at]: names[node.parent] if node.parent >= 0 else None for at, node in enumerate(flow.nodes)}
    assert parents["layers.1.mlp.gate"] == "layers.1.mlp" and parents["layers.1.mlp"] == "layers.1"
    assert parents["layers.1"] == "" and parents["<0>"] is None


class Shared(nn.Module):
    """A layer that runs twice, and a difference."""

    def __init__(self) -> None:
        super().__init__(twice=nn.Linear(4, 4), last=nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.twice(x)
        return self.last(self.twice(y) - y * 3.0)


def test_calls_of_a_shared_module_are_told_apart_and_factors_are_found(tmp_path: Path) -> None:
    nn.manual_seed(0)
    model = Shared()
    with probe.capture(model, tmp_path / "a.h5"):
        model(Tensor(sample((5, 4), 0))).sum().backward()
        probe.step(loss=1.0)
    flow, names = flow_in(tmp_path / "a.h5")
    assert into(flow, names, "twice#1") == [{"twice"}]
    (made,) = into(flow, names, "last")
    assert into(flow, names, made.pop()) == [{"twice", "twice#1"}]


@pytest.mark.parametrize(
    ("factors", "label"),
    [
        ((1, 1, 0), "+"),
        ((1, -1, 0), "−"),
        ((0, 0.125, 0), "× 0.125"),
        ((0, 1, 0), ""),
        ((1, 0.5, 0), "+ ×"),
        ((1, 1, 1), "+"),
    ],
)
def test_a_sum_is_told_from_its_sketch(factors: tuple[float, ...], label: str) -> None:
    rng = np.random.default_rng(0)
    tried = [rng.standard_normal(61) for _ in factors]
    target = sum(factor * each for factor, each in zip(factors, tried, strict=True))
    found = as_sum(target, tried, 2.0**-24)
    assert found is not None and found.label == label
    assert found.terms == tuple(at for at, factor in enumerate(factors) if factor)
    assert as_sum(rng.standard_normal(61), tried, 2.0**-24) is None


@pytest.fixture(scope="module")
def made_graph(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return document(compared(tmp_path_factory.mktemp("graph")))


def test_both_sides_stand_in_the_page_pair_by_pair(made_graph: dict[str, Any]) -> None:
    flow, sides, words = made_graph["flow"], made_graph["sides"], made_graph["words"]
    path = {side: sides[side]["modules"]["path"] for side in "ab"}
    calls = {
        path["b"][flow["b"]["module"][at]]: path["a"][flow["a"]["module"][twin]]
        for at, twin in enumerate(flow["twin"])
        if twin >= 0 and flow["b"]["kind"][at] == 0
    }
    assert calls["decoder.1.ln2"] == "layers.1.norm2" and calls["output"] == "head"
    assert "decoder.1.residual" not in calls, "A has no such module"
    tensors = made_graph["tensors"]
    of = {
        path["a"][flow["a"]["module"][flow["a"]["source"][k]]]: words[tensors["verdict"][i]]
        for k, i in enumerate(flow["a"]["of"])
        if i >= 0 and flow["a"]["kind"][flow["a"]["source"][k]] == 0
    }
    assert of["layers.1.norm2"] == "inherited" and of["layers.0.norm2"] in ("noise", "equal")


def test_the_graph_is_of_the_micro_batch_in_which_it_begins(tmp_path: Path) -> None:
    flow = document(compared(tmp_path, fault=False, steps=2))["flow"]
    assert (flow["step"], flow["micro"]) == (0, 0)
