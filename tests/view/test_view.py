"""The HTML report in a browser: what a person sees at once, in which words, and does; the headline of every kind of page."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.records import Phase, Role
from probe.report.html import as_html
from probe.testing import sample
from tests.report.reading import MAPPING, Port, PortedBlock, compared, recorded
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import gpt, module, record, rounding_otherwise
from tests.view.waiting import until

# ---- The HTML report in a browser: what a person sees, and does.

Show = Callable[..., Any]


def written(comparison: Any, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(as_html(comparison), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of one fault, from values."""
    folder = tmp_path_factory.mktemp("view")
    return written(compared(folder, task="tensor"), folder)


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    """The same with a mapping that leaves out the second norm of each layer."""
    mapping = {**MAPPING, "Block": {"norm1": "ln1", "attn": "attention"}}
    return written(probe.compare(*recorded(tmp_path), mapping=mapping, min_confidence=1), tmp_path)


def selected(page: Any) -> str:
    return page.locator(".row.selected").inner_text()


def shown_rows(page: Any) -> list[str]:
    return [row.inner_text().replace("\n", " ") for row in page.locator(".row").all()]


def test_the_verdict_is_on_the_first_screen(report: Path, opened: Show) -> None:
    page = opened(report).page
    assert page.locator("h1").inner_text() == "Diverged"
    verdict = page.locator(".verdict")
    assert "First divergence: layers.1.norm2 ⟷ decoder.1.ln2" in verdict.inner_text()
    assert "layers.1.norm2" in verdict.inner_text() and "decoder.1.ln2" in verdict.inner_text()
    assert "inputs agree" in verdict.inner_text()
    chain = page.locator(".chain button").all_inner_texts()
    assert [text.replace("\u2009", " ") for text in chain] == ["GPT ⟷ Port", "layers ⟷ decoder", "1", "norm2 ⟷ ln2"]
    for part in (verdict, page.locator(".canvas canvas")):
        box = part.bounding_box()
        assert box["y"] + box["height"] < 800


def test_n_and_p_go_to_what_is_introduced_and_unmatched(report: Path, partial: Path, opened: Show) -> None:
    page = opened(report).page
    page.locator("#row-0").click()
    page.keyboard.press("n")
    assert "norm2" in selected(page) and "◆" in selected(page)
    row = page.locator(".row.selected").bounding_box()
    assert 0 <= row["y"] < 800 - row["height"]

    page = opened(partial).page
    page.get_by_label("What to jump to").select_option("unmatched")
    page.locator("h1").first.click()
    found = []
    for key in "nnnnnnnp":
        page.keyboard.press(key)
        found += page.locator(".panel .path").all_inner_texts()
    each = [f"{name}.{n}.{norm}" for n in range(3) for name, norm in (("decoder", "ln2"), ("layers", "norm2"))]
    assert found == [*each, each[0], each[-1]]


def test_what_needs_no_partner_is_told_from_what_has_none(partial: Path, opened: Show) -> None:
    page = opened(partial).page
    facts = page.locator(".facts").inner_text()
    assert "Unmatched\n3 modules in A, 3 in B" in facts and "Need no partner\n0 modules in A, 3 in B" in facts
    page.get_by_label("Verdict", exact=True).select_option("needs no partner")
    assert page.locator(".found").inner_text().startswith("3 rows")
    row = page.get_by_role("row").filter(has_text="residual").first
    assert "none needed" in row.inner_text() and row.get_by_role("button", name="match").evaluate(
        "b => getComputedStyle(b).opacity") == "0"  # fmt: skip
    row.click()
    assert "It has no counterpart and needs none" in page.locator(".panel").inner_text()
    assert row.get_by_role("button", name="match").evaluate("b => getComputedStyle(b).opacity") == "1"
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    assert "no counterpart" in page.get_by_role("row").filter(has_text="ln2").first.inner_text()
    page.get_by_role("tab", name="What this rests on").click()
    page.get_by_text("Need no partner in B").click()
    assert page.locator(".names li").all_inner_texts()[-1] == "decoder.2.residual"


def test_search_and_filters(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.keyboard.press("/")
    page.keyboard.type("RMSNorm")
    assert page.locator(".found").inner_text().startswith("7 rows")
    page.get_by_label("Verdict", exact=True).select_option("introduced")
    assert page.locator(".found").inner_text().startswith("1 row")
    rows = shown_rows(page)
    assert len(rows) == 4 and rows[0].startswith("▾ GPT") and "norm2" in rows[-1]
    page.get_by_role("button", name="clear").click()
    page.get_by_label("Reason of the match").select_option("same path")
    assert all("norm1" not in row for row in shown_rows(page))
    page.get_by_label("Reason of the match").select_option("")
    page.get_by_label("Phase", exact=True).select_option("gradient")
    assert all("act " not in row for row in shown_rows(page)), "an activation has no parameters"


def test_the_panel_of_a_module(report: Path, opened: Show) -> None:
    page = opened(report).page
    panel = page.locator(".panel")
    text = panel.inner_text()
    for part in ("layers.1.norm2", "decoder.1.ln2", "RMSNorm", "nn.py:", "Matched: mapped", "1 call: train mode",
                 "step 0 · forward · introduced", "float32", "Worst elements"):  # fmt: skip
        assert part in text, part
    assert "[2, 6, 16]" in text
    shades = panel.locator("canvas.heat").evaluate(
        "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
    )
    assert shades > 10
    panel.get_by_label("Which axes").select_option("0")
    assert (
        panel.locator("canvas.heat")
        .get_attribute("aria-label")
        .startswith("Error over batch (axis 0) down and token (axis 1) across")
    )
    panel.get_by_role("button", name="input 0").first.click()
    assert panel.locator(".tensor.open").count() == 2


def test_the_picture_tells_and_leads(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.locator("#row-0").click()
    box = page.locator(".canvas .u-over").bounding_box()
    found = None
    for k in range(0, int(box["width"]), 4):
        for level in (0.2, 0.3, 0.4, 0.5):
            page.mouse.move(box["x"] + k, box["y"] + level * box["height"])
            hover = page.locator(".hover")
            if hover.count() and "introduced" in hover.inner_text():
                found = hover.inner_text()
                break
        if found:
            break
    assert found and "layers.1.norm2" in found and "is explained" in found
    page.mouse.down()
    page.mouse.up()
    assert "norm2" in selected(page)


def test_the_tree_by_keys(report: Path, opened: Show) -> None:
    page = opened(report).page
    page.locator("#row-0").click()
    page.locator(".grid").focus()
    for key in ("Home", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert selected(page).startswith(("▸", "▾", "layers"))
    before = page.locator(".row").count()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".row").count() < before
    page.keyboard.press("ArrowRight")
    assert page.locator(".row").count() == before
    tree = page.get_by_role("treegrid")
    assert tree.get_attribute("aria-activedescendant") == page.locator(".row.selected").get_attribute("id")
    assert page.locator(".row.selected").get_attribute("aria-expanded") == "true"


def test_steps_can_be_chosen(tmp_path: Path, opened: Show) -> None:
    a = record(tmp_path / "a.h5", steps=2)
    b = record(tmp_path / "b.h5", rounding_otherwise(Port()), steps=2)
    found = probe.compare(a, b, mapping=MAPPING)
    page = opened(written(found, tmp_path)).page
    assert page.locator("h1").inner_text() == "Aligned"
    assert "Closest to its limit" in page.locator(".verdict").inner_text()
    cells = page.locator(".row .cell").all_inner_texts()
    page.get_by_label("Step", exact=True).select_option("1")
    assert page.locator(".row .cell").all_inner_texts() != cells
    page.get_by_role("tab", name="Curves").click()
    curves = page.locator(".curve").all_inner_texts()
    assert [text.split(" ")[0].split("\n")[0] for text in curves[:3]] == ["loss", "norm", "learning"]
    assert page.get_by_label("Norm of the gradient of").locator("option").count() == sum(
        (slot.step, slot.phase, slot.role) == (0, Phase.UPDATE, Role.PARAM_GRAD) for slot in found.slots
    )
    page.get_by_label("Norm of the gradient of").select_option(label="embed.weight ⟷ words.weight")
    assert "embed.weight ⟷ words.weight" in page.locator(".curve").last.inner_text()


def test_pairs_that_are_picked_change_the_next_comparison(tmp_path: Path, opened: Show) -> None:
    """What nothing paired is picked by mouse on both sides; with the lines that come out it is compared."""
    folders = [tmp_path / "a", tmp_path / "b"]

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2.0

    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for each in vars(self)["_order"]:
                x = getattr(self, each)(x)
            return x

    paths = []
    for folder, names in zip(folders, (("first", "odd", "last"), ("first", "y-es", "last")), strict=True):
        folder.mkdir()
        nn.manual_seed(0)
        middle = Odd() if names[1] == "odd" else Other()
        model = Net(**{names[0]: nn.Linear(4, 4), names[1]: middle, names[2]: nn.Linear(4, 4)})
        vars(model)["_order"] = names
        path = folder / "run.h5"
        with probe.capture(model, path):
            model(Tensor(sample((5, 4), 0))).sum().backward()
            probe.step(loss=1.0)
        paths.append(path)
    before = probe.compare(*paths, min_confidence=1)
    assert (before.unneeded_a, before.unneeded_b) == (("odd",), ("y-es",))

    report = opened(written(before, tmp_path))
    page = report.page
    for name in ("odd", "y-es"):
        page.get_by_role("row").filter(has_text=name).get_by_role("button", name="match").click()
    assert page.locator(".preview").inner_text().count("bit-equal") >= 2
    page.get_by_role("button", name="Add this pair").click()
    assert page.locator("textarea").input_value() == "TopLayer:\n  odd: y-es\n"
    page.get_by_role("button", name="See and export").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as a file").click()
    download.value.save_as(tmp_path / "map.yaml")
    assert download.value.suggested_filename == "layer_mapping.yaml"
    after = probe.compare(*paths, mapping=tmp_path / "map.yaml")
    assert (after.unneeded_a, after.unneeded_b) == ((), ())
    assert after["odd"][0].reason == "mapped"


@pytest.mark.parametrize(("scope", "paired"), [("class", 3), ("path", 1)])
def test_lines_by_class_and_by_path(scope: str, paired: int, tmp_path: Path, opened: Show) -> None:
    """Inside a layer, a line is said of every such layer, or of one."""
    _, b = recorded(tmp_path)
    a = record(tmp_path / "c.h5", _named_residual())
    found = probe.compare(a, b, min_confidence=1)
    assert len(found.only_a) == len(found.only_b) == 3
    page = opened(written(found, tmp_path)).page
    page.get_by_label("Search path or class").fill("1.")
    for name in ("sum", "residual"):
        page.get_by_role("row").filter(has_text=name).get_by_role("button", name="match").first.click()
    page.get_by_role("button", name="Add this pair").click()
    page.get_by_role("button", name="See and export").click()
    page.get_by_label("For which modules").select_option(scope)
    lines = page.locator("textarea").input_value()
    assert ("PortedBlock" in lines) == (scope == "class") and "sum: residual" in lines
    (tmp_path / "map.yaml").write_text(lines, encoding="utf-8")
    after = probe.compare(a, b, mapping=tmp_path / "map.yaml", min_confidence=1)
    assert len(after.only_a) == len(after.only_b) == 3 - paired


def _named_residual() -> nn.Module:
    """The port again, whose additions have another name."""

    class Renamed(PortedBlock):
        def forward(self, x: Tensor) -> Tensor:
            x = self.sum(x, self.attention(self.ln1(x)))
            return self.sum(x, self.mlp(self.ln2(x)))

    Renamed.__name__ = "PortedBlock"
    model = Port()
    for block in model.decoder:
        block.__class__ = Renamed
        members = vars(block)
        members["sum"] = members.pop("residual")
    return model


def test_light_dark_narrow_and_printed(report: Path, opened: Show) -> None:
    from playwright.sync_api import expect

    page = opened(report, color_scheme="dark", viewport={"width": 700, "height": 900}).page
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(20, 23, 27)"
    page.get_by_role("button", name="Light").click()
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.emulate_media(media="print")
    assert not page.locator(".toolbar").is_visible() and page.locator(".verdict").is_visible()


def test_tolerances_that_were_chosen_read_as_such(tmp_path: Path, opened: Show) -> None:
    runs = recorded(tmp_path, task="tensor")
    page = opened(written(probe.compare(*runs, mapping=MAPPING, atol=1e-6, rtol=1e-3), tmp_path)).page
    text = page.locator(".verdict").inner_text()
    assert "times the tolerance, limit 1)" in text and "is noise)" not in text
    assert "Limits from\nfixed allclose atol 1e-06 rtol 0.001" in text
    assert "Error (times the tolerance), in execution order" in page.locator(".picture").inner_text()
    assert "within the chosen tolerance" in page.locator(".legend").inner_text()
    judged = page.locator(".panel .metrics").inner_text()
    assert "judged\ntimes the tolerance " in judged and ", limit 1\n" in judged

    page = opened(written(probe.compare(*runs, mapping=MAPPING, rtol=0.9, metric="rel_l2"), tmp_path)).page
    assert "Nothing that was compared is beyond the tolerance that was chosen" in page.locator(".verdict").inner_text()
    assert "; limit 0.9." in page.locator(".verdict").inner_text()

    rules = [{"path": "decoder.*", "rtol": 0.9, "metric": "rel_l2"}]
    page = opened(written(probe.compare(*runs, mapping=MAPPING, rules=rules), tmp_path)).page
    assert (
        "within its limit" in page.locator(".legend").inner_text()
        and "1 rule; else built-in model" in page.locator(".facts").inner_text()
    )


def test_an_update_is_judged_by_more_than_its_error(tmp_path: Path, opened: Show) -> None:
    page = opened(written(compared(tmp_path), tmp_path)).page
    page.get_by_role("button", name="delta weight").first.click()
    assert "is explained; its length and direction are judged too" in page.locator(".panel").inner_text()


def test_lines_of_source_stand_in_the_panel_and_beside_one_another(report: Path, opened: Show) -> None:
    page = opened(report).page
    shown = page.locator(".panel > .sources > .source")
    heads = shown.locator(".excerpt > .dim:first-child")
    assert [text.split(":")[0] for text in heads.all_inner_texts()] == ["A B nn.py"]
    page.evaluate("location.hash = '#layers.1'")
    page.get_by_text("reading.py").first.wait_for()
    assert [text.split(":")[0] for text in heads.all_inner_texts()] == ["A toys.py", "B reading.py"]
    assert [line.strip() for line in shown.locator(".meant bdi").all_inner_texts()] == [
        "def forward(self, x: Tensor) -> Tensor:"
    ] * 2
    assert "self.residual(x, self.mlp(self.ln2(x)))" in shown.inner_text()
    page.get_by_role("button", name="side by side").click()
    left, right = (box.bounding_box() for box in page.locator("dialog .excerpt").all())
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]
    page.keyboard.press("Escape")
    assert not page.locator("dialog.wide").is_visible()


def test_a_long_hint_is_whole_in_the_panel(report: Path, opened: Show) -> None:
    page = opened(report).page
    sizes = "(hint) => { hint.textContent = 'word '.repeat(80); return [hint.clientHeight, hint.scrollHeight]; }"
    seen, needed = page.locator(".panel .hint").first.evaluate(sizes)
    assert seen >= needed > 100


def test_the_search_field_shows_what_it_is(report: Path, opened: Show) -> None:
    field = opened(report).page.locator("#search")
    assert field.get_attribute("placeholder") == "Search  ( / )"
    measured = "const c = document.createElement('canvas').getContext('2d'); c.font = getComputedStyle(field).font;"
    width = f"(field) => {{ {measured} return [c.measureText(field.placeholder).width, field.clientWidth]; }}"
    needed, there = field.evaluate(width)
    assert needed + 10 < there


# ---- What is seen at 1280×800 without a touch: the verdict, the picture and the faulty row.

FAULTS = {
    "qwen2": ("model.layers.2.post_attention_layernorm", "variance_epsilon", 1e4),
    "gpt2": ("transformer.h.2.attn.c_proj", "weight", 1.02),
    "bert": ("bert.encoder.layer.1.output.LayerNorm", "eps", 1e10),
    "t5": ("decoder.block.1.layer.2.layer_norm", "variance_epsilon", 1e4),
    "resnet": ("blocks.1.bn2", "eps", 1e3),
}
"""by model: the module, the attribute that is multiplied, and the factor"""
ON_SCREEN = (".verdict", ".canvas", ".legend", ".row.selected")


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_verdict_picture_and_faulty_row_stand_on_the_first_screen(
    task: str, tmp_path: Path, opened: Callable[..., Any]
) -> None:
    path = tmp_path / "report.html"
    path.write_text(as_html(compared(tmp_path, task=task)), encoding="utf-8")
    page = opened(path).page
    assert "norm2" in page.locator(".row.selected").inner_text()
    is_complete(page)


def is_complete(page: Any) -> None:
    """Hold that the first screen has all that it should."""
    for place in ON_SCREEN:
        box = page.locator(place).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 800, place
    row, rows = page.locator(".row.selected").bounding_box(), page.locator(".rows").bounding_box()
    assert rows["y"] <= row["y"] and row["y"] + row["height"] <= rows["y"] + rows["height"], "nothing covers it"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of each small model, recorded in a process of its own: the browser's has no framework."""
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"records models of torch and transformers; there is no {name}")
    folder = tmp_path_factory.mktemp("models")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.view.small_models", str(folder), json.dumps(FAULTS)]
    subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[2])
    return folder


PAINTED = """() => {
  const painted = { names: [], diamonds: [] };
  const { fillText, moveTo } = CanvasRenderingContext2D.prototype;
  const style = getComputedStyle(document.documentElement).getPropertyValue("--introduced").trim();
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.fillStyle === style) painted.names.push({ text, x, y, width: this.measureText(text).width, across: this.canvas.width });
    fillText.call(this, text, x, y);
  };
  CanvasRenderingContext2D.prototype.moveTo = function (x, y) {
    if (this.fillStyle === style) painted.diamonds.push({ x, y });
    moveTo.call(this, x, y);
  };
  globalThis.painted = painted;
  dispatchEvent(new Event("beforeprint")); // paints it anew
}"""
"""what is painted in the colour of what is wrong by itself"""


@pytest.mark.parametrize("name", FAULTS)
def test_real_pairs_fill_the_first_screen(name: str, runs: Path, tmp_path: Path, opened: Callable[..., Any]) -> None:
    path = tmp_path / "report.html"
    path.write_text(as_html(probe.compare(runs / f"{name}-a.h5", runs / f"{name}-b.h5")), encoding="utf-8")
    page = opened(path).page
    page.wait_for_selector("#app[data-state=shown]")
    where = FAULTS[name][0]
    assert where in page.locator(".verdict").inner_text() and page.evaluate("scrollY") == 0
    assert page.locator(".panel .path").first.inner_text() == where
    assert page.locator(".row.selected .cell.introduced").count() >= 1
    is_complete(page)
    page.evaluate(PAINTED)
    until(page, "painted.names.length > 0")
    painted = page.evaluate("painted")
    first = painted["names"][0]
    assert where.endswith(first["text"]) and first["x"] >= 0 and first["x"] + first["width"] <= first["across"]
    assert any(first["x"] - 20 <= at["x"] <= first["x"] + first["width"] + 20 and abs(at["y"] - first["y"]) < 30
               for at in painted["diamonds"]), "it stands at a diamond"  # fmt: skip


# ---- The headline of every kind of page: the verdict, what it says nothing of, and where its reason leads.

WITHIN = "Nothing that was compared differs by more than rounding explains."


def both(folder: Path, change: Callable[[Any], Any] = rounding_otherwise, **options: Any) -> Any:
    """Compare the clean model with a changed one."""
    return probe.compare(record(folder / "a.h5", **options), record(folder / "b.h5", change(gpt()), **options))


def with_nan(folder: Path) -> Any:
    """Compare two models of which both have NaN in one weight."""
    models = gpt(), gpt()
    for model in models:
        module(model, "layers.1.norm2").weight.data[:] = np.nan
    return probe.compare(*(record(folder / f"{name}.h5", model) for name, model in zip("ab", models, strict=True)))


def ignoring(folder: Path) -> Any:
    """Compare what a mapping ignores a part of and leads to nothing in another, and what was recorded in part."""
    _, b = recorded(folder, fault=False, steps=2, phases=["init", "forward"])
    table = {**MAPPING["TopLayer"], "embed": "nowhere"}
    mapping = {**MAPPING, "TopLayer": table, "ignore": ["*.mlp"]}
    return probe.compare(record(folder / "c.h5"), b, mapping=mapping, min_confidence=1)


def one(folder: Path) -> Any:
    return record(folder / "a.h5")


PAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "aligned": (both, f"Aligned {WITHIN}"),
    "aligned but for phases": (
        lambda folder: both(folder, phases=["forward"]),
        "Aligned but for init, backward, gradient, update (not recorded)",
    ),
    "aligned but for more": (
        ignoring,
        "Aligned but for backward, gradient, update (not recorded in B), step 1 (not recorded in A), "
        "weight embed.weight (only in A) and 2 more",
    ),
    "diverged": (compared, "Diverged First divergence: layers.1.norm2 ⟷ decoder.1.ln2 step 0 · forward · introduced"),
    "undecided": (with_nan, "Undecided It could not be told whether the runs agree."),
    "undecided, of no module": (
        lambda folder: probe.compare(folder / "a.h5", record(folder / "a.h5")),
        "Undecided It could not be told whether the runs agree.",
    ),
    "one recording": (one, "Recorded GPT numpy"),
}


def written_headline(made: Any, folder: Path) -> Path:
    path = folder / "report.html"
    if isinstance(made, Path):
        with probe.open(made) as run:
            return run.save(path)
    path.write_text(as_html(made), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PAGES)
def test_the_headline(name: str, tmp_path: Path, opened: Show) -> None:
    make, expected = PAGES[name]
    made = make(tmp_path)
    page = opened(written_headline(made, tmp_path)).page
    said = " ".join(page.locator(".headline").inner_text().split())
    assert said.startswith(expected) if isinstance(made, Path) else said == expected
    text = page.locator("body").inner_text()
    assert "[object" not in text and "undefined" not in text
    if not isinstance(made, Path) and "but for" in expected:
        assert WITHIN in page.locator(".verdict").inner_text()
        assert page.title().startswith(expected.replace("Aligned", "aligned")), "nor does the title drop it"
        assert expected.removeprefix("Aligned ") in repr(made), "nor what Python prints"


def test_all_that_was_not_compared_is_said(tmp_path: Path, opened: Show) -> None:
    page = opened(written_headline(ignoring(tmp_path), tmp_path)).page
    said = page.locator(".answer p", has_text="Not compared: ").inner_text()
    for part in (
        "backward, gradient, update (not recorded in B)",
        "words.weight (only in B)",
        "36 weights (ignored by the mapping)",
    ):
        assert part in said


def test_why_it_could_not_be_told_leads_to_the_module(tmp_path: Path, opened: Show) -> None:
    page = opened(written_headline(with_nan(tmp_path), tmp_path)).page
    path = page.locator(".panel .path").first
    assert path.inner_text() == "layers.1.norm2", "it is looked at first"
    page.locator("#row-0").click()
    assert path.inner_text() == "(the whole model)"
    doubt = page.locator(".doubts li").first
    assert doubt.inner_text().startswith("step 0: init param weight of layers.1.norm2 has NaN on both sides")
    doubt.get_by_role("button", name="layers.1.norm2").click()
    assert path.inner_text() == "layers.1.norm2" and "norm2" in page.locator(".row.selected").inner_text()
    assert "NaN/Inf" in page.locator(".row.selected").inner_text(), "and that it is equal is not all that is said"


# ---- Words that somebody meets who has not read anything: each says what it means, or is not said where it means nothing.

STEPS = 3


def written_words(answer: Any, folder: Path) -> Path:
    path = folder / "report.html"
    path.write_text(as_html(answer), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def structural(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run that has numbers, and one that has none."""
    folder = tmp_path_factory.mktemp("structure")
    a = record(folder / "a.h5", steps=STEPS)
    return written_words(probe.compare(a, record(folder / "b.h5", steps=STEPS, task="structure")), folder)


def test_a_curve_of_one_side_alone_is_not_called_equal(structural: Path, opened: Show) -> None:
    page = opened(structural).page
    page.get_by_role("tab", name="Curves").click()
    said = page.locator(".curve figcaption").all_inner_texts()
    assert any("norm of all recorded gradients only in A" in each for each in said)
    assert "loss equal" in said


def test_what_is_not_comparable_is_in_the_legend(structural: Path, opened: Show, tmp_path: Path) -> None:
    page = opened(structural).page
    assert "n/c" in page.locator(".row .cell").all_inner_texts()
    assert "n/c not comparable" in page.locator(".picture .legend").inner_text()
    page = opened(written_words(compared(tmp_path), tmp_path)).page
    assert "n/c" not in page.locator(".picture .legend").inner_text()


def test_the_graph_of_what_was_not_compared_has_a_phase(structural: Path, opened: Show) -> None:
    page = opened(structural).page
    page.get_by_role("tab", name="Graph").click()
    assert page.get_by_label("Phase of the graph").input_value() == "forward"


def test_gradients_that_differ_by_rounding_are_said_to(tmp_path: Path, opened: Show) -> None:
    a = record(tmp_path / "a.h5", steps=STEPS)
    answer = probe.compare(a, record(tmp_path / "b.h5", rounding_otherwise(gpt()), steps=STEPS))
    assert answer.verdict.value == "aligned"
    page = opened(written_words(answer, tmp_path)).page
    page.get_by_role("tab", name="Curves").click()
    assert page.locator(".curve figcaption").last.inner_text().endswith(", which rounding explains")


def test_the_facts_beside_the_answer_are_explained(tmp_path: Path, opened: Show) -> None:
    page = opened(written_words(compared(tmp_path), tmp_path)).page
    for name in ("Confidence", "Margin", "Limits from"):
        assert len(page.locator(".facts dt", has_text=name).get_attribute("title")) > 40
    assert "× the limits" in page.locator(".facts").inner_text()
