"""A session of natural lines: recordings and answers as mappings, their tensors as arrays, answers as files."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import webbrowser
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.answer.comparison import Comparison
from probe.errors import ConfigError, NotRecordedError, StoreError
from probe.numbers.boxes import box_of
from probe.recording import Recording
from probe.report.formats.arrays import axis_names
from probe.store.reading.reader import Reader
from tests.toy import nn
from tests.toys import gpt, module, record

NORM = "layers.1.norm2"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("session")
    model = gpt()
    module(model, NORM).eps = 1e-3
    return record(folder / "a.h5", task="tensor"), record(folder / "b.h5", model, task="tensor")


@pytest.fixture(scope="module")
def answer(files: tuple[Path, Path]) -> Comparison:
    return probe.compare(*files)


@pytest.fixture
def run(files: tuple[Path, Path]) -> Any:
    with probe.open(files[0]) as run:
        yield run


def test_a_session_with_a_recording(run: Recording) -> None:
    assert isinstance(run, Mapping)
    assert len(run) == len(run.modules) == len(list(run))
    assert list(run)[0] == "" and NORM in list(run)
    assert NORM in run and "layers.*.norm2" in run
    assert "layers.9" not in run and 0 not in run
    assert run.get("layers.9") is None
    for by_path in (run, run[0]):
        with pytest.raises(NotRecordedError, match=r"no module 'layers\.0\.nrom2'; did you mean layers\.0\.norm2\?"):
            by_path["layers.0.nrom2"]
    assert list(run.keys()) == [module.path for module in run.modules] == run._ipython_key_completions_()
    assert {path: len(found) for path, found in run.items()}[NORM] == len(run[NORM])
    output = run[NORM].output[0]
    assert (output.shape, output.dtype, output.ndim, output.size, len(output)) == ((2, 6, 16), "float32", 3, 192, 2)
    whole = np.asarray(output)
    assert whole.shape == output.shape and whole.dtype == np.float32
    assert np.array_equal(output[0][:, 0], whole[0][:, 0])
    assert np.array_equal(output[:, 1:3, ::-2], whole[:, 1:3, ::-2])
    assert np.array_equal(output[..., 3], whole[..., 3])
    assert np.array_equal(output[output.values() > 0], whole[whole > 0])
    assert float(output[0, 0, 0]) == whole[0, 0, 0]
    assert np.asarray(output, dtype=np.float64).dtype == np.float64
    assert np.allclose(np.abs(output).mean(), np.abs(whole).mean())
    assert [row.shape for row in output] == [(6, 16), (6, 16)]
    assert {"output", "input", "param", "of"} <= set(dir(run[NORM])) and "delta" not in dir(run["layers.1"])
    assert not [name for name in dir(run) if name.startswith("_") and not name.startswith("__")]
    assert {"info", "keys", "items", "modules", "plot"} <= set(dir(run))
    assert repr(output) == f"<{NORM} output 0, step 0: float32 [2, 6, 16], rms {output.rms:.6g}, values>"
    assert len(repr(run.info)) < 300
    assert run and bool(run[NORM].output[0])


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("steps") / "long.h5", steps=3, task="tensor")


USES: dict[str, Callable[[Recording, Any], object]] = {
    "values": lambda run, tensor: tensor.values(),
    "an array": lambda run, tensor: np.asarray(tensor),
    "a part": lambda run, tensor: tensor[0],
    "a picture of a tensor": lambda run, tensor: tensor.plot(),
    "a picture of a run": lambda run, tensor: run.plot("weights"),
    "a module": lambda run, tensor: run["layers.0.mlp.up"],
    "a step": lambda run, tensor: run[0][NORM],
    "parameters": lambda run, tensor: run.parameters,
    "scalars": lambda run, tensor: run.scalars,
    "notes": lambda run, tensor: run.notes,
    "optimizers": lambda run, tensor: run.optimizers,
    "a batch": lambda run, tensor: run.batch(0),
    "a page": lambda run, tensor: run.save("run.html"),
    "a table": lambda run, tensor: run.table(),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "still written"])
def test_what_outlives_its_recording_says_so(
    use: str, is_whole: bool, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """One whose program was killed would be opened anew, as if its writer had changed it."""
    path = Path(shutil.copy(files[0], tmp_path / "a.h5"))
    with h5py.File(path, "r+") as file:
        file.attrs["closed"] = is_whole
    with probe.open(path) as run:
        tensor = run[NORM].output[0]
    with pytest.raises(
        StoreError, match=r"a\.h5 was closed, by close\(\) or at the end of its with block: .* probe\.open"
    ):
        USES[use](run, tensor)
    assert repr(run).endswith("1 step, closed>") and run._repr_html_() is None
    assert repr(tensor) and tensor._repr_html_() and run.info.framework == "numpy"


def test_batches_that_were_closed_say_so(tmp_path: Path) -> None:
    probe.save_batches([{"x": np.ones(2)}], tmp_path / "batches")
    batches = probe.load_batches(tmp_path / "batches")
    batches.close()
    with pytest.raises(StoreError, match=r"was closed, .* open it again with probe\.load_batches"):
        batches[0]


def test_records_are_chosen_by_where_they_were_seen(long: Path) -> None:
    with probe.open(long) as run:
        records = run[NORM]
        assert records.param["weight"] is records.param[0] or records.param["weight"] == records.param[0]
        assert [each.step for each in records.output.sel(step=[0, 2])] == [0, 2]
        assert [each.step for each in records.output.sel(step=slice(1, None))] == [1, 2]
        one = records.sel(step=1, phase="forward", role=probe.records.Role.OUTPUT, slot=0)
        assert [(each.step, each.role.label) for each in one] == [(1, "output")]
        assert run[1][NORM].output == run.sel(step=1)[NORM].output == one
        assert set(run[2]) == set(run) and sum(map(len, run[2].values())) == len(run[2].table())
        assert {each.step for each in run.sel(step=slice(1, 2))["layers.*"]} == {1, 2}
        for wrong, text in (
            (lambda: records.sel(step=9), r"nothing here has step 9; there is 0, 1, 2"),
            (lambda: records.param["wieght"], r"nothing here has slot 'wieght'; there is weight"),
            (lambda: run[9], r"long\.h5 has no step 9; its steps are 0, 1, 2"),
            (lambda: run[1.5], r"\[1\.5\]: expected the path of a module or a glob, got float"),  # type: ignore[call-overload]
        ):
            with pytest.raises(NotRecordedError, match=text):
                wrong()
        with pytest.raises(
            ConfigError, match=r"sel\(layer=…\) is not known; expected step, micro, call, phase, role, slot"
        ):
            records.sel(layer=3)


def test_a_recording_has_its_settings(long: Path) -> None:
    with probe.open(long) as run:
        assert run.config == run.info.model_config
        assert list(run.optimizers) == [0, 1, 2]
        group = run.optimizers[1][0]
        assert group.class_name == "AdamW" and group.hyper["lr"] == 1e-3
        assert run.parameters[group.parameters[0]].names


def test_a_recording_as_a_table(long: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with probe.open(long) as run:
        table, part = run.table(), run[1].table()
        assert isinstance(table, pandas.DataFrame) and len(table) == run.observations
        assert part.equals(table[table.step == 1].reset_index(drop=True))
        row = table[(table.path == NORM) & (table.role == "output") & (table.step == 2)].iloc[0]
        seen = run[2][NORM].output[0]
        assert (row["norm"], row["dtype"], row["shape"], row["slot"]) == (
            seen.norm,
            seen.dtype,
            str(list(seen.shape)),
            seen.slot,
        )
        assert row["class"] == "RMSNorm" and row.phase == "forward" and row.has_values


def test_steps_are_a_dimension(long: Path, files: tuple[Path, Path], answer: Comparison) -> None:
    pytest.importorskip("xarray")
    with probe.open(long) as run:
        found = run["layers.0.mlp.up"].param.sel(phase="update", slot="weight").to_xarray()
        assert found.sizes == {"step": 3, "out": 32, "in": 16} and found.step.values.tolist() == [0, 1, 2]
        assert np.array_equal(found.sel(step=2), run[2]["layers.0.mlp.up"].param["weight"].values())
        assert found.attrs["path"] == "layers.0.mlp.up" and "step" not in found.attrs
        with pytest.raises(
            ConfigError, match=r"needs one tensor of one shape in each step, got \d+ tensors: .* param weight"
        ):
            run["layers.0.mlp.up"].to_xarray()
    assert answer[NORM].output.to_xarray().a.sizes["step"] == 1


@pytest.mark.thorough
def test_functions_take_recordings_that_are_open(files: tuple[Path, Path], answer: Comparison) -> None:
    with probe.open(files[0]) as a, probe.open(files[1]) as b:
        assert probe.compare(a, b).verdict == probe.compare(a, str(files[1])).verdict == answer.verdict
        assert probe.curves(a, b).verdict == probe.curves(*files).verdict
        assert probe.open(a).path == files[0]
    for given, kind in ((3, "builtins.int"), (None, "builtins.NoneType"), (gpt(), r"[\w.]+\.\w+")):
        with pytest.raises(ConfigError, match=rf"expected a path, or a recording that probe\.open opened, got {kind}"):
            probe.compare(given, files[1])  # type: ignore[arg-type]


def test_an_answer_is_true_if_it_is_aligned(files: tuple[Path, Path], answer: Comparison, tmp_path: Path) -> None:
    aligned = probe.compare(files[0], record(tmp_path / "again.h5", task="tensor"))
    undecided = probe.compare(files[0], files[0])
    assert aligned and not answer and not undecided
    aligned.assert_aligned()
    with pytest.raises(AssertionError, match=f"DIVERGED(.|\\n)*{NORM}"):
        answer.assert_aligned()
    with pytest.raises(AssertionError, match="UNDECIDED"):
        undecided.assert_aligned()
    assert answer[NORM].output[0].rel_l2 == answer[NORM].output[0].metrics.rel_l2 > 0
    rates = [0.1, 0.2]
    assert probe.compare_schedules(rates, rates) and not probe.compare_schedules(rates, [0.1, 0.3])
    batch = {"x": np.ones(2)}
    assert probe.compare_batches([batch], [batch]) and not probe.compare_batches([batch], [{"x": np.zeros(2)}])


def test_a_session_with_an_answer(answer: Comparison) -> None:
    assert isinstance(answer, Mapping)
    assert len(answer) == len(list(answer)) == len({slot.path_a for slot in answer.slots})
    assert list(answer) == list(answer.keys()) == answer._ipython_key_completions_()
    assert NORM in answer and "layers.*.norm2" in answer
    assert "layers.9" not in answer and None not in answer
    assert answer.get("layers.9") is None
    assert {path for path, found in answer.items() if found.output and found.output[0].verdict == "introduced"} == {
        NORM
    }
    assert {slot.path_a for slot in answer["layers.*.norm2"]} == {f"layers.{n}.norm2" for n in range(3)}
    assert sum(map(len, answer.values())) == len(answer.slots)
    a, b = answer[NORM].output[0].values()
    assert a.shape == b.shape == (2, 6, 16)
    assert {"save", "open", "why", "first_divergence", "table"} <= set(dir(answer))
    assert not [name for name in dir(answer) if name.startswith("_") and not name.startswith("__")]
    assert repr(answer) == f"<Comparison: diverged, first at {NORM}: step 0, forward>"


def test_equal_answers_stay_equal(answer: Comparison, files: tuple[Path, Path]) -> None:
    """A mapping compares its items; an answer and a recording keep what they had."""
    assert answer == answer and answer != probe.compare(files[0], files[0])
    with probe.open(files[0]) as one, probe.open(files[0]) as other:
        assert one != other and len({one, other}) == 2


def test_many_modules_are_not_searched_for_one_by_one(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = []
    original = Reader.records_of
    monkeypatch.setattr(Reader, "records_of", lambda *given: searched.append(1) or original(*given))
    with probe.open(files[0]) as run, probe.open(files[0]) as again:
        found = {path: list(records) for path, records in run.items()}
        assert len(searched) < 10 < len(run)
        monkeypatch.setattr("probe.recording._Records.MOST_KEPT", 0)
        assert found == {path: list(again[path]) for path in again}
        assert list(run["layers.*.norm*"]) == list(again["layers.*.norm*"])


def test_slices_read_only_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__(fc=nn.Linear(512, 512))

        def forward(self, x: Any) -> Any:
            return self.fc(x).sum()

    from tests.toy.tensor import Tensor

    model = Wide()
    path = tmp_path / "wide.h5"
    with probe.capture(model, path, task="tensor"):
        model(Tensor(np.ones((4, 512), np.float32)))
        probe.step()
    with probe.open(path) as run:
        weight = run["fc"].param[0]
        whole = weight.values()
        monkeypatch.setattr(Reader, "values", lambda *given: pytest.fail("all values were read"))
        sizes = []
        original = h5py.Dataset.__getitem__

        def counted(self: h5py.Dataset, *given: Any) -> Any:
            found = original(self, *given)
            sizes.append(np.size(found))
            return found

        monkeypatch.setattr(h5py.Dataset, "__getitem__", counted)
        assert np.array_equal(weight[3, 5:9], whole[3, 5:9])
        assert np.array_equal(weight[-1], whole[-1])
        assert np.array_equal(weight[10:20:3, 7], whole[10:20:3, 7])
        assert max(sizes) <= 512


@pytest.mark.parametrize(
    "index",
    [
        0, -1, (0, 1), (slice(None), 0), (Ellipsis, 2), (0, Ellipsis), slice(1, 3), slice(None, None, -1), slice(3, 0, -2),
        (slice(0, 4, 3), slice(4, 1, -1)), (np.int64(1), slice(None)), (), Ellipsis,
    ],
)  # fmt: skip
def test_a_box_holds_what_an_index_selects(index: Any) -> None:
    values = np.arange(4 * 5).reshape(4, 5)
    found = box_of(index, values.shape)
    assert found is not None
    box, rest = found
    assert all(part.step is None for part in box)
    assert np.array_equal(values[box][rest], values[index]) and np.shape(values[box][rest]) == np.shape(values[index])


@pytest.mark.parametrize("index", [[0, 1], True, None, 4, (0, 0, 0), slice(2, 2), np.ones((4, 5), bool), (..., ...)])
def test_what_is_no_box_is_left_to_numpy(index: Any) -> None:
    assert box_of(index, (4, 5)) is None


def test_arrays_say_no_as_numpy_does(run: Recording, tmp_path: Path) -> None:
    output = run[NORM].output[0]
    with pytest.raises(IndexError):
        output[2]
    with pytest.raises(IndexError):
        output[0, 0, 0, 0]
    with pytest.raises(ValueError, match="without a copy"):
        output.__array__(copy=False)
    assert output.__array__(np.float16, copy=True).dtype == np.float16
    with probe.open(record(tmp_path / "s.h5")) as statistics:
        seen = statistics[NORM].output[0]
        assert repr(seen).endswith(", statistics>")
        for read in (np.asarray, lambda tensor: tensor[0]):
            with pytest.raises(NotRecordedError):
                read(seen)


def test_an_answer_is_saved_as_its_name_says(answer: Comparison, tmp_path: Path) -> None:
    page, data, rows, words = (answer.save(tmp_path / f"r.{end}") for end in ("html", "JSON", "csv", "txt"))
    assert page == tmp_path / "r.html" and page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert json.loads(data.read_text(encoding="utf-8"))["verdict"] == "diverged"
    with rows.open(newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(answer.slots)
    assert words.read_text(encoding="utf-8").startswith("DIVERGED")
    for name in ("r.docx", "r"):
        with pytest.raises(ConfigError, match=r"cannot tell the format of .*: expected \.json, \.csv, "):
            answer.save(tmp_path / name)
    with pytest.raises(StoreError, match="cannot write .*none"):
        answer.save(tmp_path / "none" / "r.html")


def test_an_answer_is_saved_as_parquet(answer: Comparison, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert len(pandas.read_parquet(answer.save(tmp_path / "r.parquet"))) == len(answer.slots)


def test_an_answer_opens_in_the_browser(answer: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path))
    page = answer.open()
    assert opened == [page.as_uri()] and page.parent == tmp_path and page.stat().st_size > 100_000


def test_tensors_become_objects_of_xarray(run: Recording, answer: Comparison) -> None:
    pytest.importorskip("xarray")
    weight = run["layers.0.mlp.up"].param.of(probe.records.Role.PARAM)[0].to_xarray()
    assert weight.dims == ("out", "in") and weight.sizes == {"out": 32, "in": 16}
    assert weight.attrs["path"] == "layers.0.mlp.up" and weight.name == "layers.0.mlp.up.param.weight"
    assert run[NORM].output[0].to_xarray().dims == ("dim_0", "dim_1", "dim_2")
    pair = answer[NORM].output[0].to_xarray()
    assert float(abs(pair.a - pair.b).max()) > 0 and pair.attrs["verdict"] == "introduced"


def test_what_xarray_needs_is_named(run: Recording, answer: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    for tensor in (run[NORM].output[0], answer[NORM].output[0]):
        with pytest.raises(ImportError, match=r"pip install 'probe-align\[xarray\]'"):
            tensor.to_xarray()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (("Linear", "weight", (3, 2)), ("out", "in")),
        (("ColumnParallelLinear", "weight", (2, 3), (1, 0)), ("in", "out")),
        (("Embedding", "weight", (9, 2)), ("index", "feature")),
        (("Conv2d", "weight", (4, 3, 2, 2)), ("out", "in", "height", "width")),
        (("ConvTranspose1d", "weight", (4, 3, 2)), ("in", "out", "width")),
        (("Linear", "bias", (3,)), ("dim_0",)),
        (("MyOwn", "weight", (3, 2)), ("dim_0", "dim_1")),
        (("LayerNorm", "weight", ()), ()),
    ],
)
def test_axes_are_named_by_the_layout_of_the_class(given: tuple[Any, ...], names: tuple[str, ...]) -> None:
    assert axis_names(*given) == names
