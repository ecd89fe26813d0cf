"""What `probe export tensorboard` writes, read back by probe's own reader and by TensorBoard's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.curve_comparison.reading.events import read_events
from probe.store.reading.reader import Reader
from probe.testing import sample
from tests.cli.running import run
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import gpt, module, plain_step, record, replaced

pytest.importorskip("tensorboardX")

Scalars = dict[str, dict[int, float]]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    probe.stop()


def read(folder: Path) -> Scalars:
    """Return tag → step → value, as probe reads logs."""
    series = read_events(folder, sorted(folder.glob("*tfevents*"))).series.values()
    return {each.written: dict(zip(each.steps.tolist(), each.values.tolist(), strict=True)) for each in series}


def read_by_tensorboard(folder: Path) -> Scalars:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: {each.step: each.value for each in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def in_32_bits(scalars: Scalars) -> Scalars:
    return {tag: {step: float(np.float32(value)) for step, value in found.items()} for tag, found in scalars.items()}


def faulty_step(model: nn.Module, optimizer: nn.Optimizer, step: int) -> Tensor:
    """Train; from step 1 on, one module is wrong."""
    if step == 1:
        kind = type(module(model, "layers.1.mlp.up"))
        replaced(model, "layers.1.mlp.up", forward=lambda self, x: kind.forward(self, x) * 1.5)
    return plain_step(model, optimizer, step)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return record(folder / "a.h5", steps=4), record(folder / "b.h5", steps=4, step=faulty_step)


def test_one_recording(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("export", "tensorboard", pair[0], "-o", tmp_path / "runs")
    found = read(tmp_path / "runs" / "a")
    count = sum(map(len, found.values()))
    where = f"{count:,} scalars of 4 steps are in {tmp_path}/runs (a): tensorboard --logdir {tmp_path}/runs\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, where, "")
    with Reader(pair[0]) as reader:
        losses = {step: value for step, name, value in reader.scalars if name == "loss"}
        assert len(found) == 3 + sum(not each.is_buffer for each in reader.parameters)
    wanted = probe.curves(*pair)
    norm = next(each.pair for each in wanted.norms.results if each.name_a == "layers.0.mlp.up.weight")
    wanted = {"curves/loss": losses, "curves/lr": dict.fromkeys(range(4), 1e-3),
              "gradient norms/layers.0.mlp.up.weight": dict(zip(norm.steps.tolist(), norm.a.tolist(), strict=True))}  # fmt: skip
    assert {tag: found[tag] for tag in wanted} == in_32_bits(wanted)


@pytest.mark.thorough
def test_two_recordings(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("export", "tensorboard", *pair, "-o", tmp_path)
    assert result.exit_code == 0 and f" of 4 steps are in {tmp_path} (A, B, comparison): " in result.stdout
    a, b, apart = (read(tmp_path / name) for name in ("A", "B", "comparison"))
    assert a.keys() == b.keys(), "the curves lie over one another"
    assert a["curves/loss"][0] == b["curves/loss"][0] and a["curves/loss"][1] != b["curves/loss"][1]
    for step, difference in apart["B − A/loss"].items():
        assert difference == pytest.approx(b["curves/loss"][step] - a["curves/loss"][step], abs=1e-6)
    compared = probe.compare(*pair)
    assert [step for step, _ in compared.steps] == [0, 1], "it stops where the runs part"
    for path in ("layers.1.mlp.up", "layers.2"):
        errors = apart[f"error forward/{path}"]
        assert sorted(errors) == [0, 1, 2, 3]
        slots = [slot for slot in compared[path] if slot.step == 1 and slot.role.label == "output"]
        assert errors[1] == float(np.float32(max(slot.metrics.rel_l2 for slot in slots))) > 1e-3
        assert errors[0] == 0 and errors[3] > 1e-3, "behind it too"
    before = apart["error forward/layers.1.mlp.gate"]
    assert before[1] == 0 < before[2], "the update was wrong"
    assert apart["largest/error forward"][1] == max(
        values[1] for tag, values in apart.items() if tag.startswith("error forward/")
    )
    sections = {tag.partition("/")[0] for tag in apart}
    assert sections == {"error of initial weights", "error forward", "error backward", "error of gradients",
                        "error of gradients as used", "error of updates", "largest", "B − A"}  # fmt: skip
    assert "error of updates/layers.1.mlp.up.weight" in apart and "error forward/(root)" in apart


def test_tensorboard_reads_the_same(pair: tuple[Path, Path], tmp_path: Path) -> None:
    run("export", "tensorboard", *pair, "-o", tmp_path)
    for name in ("A", "B", "comparison"):
        assert read_by_tensorboard(tmp_path / name) == read(tmp_path / name)


def test_events_have_the_times_of_the_run(pair: tuple[Path, Path], tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run("export", "tensorboard", pair[0], "-o", tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / "a"))
    events.Reload()
    times = [each.wall_time for each in events.Scalars("curves/loss")]
    with Reader(pair[0]) as reader:
        begun, lasted = datetime.fromisoformat(reader.info.created).timestamp(), float(reader.steps["wall_time"].sum())
    assert begun < times[0] < times[-1] == pytest.approx(begun + lasted)


def test_parameters_have_the_names_of_a_and_steps_its_numbers(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for inner in [each for each in vars(self).values() if isinstance(each, nn.Module)]:
                x = inner(x)
            return x

    files = []
    for file, name, batches in (("a.h5", "one", [7, 8, 0, 1, 2]), ("b.h5", "uno", [0, 1, 2])):
        nn.manual_seed(0)
        model = Net(**{name: nn.Linear(4, 4)})
        optimizer = nn.SGD(model.parameters(), 0.0)
        with probe.capture(model, tmp_path / file):
            for seed in batches:
                model(Tensor(sample((2, 4), seed))).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                probe.step(loss=float(seed))
        files.append(tmp_path / file)
    (tmp_path / "map.yaml").write_text("Net:\n  one: uno\n")
    result = run("export", "tensorboard", *files, "-lm", tmp_path / "map.yaml", "--steps", "2:0", "-o", tmp_path / "r")
    assert result.exit_code == 0, result.output
    b, apart = read(tmp_path / "r" / "B"), read(tmp_path / "r" / "comparison")
    assert b["curves/loss"] == {2: 0.0, 3: 1.0, 4: 2.0} and sorted(b["gradient norms/one.weight"]) == [2, 3, 4]
    assert apart["error forward/one"] == dict.fromkeys((2, 3, 4), 0.0) == apart["B − A/loss"]


def test_what_is_not_in_it_is_said(tmp_path: Path) -> None:
    model = gpt(layers=2)
    a = record(tmp_path / "a.h5", gpt(layers=3), step=plain_step)
    result = run("export", "tensorboard", a, record(tmp_path / "b.h5", model), "-o", tmp_path / "r")
    assert result.exit_code == 0
    assert "note: modules without a counterpart have no error: 13 in A\n" in result.stderr


def test_what_is_not_finite_stays_so(tmp_path: Path) -> None:
    for file, value in (("a.h5", 1.0), ("b.h5", math.nan)):
        model = nn.Sequential(nn.Linear(4, 4))
        model_0: Any = getattr(model, "0")
        model_0.weight.data[:] = value
        with probe.capture(model, tmp_path / file, phases="forward"):
            model(Tensor(sample((2, 4), 0)))
            probe.step(loss=value)
    run("export", "tensorboard", tmp_path / "a.h5", tmp_path / "b.h5", "-o", tmp_path / "r")
    assert math.isnan(read(tmp_path / "r" / "B")["curves/loss"][0])
    assert read(tmp_path / "r" / "comparison")["error forward/0"] == {0: math.inf}


def test_hostile_names_are_tags_of_their_own(tmp_path: Path) -> None:
    long = "x" * 10_000
    names = [
        f"{long}1{long}",
        f"{long}2{long}",
        "\x1b]0;title\x07",
        "a\nb",
        "\u202ea",
        "a\0b",
        "<b>",
        "a\ud800",
        "$x$ [red]",
    ]
    with probe.capture(nn.Sequential(nn.ReLU()), tmp_path / "a.h5"):
        for number, name in enumerate(names):
            probe.log(name, float(number))
        probe.step()
    result = run("export", "tensorboard", tmp_path / "a.h5", "-o", tmp_path / "r")
    assert result.exit_code == 0, result.output
    found = read_by_tensorboard(tmp_path / "r" / "a")
    assert sorted(value for values in found.values() for value in values.values()) == list(range(len(names)))
    assert all(tag.isprintable() and len(tag) < 220 for tag in found)
    assert {"curves/a\\x0ab", "curves/\\u202ea", "curves/\\x1b]0;title\\x07", "curves/<b>"} < set(found)


# ---- what goes wrong -----------------------------------------------------------------------------------


def test_events_that_are_there_are_never_mixed_with_others(pair: tuple[Path, Path], tmp_path: Path) -> None:
    run("export", "tensorboard", *pair, "-o", tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*tfevents*")}
    result = run("export", "tensorboard", *pair, "-o", tmp_path)
    message = (
        f"Error: {tmp_path}/A holds events already, which TensorBoard would mix: delete it, or name another folder\n"
    )
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", message)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*tfevents*")} == before


def test_without_tensorboardx(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run("export", "tensorboard", *pair, "-o", tmp_path / "r")
    assert result.exit_code == 3 and not (tmp_path / "r").exists()
    assert result.stderr == "Error: TensorBoard's events need tensorboardX: pip install 'probe-align[tensorboard]'\n"


def test_nothing_to_export(tmp_path: Path) -> None:
    record(tmp_path / "a.h5", task="structure", step=lambda *_: None)
    result = run("export", "tensorboard", tmp_path / "a.h5", "-o", tmp_path / "r")
    message = f"Error: {tmp_path}/a.h5 holds no number of its steps to export: neither a logged one nor a gradient\n"
    assert (result.exit_code, result.stderr) == (3, message)


def test_options_for_two_with_one(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("export", "tensorboard", pair[0], "-o", tmp_path, "--steps", "0:1")
    assert (result.exit_code, result.stderr) == (3, "Error: steps: for two recordings, and one was given\n")


def test_a_folder_that_cannot_be_written(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    result = run("export", "tensorboard", pair[0], "-o", tmp_path)
    assert (result.exit_code, result.stderr) == (3, f"Error: cannot write {tmp_path}/a: File exists\n")
