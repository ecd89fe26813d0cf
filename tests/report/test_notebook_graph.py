"""The graph as a picture from Python: what is drawn where, and what runs into what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import probe
from probe.commands.cli import main
from probe.comparison.run import Comparison
from probe.errors import ConfigError, NotRecordedError
from tests.report.hostile import NAMES, recorded, visible
from tests.report.reading import MAPPING, Port, compared
from tests.toys import gpt, module, record

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
from matplotlib import patches  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import to_rgba  # noqa: E402

from probe.report.plots.axes import VERDICTS  # noqa: E402


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compared(tmp_path_factory.mktemp("graph"))


def places(ax: Any) -> dict[str, list[tuple[float, float]]]:
    """Return where the texts of a picture stand."""
    ax.figure.canvas.draw()
    found: dict[str, list[tuple[float, float]]] = {}
    for text in ax.texts:
        found.setdefault(text.get_text().split("  ")[0], []).append(text.get_position())
    return found


def arrows(ax: Any, verdict: str) -> list[Any]:
    wanted = to_rgba(VERDICTS[verdict])
    return [each for each in ax.patches if isinstance(each, patches.FancyArrowPatch) and each.get_edgecolor() == wanted]


def test_the_error_leaves_the_diamond_downstream_on_both_sides(answer: Comparison) -> None:
    ax = answer.plot("graph")
    found = places(ax)
    (xa, ya), (xb, yb) = *found["◆ norm2"], *found["◆ ln2"]
    assert ya == yb and xa < xb, "what is a pair stands at one height"
    assert found["attn"][0][1] < ya < found["mlp"][0][1], "in the order in which it ran"
    heads = {round(float(arrow.get_path().vertices[:, 1].max()), 1) for arrow in arrows(ax, "inherited")}
    assert heads and min(heads) > ya, "nothing before the diamond is inherited"
    thin = max(each.get_linewidth() for each in arrows(ax, "equal") + arrows(ax, "noise"))
    assert min(each.get_linewidth() for each in arrows(ax, "inherited")) > thin
    assert ax.get_title("left") == "DIVERGED: step 0, forward"


@pytest.mark.thorough
def test_what_is_given_something_wrong_has_no_diamond(tmp_path: Path) -> None:
    port = Port()
    block = module(port, "decoder.1")

    def forward(x: Any) -> Any:
        x = block.residual(x, block.attention(block.ln1(x)))
        return block.residual(x, block.mlp(block.ln2(x) * 1.5))

    block.forward = forward
    a, b = record(tmp_path / "a.h5", gpt()), record(tmp_path / "b.h5", port)
    answer = probe.compare(a, b, mapping=MAPPING)
    assert answer.first_divergence is not None and answer.first_divergence.path == "layers.1"
    marked = {name for name in places(answer.plot("graph", at="layers.1.mlp")) if name.startswith("◆")}
    assert not marked & {"◆ mlp", "◆ ln2", "◆ norm2"}, marked


@pytest.mark.thorough
def test_backward_runs_up(answer: Comparison) -> None:
    def ends(ax: Any) -> list[float]:
        ax.figure.canvas.draw()
        found = [each for each in ax.patches if isinstance(each, patches.FancyArrowPatch)]
        return [each._posA_posB[1][1] - each._posA_posB[0][1] for each in found]

    assert all(way > 0 for way in ends(answer.plot("graph")))
    ax = answer.plot("graph", phase="backward")
    assert ends(ax) and all(way < 0 for way in ends(ax)) and "backward" in ax.get_title("left")


def test_another_place_is_looked_at(answer: Comparison) -> None:
    ax = answer.plot("graph", at="layers.0.mlp.up")
    assert {"gate", "up", "down"} <= set(places(ax)), "what is beside it is seen"
    with pytest.raises(ConfigError, match="at='layers.9': no module of that path ran"):
        answer.plot("graph", at="layers.9")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "heat"}, r"kind='heat' is not known; expected 'error' or 'graph'$"),
        ({"kind": 3}, r"kind=3 is not known; expected 'error' or 'graph'; a step is chosen by step=3$"),
        ({"kind": "graph", "phase": "update"}, r"phase='update' is not known; expected 'forward' or 'backward'$"),
        ({"kind": "graph", "step": 9}, r"step 9 was not compared; there are 0$"),
        ({"at": "norm"}, r'at=\'norm\' is for the graph: plot\("graph", at=\'norm\'\)$'),
    ],
)
def test_what_cannot_be_drawn_is_named(answer: Comparison, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        answer.plot(**given)


def test_one_run_has_its_numbers_beside_it(tmp_path: Path) -> None:
    with probe.open(record(tmp_path / "a.h5", gpt(), steps=2)) as run:
        ax = run.plot("graph")
        norm = run["norm"].output[0]
        said = [text.get_text() for text in ax.texts]
        assert f"[{', '.join(map(str, norm.shape))}] {norm.dtype}, norm {norm.norm:.4g}" in said
        assert "norm2" not in places(ax) and "norm2" in places(run.plot("graph", at="layers.0.attn", step=1))
        with pytest.raises(NotRecordedError, match="no step 7; there are 0, 1"):
            run.plot("graph", step=7)
        with pytest.raises(ConfigError, match="at='nowhere': no module"):
            run.plot("graph", at="nowhere")


def test_a_run_without_steps_has_no_graph(tmp_path: Path) -> None:
    path = record(tmp_path / "a.h5", gpt(), steps=0)
    with probe.open(path) as run:
        for step in (None, 9):
            with pytest.raises(NotRecordedError, match=r"a\.h5 has no complete step$"):
                run.plot("graph", step=step)


@pytest.mark.thorough
def test_many_layers_are_folded_around_the_place(tmp_path: Path) -> None:
    with probe.open(record(tmp_path / "a.h5", gpt(layers=40))) as run:
        found = places(run.plot("graph", at="layers.20.mlp"))
    assert {"layers.19", "layers.20", "layers.21", "mlp"} <= set(found) and "layers.9" not in found
    assert any(name.endswith(" … 17") for name in found) and any(name.startswith("layers.23 … ") for name in found)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_are_text(tmp_path: Path, name: str) -> None:
    a, b = (recorded(tmp_path / f"{side}.h5", name, factor) for side, factor in (("a", 1.0), ("b", 1.1)))
    ax = probe.compare(a, b).plot("graph")
    ax.figure.canvas.draw()
    said = [text.get_text() for text in ax.texts]
    assert len([each for each in said if each.startswith("◆ ") and visible(name)[:6] in each]) == 2, said
    assert all(len(each) < 60 for each in said)
    with probe.open(a) as run:
        run.plot("graph").figure.savefig(tmp_path / "a.svg")


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ((), 0, "the page is in "),
        (("--at", "layers.1.mlp", "--step", "1"), 0, "the page is in "),
        (("--at", "layers.9"), 3, "--at layers.9: a.h5 has no module of that path"),
        (("--step", "9"), 3, "has no step 9; there are 0, 1"),
        (("-o", "none/x.html"), 3, "cannot write none/x.html: No such file"),
        (("-o", "x"), 3, "x: expected a name that ends in .html, .svg, .png or .pdf"),
        (("-o", "x.h6"), 3, "expected a name that ends in .html, .svg, .png or .pdf"),
        (("-o", "x.svg"), 0, "the graph is in x.svg"),
        (("-o", "x.svg", "--at", "layers.1.mlp", "--step", "1"), 0, "the graph is in x.svg"),
        (("-o", "x.svg", "--at", "layers.9"), 3, "at='layers.9': no module of that path ran in the step"),
        (("-o", "none/x.svg"), 3, "cannot write none/x.svg: No such file"),
        (("-lm", "m.yaml"), 3, "for two recordings, and one was given: expected probe view A B"),
        (("a.h5", "--at", "norm"), 3, "are for one recording"),
    ],
)
def test_view_of_one_recording_is_its_page_or_its_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], status: int, said: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", asked.append)
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "a.h5", gpt(), steps=2)
    done = CliRunner().invoke(main, ["view", "a.h5", *given])
    assert (done.exit_code, said in done.output) == (status, True), done.output
    assert len(asked) == (status == 0)
    if status == 0 and "-o" not in given and "--at" in given:
        assert asked[0].endswith("/run.html#layers.1.mlp"), "the page shows it first"


def test_without_matplotlib_it_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    done = CliRunner().invoke(main, ["view", str(record(tmp_path / "a.h5", gpt())), "-o", "x.png"])
    assert done.exit_code == 3 and "pip install 'probe-align[plot]'" in done.output
