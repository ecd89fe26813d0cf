"""What a notebook shows of results and recordings, and of curves."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.comparison import Comparison
from probe.answer.left_out import LeftOut, What, Why
from probe.curve_comparison.result import CurveComparison
from probe.errors import ConfigError
from probe.report.notebook.markup import MOST_ROWS, Number, table
from probe.store.reading.reader import Reader
from tests.report.hostile import NAMES, recorded, visible
from tests.report.reading import compared
from tests.toys import gpt, record

# ---- What a notebook shows of results and recordings.

TAGS = {"div", "style", "p", "b", "i", "span", "code", "bdi", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}


class Seen(HTMLParser):
    """The tags, attributes and text of a piece of HTML, cells and paragraphs parted by ``¦``; every tag must close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, "a tag does not close"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("p", "td", "th", "li"):
            self.texts.append("¦")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r" *¦[ ¦]*", "¦", re.sub(" +", " ", "".join(self.texts)))


def shown(value: Any) -> str:
    """Return the text of what a notebook shows of an object."""
    return Seen(value._repr_html_()).text


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compared(tmp_path_factory.mktemp("notebook"), task="tensor")


def test_the_answer_is_the_verdict_the_way_and_what_was_found(answer: Comparison) -> None:
    text = shown(answer)
    assert text.startswith("DIVERGED A a.h5 · B b.h5¦First divergence step 0 · forward · introduced")
    assert "¦A layers › 1 › norm2 RMSNorm output 0¦B decoder › 1 › ln2 RMSNorm output 0¦" in text
    first = answer.first_divergence
    assert first is not None and first.evidence[0] in text and f"→ {first.hint}" in text
    assert f"¦relative error¦{first.metrics.rel_l2:.1e} ({first.limit:.1e} is explained)" in text
    assert "× above the limit" in text and " · confidence 0.99¦" in text
    assert f"{answer.coverage.compared} pairs of tensors" in text and "noise: built-in model" in text


def test_the_table_counts_by_phase(answer: Comparison) -> None:
    rows = re.findall(r"<tr>(.*?)</tr>", answer._repr_html_())
    found = {cells[0]: cells[1:] for row in rows if (cells := re.findall(r"<td[^>]*>(.*?)</td>", row))}
    forward = [slot for slot in answer.slots if slot.phase.label == "forward"]
    said = [sum(slot.verdict == each for slot in forward) for each in ("equal", "noise", "inherited", "introduced")]
    assert [int(re.sub("<.*?>", "", cell)) for cell in found["forward"][:4]] == said and said[3] == 1
    assert found["forward"][5] == f"{max(slot.metrics.rel_l2 for slot in forward):.1e}"


def test_a_divergence_alone(answer: Comparison) -> None:
    text = shown(answer.first_divergence)
    assert text.startswith("Divergence step 0 · forward · introduced") and "norm2" in text and "DIVERGED" not in text


def test_a_place_on_one_side_only_and_in_many_places(answer: Comparison) -> None:
    first = answer.first_divergence
    alone = dataclasses.replace(first, b=(), metrics=None)
    assert "¦A layers › 1 › norm2 RMSNorm output 0¦B has no counterpart¦" in shown(alone)
    ref = dataclasses.replace(first.b[0], path=".".join("abcdefghijklmnopqrst"), call=2)
    text = shown(dataclasses.replace(first, b=(ref,) * 7))
    assert text.count("¦B a › b › c › d › e › f › … › n › o › p › q › r › s › t RMSNorm output 0 call 2") == 5
    assert "¦B and 2 more¦" in text


def test_several_divergences_are_listed(answer: Comparison) -> None:
    several = dataclasses.replace(answer, divergences=answer.divergences * 9)
    text = shown(several)
    assert (
        "Also wrong by itself, in the order of cause" in text and text.count("¦forward¦layers.1.norm2¦output 0¦") <= 5
    )
    assert "and 3 more" in text


def test_an_aligned_pair_says_what_was_left_out(tmp_path: Path) -> None:
    found = compared(tmp_path, fault=False)
    assert shown(found).startswith("ALIGNED A a.h5")
    assert "Nothing that was compared differs by more than rounding explains." in shown(found)
    less = dataclasses.replace(found, left_out=(LeftOut(What.WEIGHTS, Why.IGNORED, count=3),))
    assert shown(less).startswith("ALIGNED but for 3 weights (ignored by the mapping)")


def test_undecided_says_why_once(tmp_path: Path) -> None:
    path = record(tmp_path / "a.h5", gpt())
    shutil.copy(path, tmp_path / "b.h5")
    found = probe.compare(path, tmp_path / "b.h5")
    text = shown(found)
    assert text.startswith("UNDECIDED")
    assert all(text.count(doubt) == 1 for doubt in found.doubts)


def test_a_module_has_a_row_for_each_pair_of_tensors(answer: Comparison) -> None:
    found = answer["layers.1.norm2"]
    text = shown(found)
    assert text.startswith("A layers.1.norm2 RMSNorm¦B decoder.1.ln2 RMSNorm¦phase¦tensor¦shape¦rel¦explained¦verdict¦")
    assert found._repr_html_().count("<tr>") == len(found) + 1
    assert "¦forward¦output 0¦[2, 6, 16]¦" in text and "introduced" in text
    assert "1 module" not in text and "layers.0.norm1 ⟷ decoder.0.ln1" in shown(answer["layers.*.norm1"])


def test_one_pair_of_tensors(answer: Comparison) -> None:
    pair = answer["layers.1.norm2"].output[0]
    text = shown(pair)
    assert text.startswith(
        "output 0 step 0 · forward¦A layers.1.norm2 RMSNorm¦B decoder.1.ln2 RMSNorm¦verdict¦introduced¦"
    )
    assert f"¦max |Δ|¦{pair.metrics.max_abs:.3g} at {list(pair.metrics.max_abs_at)}" in text
    assert "¦tensors¦float32 [2, 6, 16]¦paired by¦mapped¦" in text


def test_nothing_of_a_role(answer: Comparison) -> None:
    assert shown(answer["layers.1.norm2"].buffer) == "Nothing of this kind was compared.¦"
    with probe.open(answer.path_a) as run:
        assert shown(run["layers.1.norm2"].buffer) == "Nothing of this kind was recorded.¦"


def test_a_recording(answer: Comparison) -> None:
    with probe.open(answer.path_a) as run:
        text = shown(run)
        assert text.startswith("a.h5 ") and "¦model¦GPT " in text and "task tensor" in text
        assert f"¦steps¦step 0; {run.observations} tensors seen¦" in text and run.observations == len(
            run._reader.records
        )
        assert "¦layers¦ModuleList¦" in text and "still being written" not in text
        records = run["layers.1.norm2"]
        assert shown(records).startswith("layers.1.norm2¦step¦micro¦phase¦tensor¦dtype¦shape¦mean¦rms¦norm¦values¦")
        assert records._repr_html_().count("<tr>") == len(records) + 1
        output = records.output[0]
        assert f"¦norm¦{output.norm:.6g}¦values¦stored¦" in shown(output)


def test_statistics_alone(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert "¦relative error¦≈" in shown(found) and "≈" in shown(found["layers.1.norm2"].output[0])
    with probe.open(found.path_a) as run:
        assert '¦values¦not recorded (task="tensor" does)' in shown(run["layers.1.norm2"].output[0])


def test_what_is_not_finite_is_said(tmp_path: Path) -> None:
    from tests.store.files import Tensor, write_tensors

    write_tensors(tmp_path / "x.h5", [Tensor(np.array([1.0, np.nan, np.inf]))], values=False)
    with probe.open(tmp_path / "x.h5") as run:
        assert "¦not finite¦1 NaN, 1 +Inf¦" in shown(run[""].output[0])
        assert "2 NaN or Inf" in shown(run[""])


def test_no_values_and_no_table_of_records_are_read(answer: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown comes from what is known already, or from the few names and counts of a file."""
    with probe.open(answer.path_a) as run:
        records = run["layers.1.norm2"]

        def fail(*args: Any) -> None:
            pytest.fail("it was read")

        for name in ("records", "sketches", "_tensor_index", "_hashes"):
            monkeypatch.setattr(Reader, name, property(fail))
        for name in ("parts", "block", "records_of", "chosen_records"):
            monkeypatch.setattr(Reader, name, fail)
        for each in (answer, answer.first_divergence, answer["layers.*"], answer[""][0], run, records, records[0]):
            assert shown(each)


@pytest.mark.thorough
def test_it_is_short_however_much_there_is(tmp_path: Path) -> None:
    a, b = (record(tmp_path / f"{name}.h5", gpt(), steps=3) for name in "ab")
    found = probe.compare(a, b)
    pairs = found["*"]
    assert len(pairs) > 400 and f"and {len(pairs) - MOST_ROWS:,} more" in shown(pairs)
    with probe.open(a) as run:
        records = run["*"]
        sizes = [len(each._repr_html_()) for each in (found, pairs, run, records)]
        assert max(sizes) < 20_000 and max(len(repr(each)) for each in (pairs, records)) < 20_000
        assert repr(records).endswith(f" … {len(records) - 20} more\n)")
        assert type(records[:3]) is type(records) and len(records[:3]) == 3


def test_colours_are_those_of_the_theme(answer: Comparison) -> None:
    style = re.search("<style>(.*?)</style>", answer._repr_html_(), re.S)[1]
    assert set(re.findall(r"background: ([^;]*);", style)) == {"none"}
    rules = re.sub(r"--probe-[a-z]+: [^;]*;", "", style)
    assert set(re.findall(r"(?<![-a-z])color: ([^;]*);", rules)) == {
        "inherit", "var(--probe-bad)", "var(--probe-good)", "var(--probe-warn)",
    }  # fmt: skip
    assert "#" not in rules


def test_a_table_says_what_it_left_out() -> None:
    made = table([Number("n")], [[n] for n in range(MOST_ROWS + 3)])
    assert made.count("<td") == MOST_ROWS and "and 3 more" in made
    assert "more" not in table(["n"], [[1]]) and "and 9 more" in table(["n"], [[1]], 10)


# Names


def everything(folder: Path, name: str) -> list[Callable[[], Any]]:
    """Return what gives each kind of object that is shown."""
    a, b = recorded(folder / "a.h5", name, 2.0), recorded(folder / "b.h5", name, 3.0)
    answer, run = probe.compare(a, b), probe.open(a)
    path = next(module.path for module in run.modules if module.path)
    return [
        lambda: answer, lambda: answer.first_divergence, lambda: answer[path], lambda: answer[path].output[0],
        lambda: answer[path].value[0], lambda: run, lambda: run[path], lambda: run[path].value[0],
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_are_text(name: str, tmp_path: Path) -> None:
    for get in everything(tmp_path, name):
        page = get()._repr_html_()
        seen = Seen(page)
        assert seen.tags <= TAGS and seen.attributes <= {"class"}
        assert visible(name) in seen.text
        assert len(page) < 20_000 and not re.search("[\u202e\ud800-\udfff]", page)
        assert page.startswith('<div class="probe tex2jax_ignore mathjax_ignore">'), "dollars begin no formula"


def test_names_in_a_table_of_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    name = NAMES["markup"]
    get = everything(tmp_path, name)[0]
    page = get().table()[["path_a", "class_a", "slot_a"]]._repr_html_()
    assert html.escape(name, quote=False) in page and "<img" not in page


# ---- A comparison of curves in a notebook.

STEPS, FAULT = 300, 200
NAMES_CURVES = {"loss": 3.0, "<b>$x^2$ $\\frac{$</b>": 1.0}


def log(path: Path, jump: float = 0.0) -> Path:
    """Write a log of curves that fall, one of which jumps at a step."""
    rng = np.random.default_rng(0)
    rows = [",".join(["step", *NAMES_CURVES])]
    for step in range(STEPS):
        values = [value * np.exp(-step / 100) + 1 + 1e-3 * rng.standard_normal() for value in NAMES_CURVES.values()]
        values[0] += jump * (step >= FAULT)
        rows.append(",".join(map(str, [step, *values])))
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def answer_curves(tmp_path_factory: pytest.TempPathFactory) -> CurveComparison:
    folder = tmp_path_factory.mktemp("curves")
    return probe.curves(log(folder / "a.csv"), log(folder / "b.csv", 0.3))


def test_the_answer(answer_curves: CurveComparison) -> None:
    text = shown(answer_curves)
    assert text.startswith("DIVERGED A a.csv · B b.csv¦loss leaves the noise band: ")
    assert f"¦loss¦out of the band¦{STEPS}¦{FAULT}¦" in text and f"→ {answer_curves.findings[0].hint}" in text
    assert "noise¦built-in limits, and what the steps before show" in text


def test_names_are_text_curves(answer_curves: CurveComparison) -> None:
    seen = Seen(answer_curves._repr_html_())
    assert seen.tags <= TAGS and "¦<b>$x^2$ $\\frac{$</b>¦" in seen.text


def test_undecided_says_why_once_curves(tmp_path: Path) -> None:
    path = log(tmp_path / "a.csv")
    found = probe.curves(path, path)
    text = shown(found)
    assert text.startswith("UNDECIDED A a.csv · B a.csv¦")
    assert found.doubts and all(text.count(doubt) == 1 for doubt in found.doubts)


class TestPicture:
    """Drawn without a file."""

    @pytest.fixture(autouse=True)
    def closed(self) -> Iterator[None]:
        pytest.importorskip("matplotlib").use("agg")
        yield
        from matplotlib import pyplot as plt

        plt.close("all")

    def test_axes_are_returned(self, answer_curves: CurveComparison) -> None:
        axes = answer_curves.plot()
        assert axes.shape == (1, 2)
        a, b = axes[0, 0].lines[:2]
        assert a.get_ydata().tolist() == answer_curves["loss"].pair.a.tolist()
        assert b.get_ydata().tolist() == answer_curves["loss"].pair.b.tolist()
        assert axes[0, 1].get_title("left") == "B − A, out of the band"

    def test_into_a_file_nothing_is_left_open(self, answer_curves: CurveComparison, tmp_path: Path) -> None:
        from matplotlib import pyplot as plt

        axes = answer_curves.plot(tmp_path / "c.png")
        assert axes.shape == (1, 2) and (tmp_path / "c.png").stat().st_size > 10_000 and not plt.get_fignums()

    def test_names_are_no_formulas(self, tmp_path: Path) -> None:
        name = next(name for name in NAMES_CURVES if name != "loss")
        found = probe.curves(log(tmp_path / "a.csv"), log(tmp_path / "b.csv", 0.3), only=[name.replace("[", "?")])
        axes = found.plot()
        axes[0, 0].figure.canvas.draw()
        assert axes[0, 0].get_title("left") == name

    def test_nothing_to_draw(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("step,loss\n1,2.0\n2,2.0\n", encoding="utf-8")
        (tmp_path / "b.csv").write_text("step,loss\n8,2.0\n9,2.0\n", encoding="utf-8")
        found = probe.curves(tmp_path / "a.csv", tmp_path / "b.csv")
        for path, where in ((None, ""), (tmp_path / "x.png", f" into {tmp_path / 'x.png'}")):
            with pytest.raises(ConfigError, match=f"nothing to draw{where}: the two runs have no curve with a step in"):
                found.plot(path)
