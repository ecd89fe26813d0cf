"""The report of a real comparison: Qwen2 of transformers against a Megatron-style port with one wrong eps, as a person uses it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.mapping import library
from probe.report.html import as_html
from tests.view.waiting import until

for name in ("torch", "transformers"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"records models of torch and transformers; there is no {name}", allow_module_level=True)

Show = Callable[..., Any]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WRONG = "model.layers.3.post_attention_layernorm", "decoder.layers.3.pre_mlp_layernorm"
TASKS = ("statistics", "tensor")


SEVERAL = """
import json, runpy, sys
for sys.argv in json.loads(sys.argv[1]):
    sys.path[0] = sys.argv[0].rpartition("/")[0]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""


def run(*commands: Sequence[str]) -> None:
    """Run examples one after the other in a process of their own, so that the browser's has no framework."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    each = json.dumps([[str(EXAMPLES / script), *arguments] for script, *arguments in commands])
    subprocess.run([sys.executable, "-c", SEVERAL, each], check=True, env=environment)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """The two recordings by task; in B one norm of layer 3 has an eps of 1e-5."""
    folder = tmp_path_factory.mktemp("real")
    found = {task: (folder / f"hf-{task}.h5", folder / f"megatron-{task}.h5") for task in TASKS}
    commands = []
    for task, (a, b) in found.items():
        commands.append(["train_hf.py", "--out", str(a), "--task", task, "--steps", "2"])
        commands.append(["train_megatron.py", "--out", str(b), "--task", task, "--steps", "2", "--fault", "eps"])
    run(*commands)
    return found


@pytest.fixture(scope="module")
def reports(runs: dict[str, tuple[Path, Path]]) -> dict[str, Path]:
    found = {}
    for task, (a, b) in runs.items():
        found[task] = a.with_name(f"{task}.html")
        found[task].write_text(as_html(probe.compare(a, b, mapping="megatron-core/qwen2")), encoding="utf-8")
    return found


def selected(page: Any) -> str:
    return page.locator(".row.selected").inner_text()


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_is_on_the_first_screen(task: str, reports: dict[str, Path], opened: Show) -> None:
    page = opened(reports[task]).page
    assert page.title() == f"diverged: hf-{task}.h5 and megatron-{task}.h5"
    text = page.locator(".verdict").inner_text()
    for part in ("Diverged", "First divergence: post_attention_layernorm ⟷ pre_mlp_layernorm", *WRONG, "step 0 · forward · introduced",
                 "inputs agree", "parameters equal, output differs", "58 of 58 module calls", "8 modules in A, 9 in B", "eps"):  # fmt: skip
        assert part in text, part
    assert ("A used eps 1.0e-06, B 1.0e-05" in text) == (task == "tensor")
    chain = page.locator(".chain button").all_inner_texts()
    assert [each.split(" ")[0] for each in chain] == [
        "Qwen2ForCausalLM",
        "model",
        "layers",
        "3",
        "post_attention_layernorm",
    ]
    assert page.evaluate("scrollY") == 0
    for place in (".verdict", ".chain", ".picture .canvas", ".legend"):
        box = page.locator(place).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 800, place


@pytest.mark.parametrize("task", TASKS)
def test_n_goes_to_it_and_the_panel_has_what_is_known(task: str, reports: dict[str, Path], opened: Show) -> None:
    page = opened(reports[task]).page
    page.get_by_role("treegrid").press("Home")
    page.locator("#row-0").click()
    assert "Qwen2ForCausalLM" in selected(page)
    page.locator("h1").click()
    page.keyboard.press("n")
    assert "post_attention_layernorm" in selected(page) and "◆" in selected(page)
    panel = page.locator(".panel")
    for part in (*WRONG, "Qwen2RMSNorm", "modeling_qwen2.py:", "megatron_gpt.py:", "Matched: mapped", "1 call: train mode", "float32",
                 "[2, 32, 128]", "[32, 2, 128]", "relative error", "norm B/A", "confidence"):  # fmt: skip
        assert part in panel.inner_text(), part
    heat = panel.locator("canvas.heat")
    if task == "statistics":
        assert (
            heat.count() == 0
            and 'record both runs with task="tensor" to see where the error lies' in panel.inner_text()
        )
        return
    assert "Error over token (axis 1) down and channel (axis 2) across" in heat.get_attribute("aria-label")
    colors = "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
    assert heat.evaluate(colors) > 50
    heat.scroll_into_view_if_needed()
    heat.hover(position={"x": 10, "y": 10})
    assert re.search(r"\[\d+, \d+\] +\d", panel.locator(".ends").first.inner_text())
    for part in (
        "Error along batch (axis 0)",
        "Error along token (axis 1)",
        "Values A and B",
        "Worst elements",
        "[0, 27, 31]",
    ):
        assert part in panel.inner_text(), part


def test_search_and_filters(reports: dict[str, Path], opened: Show) -> None:
    page = opened(reports["tensor"]).page
    found = page.locator(".found")
    page.keyboard.press("/")
    page.keyboard.type("pre_mlp")
    assert found.inner_text().startswith("6 rows")
    page.get_by_label("Search path or class").fill("qwen2rmsnorm")
    assert found.inner_text().startswith("13 rows")
    page.get_by_label("Verdict", exact=True).select_option("introduced")
    assert found.inner_text().startswith("1 row")
    page.get_by_role("button", name="clear").click()
    page.get_by_label("Reason of the match").select_option("same path")
    assert found.inner_text().startswith("1 row"), "the two models themselves"
    assert "pre_mlp_layernorm" not in page.locator(".rows").inner_text()
    page.get_by_role("button", name="clear").click()
    page.get_by_label("Verdict", exact=True).select_option("needs no partner")
    assert found.inner_text().startswith("17 rows")
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    assert found.inner_text().startswith("0 rows")


def test_curves_of_both_runs(reports: dict[str, Path], opened: Show) -> None:
    page = opened(reports["statistics"]).page
    texts = page.locator(".curve figcaption").all_inner_texts()
    assert [text.split("  ")[0].split(" up to")[0] for text in texts[:3]] == [
        "loss",
        "norm of all recorded gradients",
        "learning rate equal",
    ]
    assert (
        page.locator(".curve svg .mark").count() == 4
        and "first divergence (step 0)" in page.locator(".curves").inner_text()
    )


@pytest.mark.parametrize("task", TASKS)
def test_pairs_by_mouse_change_the_next_comparison(
    task: str, runs: dict[str, tuple[Path, Path]], tmp_path: Path, opened: Show
) -> None:
    """A mapping lacks two lines, and the answer is at the wrong place; picked, exported and appended they give the right one."""
    known = library()["megatron-core/qwen2"].read_text(encoding="utf-8").splitlines(keepends=True)
    lacking = "pre_mlp_layernorm: post", "output_layer: lm_head"
    mapping = tmp_path / "map.yaml"
    rest = "".join(line for line in known if not line.lstrip().startswith(lacking))
    mapping.write_text(rest, encoding="utf-8")
    before = probe.compare(*runs[task], mapping=mapping, min_confidence=1)
    assert before.first_divergence.path != WRONG[0] and (len(before.only_a), len(before.only_b)) == (7, 7)
    (tmp_path / "report.html").write_text(as_html(before), encoding="utf-8")

    page = opened(tmp_path / "report.html").page
    page.get_by_label("Verdict", exact=True).select_option("unmatched")
    for pair in (("lm_head", "output_layer"), ("post_attention_layernorm", "pre_mlp_layernorm")):
        for name in pair:
            page.get_by_label("Search path or class").fill(name)  # rows off the screen are not in the page
            page.get_by_role("row").filter(has_text=name).get_by_role("button", name="match").first.click()
        text = page.locator(".preview").inner_text()
        assert "forward output" in text and "param weight" in text and "bit-equal" in text
        page.get_by_role("button", name="Add this pair").click()
    page.get_by_role("button", name="See and export").click()
    lines = page.locator(".lines textarea").input_value()
    assert (
        lines
        == "TopLayer:\n  output_layer: lm_head\n\nTransformerLayer:\n  pre_mlp_layernorm: post_attention_layernorm\n"
    )
    assert "in every such class (6)" in page.locator(".lines").inner_text()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as a file").click()
    exported = Path(download.value.path()).read_text(encoding="utf-8")
    assert exported == lines

    top, layers = exported.split("\n\n")
    at = rest.index("  self_attention: self_attn")  # into the section that is there
    mapping.write_text(f"{rest[:at]}{layers.partition(chr(10))[2]}{rest[at:]}\n{top}\n", encoding="utf-8")
    after = probe.compare(*runs[task], mapping=mapping)
    assert (after.only_a, after.only_b) == ((), ()) and after.first_divergence.path == WRONG[0]
    assert after["lm_head"][0].reason == "mapped"


def test_the_best_candidates_are_the_right_ones(
    runs: dict[str, tuple[Path, Path]], tmp_path: Path, opened: Show
) -> None:
    """What two lines of the mapping say is found by Enter alone."""
    known = library()["megatron-core/qwen2"].read_text(encoding="utf-8").splitlines(keepends=True)
    mapping = tmp_path / "map.yaml"
    lacking = "pre_mlp_layernorm: post", "output_layer: lm_head"
    mapping.write_text("".join(line for line in known if not line.lstrip().startswith(lacking)), encoding="utf-8")
    before = probe.compare(*runs["statistics"], mapping=mapping, min_confidence=1)
    (tmp_path / "report.html").write_text(as_html(before), encoding="utf-8")
    page = opened(tmp_path / "report.html").page
    page.keyboard.press("m")
    for number in (1, 2):
        until(page, "document.activeElement.type === 'radio'")
        page.keyboard.press("Enter")
        until(page, "n => document.querySelectorAll('.lines li').length === n", number)
    assert page.get_by_role("form", name="Suggested pairs").count() == 0
    lines = page.locator(".lines textarea").input_value()
    assert {line.strip() for line in lines.splitlines() if line.startswith("  ")} == {
        "pre_mlp_layernorm: post_attention_layernorm", "output_layer: lm_head",
    }  # fmt: skip
