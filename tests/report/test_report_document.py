"""The document that the page shows, and the page around it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import probe
from probe.commands.cli import main
from probe.comparison.run import Comparison
from probe.errors import StoreError
from probe.matching import Reason
from probe.report.html import as_html
from probe.report.html.document import document
from probe.report.html.page import page
from probe.report.names import file_names
from tests.report.reading import MAPPING, compared, document_in, recorded
from tests.toys import gpt, record


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
    assert comparison.slots[first["tensor"]].metrics is comparison.divergences[0].metrics
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
    from probe.comparison.distance.metrics import Side, values_of_pair
    from probe.store.reading.reader import Reader
    from tests.files import Tensor, write_tensors

    x = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    y = x.transpose(1, 0, 2).copy()
    y[4, 2, 1] += 1
    write_tensors(tmp_path / "x.h5", [Tensor(x)], values=True)
    write_tensors(tmp_path / "y.h5", [Tensor(y)], values=True)
    with Reader(tmp_path / "x.h5") as first, Reader(tmp_path / "y.h5") as second:
        a, b = values_of_pair(Side(first, 0), 0, Side(second, 0), 0)
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
