"""The pictures of results and recordings: what they draw is what was recorded; the graph: what runs into what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

matplotlib = pytest.importorskip("matplotlib")

from matplotlib import patches  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.colors import LogNorm, to_rgba  # noqa: E402

import probe  # noqa: E402
from probe.answer.comparison import Comparison  # noqa: E402
from probe.commands.cli import main  # noqa: E402
from probe.errors import ConfigError, NotRecordedError  # noqa: E402
from probe.records import ModuleInfo  # noqa: E402
from probe.report.plots.axes import VERDICTS, label  # noqa: E402
from probe.report.plots.pair import MOST_POINTS, cells_of, error_of, points_of  # noqa: E402
from tests.report.hostile import NAMES, recorded, stored, visible  # noqa: E402
from tests.report.reading import MAPPING, Port, compared  # noqa: E402
from tests.store.files import Tensor, write_tensors  # noqa: E402
from tests.toys import gpt, module, record  # noqa: E402

# ---- The pictures of results and recordings: what they draw is what was recorded.

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compared(tmp_path_factory.mktemp("plots"), task="tensor")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = record(tmp_path_factory.mktemp("run") / "a.h5", gpt(), steps=4)
    with probe.open(path) as opened:
        yield opened


def texts(ax: Any) -> list[str]:
    """Return the texts of a picture, when it was drawn."""
    ax.figure.canvas.draw()
    return [each.get_text() for each in ax.figure.findobj(matplotlib.text.Text)]


def points(ax: Any, verdict: str) -> np.ndarray:
    """Return where a verdict's points stand."""
    colour = matplotlib.colors.to_rgba(VERDICTS[verdict])
    chosen = [each for each in ax.collections if tuple(each.get_facecolor()[0]) == colour]
    return np.concatenate([np.asarray(each.get_offsets()) for each in chosen] or [np.empty((0, 2))])


# Error over depth


@pytest.mark.thorough
def test_every_error_stands_in_the_order_of_cause(answer: Comparison) -> None:
    ax = answer.plot()
    known = [slot for slot in answer.slots if slot.metrics.is_known and slot.phase.label != "init"]
    for verdict in ("introduced", "inherited"):
        wanted = [(at, slot.error) for at, slot in enumerate(known) if slot.verdict == verdict]
        assert wanted and points(ax, verdict) == pytest.approx(np.array(wanted))
    assert ax.get_yscale() == "log" and len(points(ax, "introduced")) == 1
    band = next(patch for patch in ax.patches if isinstance(patch, matplotlib.patches.StepPatch))
    limits = np.array([slot.limit for slot in known])
    assert band.get_data().values[np.isfinite(limits)] == pytest.approx(limits[np.isfinite(limits)])
    low, high = ax.get_ylim()
    for verdict in ("equal", "noise"):
        heights = points(ax, verdict)[:, 1]
        assert ((low < heights) & (heights < high)).all(), "what is equal stands at the bottom, not outside"
    found = texts(ax)
    assert {"DIVERGED: step 0\n", "layers.1.norm2", "forward", "backward", "introduced", "explained"} <= {*found}
    assert "tensors in the order of cause; equal ones at the bottom" in found


@pytest.mark.thorough
def test_initial_weights_that_differ_are_drawn(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5", gpt(0)), record(tmp_path / "b.h5", gpt(1))
    ax = probe.compare(a, b).plot()
    assert "init" in texts(ax)
    assert len(points(ax, "introduced")) > 5


@pytest.mark.thorough
def test_a_step_is_chosen_and_drawn_where_it_is_told(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5", gpt(), steps=2), record(tmp_path / "b.h5", gpt(), steps=2)
    found = probe.compare(a, b)
    figure, (left, right) = plt.subplots(1, 2)
    assert found.plot(step=0, ax=left) is left and found.plot(ax=right) is right
    assert [left.get_title("left"), right.get_title("left")] == ["ALIGNED: step 0\n", "ALIGNED: step 1\n"]
    assert plt.get_fignums() == [figure.number]
    with pytest.raises(ConfigError, match=r"step 7 was not compared; there are 0, 1"):
        found.plot(step=7)
    c, d = record(tmp_path / "c.h5", gpt()), record(tmp_path / "d.h5", gpt())
    with pytest.raises(ConfigError, match=r"step 1 was not compared; there is only step 0$"):
        probe.compare(c, d).plot(step=1)


def test_infinite_errors_stand_at_the_top(tmp_path: Path) -> None:
    x = np.arange(1.0, 9.0)
    y = x.copy()
    y[3] = np.nan
    a, b = (write_tensors(tmp_path / f"{n}.h5", [Tensor(v)], values=True) for n, v in (("a", x), ("b", y)))
    ax = probe.compare(a, b).plot()
    found = points(ax, "introduced")
    assert len(found) == 1 and np.isfinite(found).all() and ax.get_ylim()[0] < found[0, 1] < ax.get_ylim()[1]


# Two tensors


def test_three_pictures_of_a_pair(answer: Comparison) -> None:
    pair = answer["layers.1.norm2"].output[0]
    values, error, scatter = pair.plot()
    assert "layers.1.norm2: output 0" in texts(values)
    a, b = pair.values()
    filled, line = (patch for patch in values.patches if isinstance(patch, matplotlib.patches.StepPatch))
    edges = filled.get_data().edges
    for side, patch in ((a, filled), (b, line)):
        assert patch.get_data().values.tolist() == np.histogram(side, edges)[0].tolist()
        assert patch.get_data().values.sum() == side.size
    assert [each.get_text() for each in values.get_legend().get_texts()] == ["A", "B"]
    (image,) = error.images
    assert np.asarray(image.get_array()) == pytest.approx(np.sqrt(np.mean((b - a) ** 2, axis=0)))
    assert (error.get_ylabel(), error.get_xlabel()) == ("axis 1 of A", "axis 2 of A")
    drawn = np.asarray(scatter.collections[0].get_offsets())
    assert drawn == pytest.approx(np.column_stack([a.ravel(), b.ravel()]))


def test_other_axes_on_axes_of_ones_own(answer: Comparison) -> None:
    pair = answer["layers.1.norm2"].output[0]
    _, ax = plt.subplots()
    assert pair.plot("error", axes=(-1, 0), ax=ax) is ax
    a, b = pair.values()
    assert np.asarray(ax.images[0].get_array()) == pytest.approx(np.sqrt(np.mean((b - a) ** 2, axis=1)).T)
    assert (ax.get_ylabel(), ax.get_xlabel()) == ("axis 2 of A", "axis 0 of A")


def test_a_weight_has_a_profile_and_equal_ones_say_so(answer: Comparison) -> None:
    gradient = answer["layers.1.norm2"].param_grad[0]
    ax = gradient.plot("error")
    a, b = gradient.values()
    assert ax.lines[0].get_ydata() == pytest.approx(np.abs(b - a)) and ax.get_xlabel() == "axis 0 of A"
    same = answer["layers.0.norm2"].output[0].plot("error")
    assert same.get_title("left") == "equal everywhere" and np.ma.getmaskarray(same.images[0].get_array()).all()
    same.figure.canvas.draw()


@pytest.mark.thorough
def test_what_cannot_be_drawn_is_said(answer: Comparison, tmp_path: Path) -> None:
    pair = answer["layers.1.norm2"].output[0]
    kinds = "'values', 'error', 'scatter'"
    with pytest.raises(ConfigError, match=f"kind='pie' is not known; expected one of {kinds}, or none for all"):
        pair.plot("pie")
    with pytest.raises(ConfigError, match=f"ax= takes one picture: choose it by kind=, one of {kinds}"):
        pair.plot(ax=plt.subplots()[1])
    for axes in ((0, 3), (1, 1), (2, -1), (0,)):
        with pytest.raises(ConfigError, match="expected two different axes of \\[2, 6, 16\\], such as \\(0, 1\\)"):
            pair.plot("error", axes=axes)
    loose = next(slot for slot in answer.slots if slot.path_a == "layers.1.norm2")
    with pytest.raises(ConfigError, match=r"take it as answer\[path\].output\[0\]"):
        loose.plot()
    found = compared(tmp_path)
    wanted = 'no values of output 0 of layers.1.norm2 were recorded in A and B: record both runs with task="tensor"'
    with pytest.raises(NotRecordedError, match=wanted):
        found["layers.1.norm2"].output[0].plot()
    assert plt.get_fignums() == [1], "nothing empty is left behind"


@pytest.mark.parametrize("length", [3, 5])
def test_values_are_those_that_were_compared(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A [s, b, h] against a [b, s, h] of a port, also where s is b: B's stand where A's do."""
    x = np.random.default_rng(0).standard_normal((5, length, 4)).astype(np.float32)
    y = x.transpose(1, 0, 2).copy()
    y[2, 4, 1] += 1
    a = write_tensors(tmp_path / "a.h5", [Tensor(x)], values=True)
    monkeypatch.setattr("tests.store.files.ModuleInfo", lambda path, _, parent: ModuleInfo(path, "Port", parent))
    b = write_tensors(tmp_path / "b.h5", [Tensor(y)], values=True)
    pair = probe.compare(a, b)[""].output[0]
    first, second = pair.values()
    assert np.argwhere(first != second).tolist() == [[4, 2, 1]] == [list(pair.metrics.max_abs_at)]


def test_errors_that_are_not_finite() -> None:
    a, b = np.array([1, np.nan, np.inf, np.nan, 1e308]), np.array([3, np.nan, np.inf, 0, -1e308])
    assert error_of(a, b).tolist() == [2, 0, 0, np.inf, np.inf]
    assert points_of(a, b).tolist() == [0, 4]


def test_cells_that_are_not_finite_are_marked(tmp_path: Path) -> None:
    x = np.ones((4, 6), np.float32)
    y = x.copy()
    y[2, 5], y[1, 1] = np.nan, 1.5
    a, b = (write_tensors(tmp_path / f"{n}.h5", [Tensor(v)], values=True) for n, v in (("a", x), ("b", y)))
    values, error, _ = probe.compare(a, b)[""].output[0].plot()
    assert error.get_title("left") == "error, root mean square; 1 not finite on one side"
    assert error.lines[0].get_xydata().tolist() == [[5, 2]]
    assert [each.get_text() for each in values.get_legend().get_texts()] == ["A", "B (1 not finite)"]
    error.figure.canvas.draw()


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [
    np.float32(3.0).reshape(()), np.array([[True, False], [True, True]]), np.arange(12).reshape(3, 4), np.ones((1, 1, 1)),
    np.arange(12).reshape(3, 4) * (1 + 2j), np.full((2, 3), np.nan), np.array([[1e300, -1e300], [2.0, 3.0]]),
])  # fmt: skip
def test_every_kind_of_number_is_drawn(value: np.ndarray, tmp_path: Path) -> None:
    other = value.copy()
    other.reshape(-1)[0] = not other.reshape(-1)[0] if other.dtype == bool else 2 * other.reshape(-1)[0] + 1
    a, b = (write_tensors(tmp_path / f"{n}.h5", [Tensor(v)], values=True) for n, v in (("a", value), ("b", other)))
    for ax in probe.compare(a, b)[""].output[0].plot():
        ax.figure.canvas.draw()


def test_what_has_no_elements(tmp_path: Path) -> None:
    a, b = (write_tensors(tmp_path / f"{n}.h5", [Tensor(np.zeros((0, 4)))], values=True) for n in "ab")
    with pytest.raises(ConfigError, match="nothing to draw: output 0 has no elements"):
        probe.compare(a, b)[""].output[0].plot()


def test_large_tensors_are_binned_and_sampled() -> None:
    error = np.zeros((1000, 600))
    error[999, 599] = 3.0
    cells = cells_of(error, (0, 1))
    assert cells.shape == (256, 256) and (cells > 0).sum() == 1
    count = 1000 / 256, 600 / 256
    assert cells[-1, -1] == pytest.approx(3 / np.sqrt(np.ceil(count[0]) * np.ceil(count[1])))
    a = np.random.default_rng(0).standard_normal(100_000)
    b = a.copy()
    b[[7, 70_001]] += 5
    chosen = points_of(a, b)
    assert (
        len(chosen) <= MOST_POINTS and {7, 70_001} <= set(chosen.tolist()) and len(set(chosen.tolist())) == len(chosen)
    )


def test_shades_are_logarithmic_where_errors_are_far_apart(answer: Comparison) -> None:
    pair = answer["layers.1.norm2"].output[0]
    for factor, is_log in ((1.0, False), (100.0, True)):
        a, b = np.ones((3, 4)), np.ones((3, 4)) + 0.1
        b[0, 0] += 0.1 * (factor - 1)
        object.__setattr__(pair, "reads", lambda _, a=a, b=b: (a, b))
        assert isinstance(pair.plot("error").images[0].norm, LogNorm) is is_log


# One recording


def test_norms_over_steps(run: Any) -> None:
    ax = run.plot("gradients", only="layers.1.norm*")
    wanted = {}
    for path in ("layers.1.norm1", "layers.1.norm2"):
        used = [each for each in run[path].param_grad if each.phase.label == "update"]
        wanted[f"{path}.weight"] = [each.norm for each in used]
    names = [each.get_text() for each in ax.get_legend().get_texts()]
    assert names[0] == "all together" and set(names[1:]) == set(wanted)
    for name, line in zip(names[1:], ax.lines[:2], strict=True):
        assert line.get_xdata().tolist() == [0, 1, 2, 3] and line.get_ydata() == pytest.approx(wanted[name])
    assert ax.lines[2].get_ydata() == pytest.approx(np.linalg.norm(list(wanted.values()), axis=0))
    assert ax.get_yscale() == "log" and ax.get_title("left") == "norm of gradients" and ax.get_xlabel() == "step"


def test_weights_are_as_each_step_began(run: Any) -> None:
    ax = run.plot("weights", only="layers.1.norm1.weight")
    found = run["layers.1.norm1"].param
    assert ax.lines[0].get_xdata().tolist() == [0, 1, 2, 3, 4]
    assert ax.lines[0].get_ydata() == pytest.approx([each.norm for each in found])
    assert ax.get_title("left") == "norm of weights: layers.1.norm1.weight" and ax.get_xlabel() == "step, as it began"


def test_many_parameters_are_grey_and_those_that_change_most_named(run: Any) -> None:
    ax = run.plot("updates")
    names = [each.get_text() for each in ax.get_legend().get_texts()]
    total = len([each for each in run.parameters if not each.is_buffer])
    assert len(names) == 7 and names[0] == f"all together ({total - 6} more in grey)" and len(ax.lines) == total + 1


def test_a_logged_number(run: Any) -> None:
    _, ax = plt.subplots()
    assert run.plot("loss", ax=ax) is ax
    assert ax.lines[0].get_xydata().tolist() == [[step, value] for step, value in run.scalars["loss"].items()]


def test_nothing_of_that_kind(run: Any, tmp_path: Path) -> None:
    with pytest.raises(NotRecordedError, match=r"no weights of parameters that match 'x\*' were recorded in a.h5"):
        run.plot("weights", only="x*")
    known = "there are 'gradients', 'weights', 'updates', 'loss'"
    with pytest.raises(ConfigError, match=f"nothing called 'lss' was logged in a.h5; {known}"):
        run.plot("lss")
    path = write_tensors(tmp_path / "x.h5", [Tensor(np.ones(3))], values=False)
    with probe.open(path) as other, pytest.raises(NotRecordedError, match="no gradients were recorded in x.h5"):
        other.plot()
    assert not plt.get_fignums()


def test_one_tensor(answer: Comparison) -> None:
    with probe.open(answer.path_a) as opened:
        output = opened["layers.1.norm2"].output[0]
        ax = output.plot()
        assert ax.patches[0].get_data().values.sum() == output.values().size
        assert ax.get_title("left") == "layers.1.norm2: output 0"


# Names


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.filterwarnings("ignore:Glyph")
def test_names_are_text(name: str, tmp_path: Path) -> None:
    a, b = recorded(tmp_path / "a.h5", name, 2.0), recorded(tmp_path / "b.h5", name, 3.0)
    found, opened = probe.compare(a, b), probe.open(a)
    path = next(module.path for module in opened.modules if module.path)
    draw: list[Callable[[], Any]] = [
        found.plot, lambda: found[path].output[0].plot()[0], opened[path].value[0].plot,
        lambda: opened.plot("weights"), lambda: opened.plot(stored(name)),
    ]  # fmt: skip
    for each in draw:
        drawn = texts(each())
        assert any(label(stored(name))[:20] in text for text in drawn) and max(map(len, drawn)) < 250
        assert not any("\n" in text.strip() or "\u202e" in text for text in drawn)


def test_long_names_keep_both_ends() -> None:
    for length in (60, 300, 10_000):
        shown = label("begin." + "x" * length + ".end")
        assert len(shown) == 60 and shown.startswith("begin.") and shown.endswith(".end") and "…" in shown
    assert label("layers.1") == "layers.1"


def test_without_matplotlib_the_extra_is_named(answer: Comparison, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(matplotlib, "pyplot")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for draw in (answer.plot, answer["layers.1.norm2"].output[0].plot, run.plot):
        with pytest.raises(ImportError, match=r"a plot needs matplotlib: pip install 'probe-align\[plot\]'"):
            draw()


# ---- The graph as a picture from Python: what is drawn where, and what runs into what.

matplotlib.use("agg")


@pytest.fixture(scope="module")
def answer_graph(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
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


def test_the_error_leaves_the_diamond_downstream_on_both_sides(answer_graph: Comparison) -> None:
    ax = answer_graph.plot("graph")
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
def test_backward_runs_up(answer_graph: Comparison) -> None:
    def ends(ax: Any) -> list[float]:
        ax.figure.canvas.draw()
        found = [each for each in ax.patches if isinstance(each, patches.FancyArrowPatch)]
        return [each._posA_posB[1][1] - each._posA_posB[0][1] for each in found]

    assert all(way > 0 for way in ends(answer_graph.plot("graph")))
    ax = answer_graph.plot("graph", phase="backward")
    assert ends(ax) and all(way < 0 for way in ends(ax)) and "backward" in ax.get_title("left")


def test_another_place_is_looked_at(answer_graph: Comparison) -> None:
    ax = answer_graph.plot("graph", at="layers.0.mlp.up")
    assert {"gate", "up", "down"} <= set(places(ax)), "what is beside it is seen"
    with pytest.raises(ConfigError, match="at='layers.9': no module of that path ran"):
        answer_graph.plot("graph", at="layers.9")


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
def test_what_cannot_be_drawn_is_named(answer_graph: Comparison, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        answer_graph.plot(**given)


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
def test_names_are_text_graph(tmp_path: Path, name: str) -> None:
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
