"""Logs of frameworks, and norms and metrics in them, are read as they were written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.answer.result import Verdict
from probe.curve_comparison.judge import curves
from probe.curve_comparison.reading.files import read_curves
from probe.curve_comparison.reading.framework_logs import COUNTED
from probe.curve_comparison.reading.names import canonical, is_of_the_machine
from probe.curve_comparison.reading.series import RunCurves
from probe.errors import FormatError, StoreError
from tests.curves.curve_runs import event_file, megatron, mindformers, write_csv

# ---- Reading curves: each reader knows its file by what stands in it, gives back what was written, and names what is wrong.

ROW = st.fixed_dictionaries({
    "loss": st.floats(0.01, 20, allow_nan=False),
    "grad_norm": st.floats(0.01, 1e3, allow_nan=False),
    "lr": st.floats(1e-9, 1e-1, allow_nan=False),
})  # fmt: skip
ROWS = st.dictionaries(st.integers(1, 5000), ROW, min_size=2, max_size=30)


def _json(rows: dict) -> str:
    history = [
        {"step": step, "loss": row["loss"], "grad_norm": row["grad_norm"], "learning_rate": row["lr"], "epoch": 0.1}
        for step, row in rows.items()
    ]
    summary = {"step": max(rows), "train_runtime": 12.5, "train_loss": 3.0, "total_flos": 1e12}
    return json.dumps({"best_metric": None, "global_step": max(rows), "log_history": [*history, summary]}, indent=2)


def _lines(rows: dict) -> str:
    return "".join(json.dumps({"current_steps": step, **row, "percentage": 1.0}) + "\n" for step, row in rows.items())


def _csv(rows: dict) -> str:
    head = "Step,Loss,learning_rate,grad_norm\n"
    return head + "".join(f"{s},{r['loss']!r},{r['lr']!r},{r['grad_norm']!r}\n" for s, r in rows.items())


def _events(rows: dict) -> bytes:
    names = {"loss": "train/loss", "grad_norm": "grad-norm", "lr": "learning-rate"}
    return event_file([(step, names[name], value) for step, row in rows.items() for name, value in row.items()])


FORMS: dict[str, tuple[Callable[[dict], str | bytes], dict[str, tuple[float, float]]]] = {
    "Megatron log": (megatron, {"loss": (0, 1e-6), "grad_norm": (6e-4, 0), "lr": (0, 1e-6)}),
    "MindFormers log": (lambda rows: mindformers(rows, 700), {"loss": (6e-4, 0), "grad_norm": (0, 0), "lr": (0, 0)}),
    "Trainer state": (_json, {"loss": (0, 0), "grad_norm": (0, 0), "lr": (0, 0)}),
    "JSON lines": (_lines, {"loss": (0, 0), "grad_norm": (0, 0), "lr": (0, 0)}),
    "CSV": (_csv, {"loss": (0, 0), "grad_norm": (0, 0), "lr": (0, 0)}),
    "TensorBoard events": (_events, {"loss": (0, 1e-7), "grad_norm": (0, 1e-7), "lr": (0, 1e-7)}),
}
"""writer, and by how much what is printed may differ from what was written: (absolute, relative)"""


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def _local_norms(factor: float) -> str:
    rows = {step: {"loss": 5 - step / 100, "grad_norm": 1.5, "lr": 1e-5} for step in range(1, 41)}
    lines = []
    for line in mindformers(rows, 40).splitlines():
        lines.append(line)
        if found := re.search(r"step:\[ *(\d+)/", line):
            head = f"2026-01-02 - mindformers[callback.py:9] - INFO - Epoch:[  1/  9], step:[{int(found[1]):5d}/   40]"
            norms = [0.5 + at / 100 for at in range(6)]
            norms[3] *= factor
            lines += [f"{head} local_norm/layers.{at}.wo.weight: {norm:.4f}" for at, norm in enumerate(norms)]
    return "\n".join(lines)


def test_norms_of_single_gradients_in_a_log_are_compared(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.log", _local_norms(1.0)), write(tmp_path / "b.log", _local_norms(1.5))
    run = read_curves(a)
    assert [*run.norms] == [f"layers.{at}.wo.weight" for at in range(6)] and "grad_norm" in run.series and not run.notes
    assert curves(a, a).verdict is not Verdict.DIVERGED
    answer = curves(a, b)
    assert answer.verdict is Verdict.DIVERGED and [each.name_a for each in answer.norms.first] == ["layers.3.wo.weight"]


def test_a_gradient_norm_that_was_not_computed_is_left_out(tmp_path: Path) -> None:
    rows = {step: {"loss": 5 - step / 100, "grad_norm": 0.0, "lr": 1e-5} for step in range(1, 5)}
    run = read_curves(write(tmp_path / "a.log", megatron(rows)))
    assert "grad_norm" not in run.series and run.notes == ("grad norm is 0 in all 4 steps: it was not computed there",)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[INFO] step 2 | aux_loss: 0.25 | z_loss: nan", "aux_loss: 0.25 | z_loss: nan"),
        ("[2026-01-02] {'rewards': 1e-3}", "rewards': 1e-3}"),
        ("perplexity=12.5", "perplexity=12.5"),
        ("saving to /a/b1", ""), ("elapsed time: 12.5 s", ""), ("callback.py:487 started 10:00:00", ""),
    ],
)  # fmt: skip
def test_lines_with_numbers_that_are_not_read_are_counted(tmp_path: Path, line: str, shown: str) -> None:
    rows = {step: {"loss": 5 - step / 100, "grad_norm": 1.5, "lr": 1e-5} for step in range(1, 5)}
    lines = megatron(rows).splitlines()
    run = read_curves(write(tmp_path / "a.log", "\n".join(["hidden_size: 64", *lines, line, line]) + "\n"))
    said = f"2 lines hold numbers and are not read, first line {len(lines) + 2}: “{shown}”"
    assert run.notes == ((said,) if shown else ())


@pytest.mark.parametrize("kind", FORMS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_what_was_written_is_read(kind: str, tmp_path: Path, rows: dict) -> None:
    writer, kept = FORMS[kind]
    run = read_curves(write(tmp_path / "file", writer(rows)))
    assert run.kind == kind and not run.notes
    steps = sorted(rows)
    for name, (absolute, relative) in kept.items():
        found = run.series[name]
        expected = np.array([rows[step][name] for step in steps])
        assert found.steps.tolist() == steps
        np.testing.assert_allclose(found.values, expected, rtol=relative, atol=absolute)
        assert (
            (found.resolution(found.values) >= np.abs(found.values - expected) - 1e-12 * expected).all()
            or relative == 1e-7
            or len(set(found.values)) == 1
        )  # of one number it is not known how it was rounded


@pytest.mark.parametrize("style", ["simple", "content", "float_val"])
def test_scalars_of_every_version_of_tensorboard(tmp_path: Path, style: str) -> None:
    run = read_curves(write(tmp_path / "e", event_file([(0, "loss", 2.5), (1, "loss", -0.5)], style)))
    assert run.series["loss"].values.tolist() == [2.5, -0.5]


def test_a_folder_of_event_files_is_one_run(tmp_path: Path) -> None:
    write(tmp_path / "events.out.tfevents.1.a", event_file([(0, "loss", 3.0), (1, "loss", 2.0)]))
    write(tmp_path / "events.out.tfevents.2.a", event_file([(1, "loss", 2.5), (2, "loss", 1.0)]))
    write(tmp_path / "notes.txt", "nothing")
    run = read_curves(tmp_path)
    assert run.series["loss"].values.tolist() == [3.0, 2.5, 1.0]
    assert run.notes == ("step 1 stands there more than once (a restart?): what came last counts",)


def test_a_folder_of_a_trainer(tmp_path: Path) -> None:
    write(tmp_path / "trainer_state.json", _json({1: {"loss": 1.0, "grad_norm": 2.0, "lr": 0.5}}))
    run = read_curves(tmp_path)
    assert run.kind == "Trainer state"
    assert set(run.series) == {"loss", "grad_norm", "lr", "epoch"}, "the summary of the whole run is no step"


def test_what_else_megatron_prints(tmp_path: Path) -> None:
    rows = {step: {"loss": 3.0, "grad_norm": math.nan if step == 2 else 1.0, "lr": 1e-5} for step in (1, 2)}
    text = megatron(rows) + " validation loss at iteration 2 | lm loss value: 2.950000E+00 | lm loss PPL: 1.9E+01 | \n"
    run = read_curves(write(tmp_path / "log", text))
    assert math.isnan(run.series["grad_norm"].values[1])
    assert run.series["validation lm loss value"].values.tolist() == [2.95]
    assert run.series["loss_scale"].values.tolist() == [1.0, 1.0]
    assert is_of_the_machine("elapsed time per iteration (ms)") and not is_of_the_machine("loss scale")


def test_mindformers_prints_the_mean_beside_the_loss(tmp_path: Path) -> None:
    rows = {step: {"loss": 3.0 + step, "grad_norm": 1.0, "lr": 1e-5} for step in (1, 2, 3)}
    run = read_curves(write(tmp_path / "log", mindformers(rows, 2, brackets=True)))
    assert run.series["loss"].steps.tolist() == [1, 2, 3], "counted through the epochs"
    assert run.series["loss"].values.tolist() == [4.0, 5.0, 6.0]
    assert run.series["train_throughput_per_npu"].values.tolist() == [41.245] * 3


@pytest.mark.parametrize(
    "written, name",
    [
        ("lm loss", "loss"), ("train/loss", "loss"), ("Loss", "loss"), ("lm-loss-training/lm loss", "lm-loss-training/lm loss"),
        ("grad norm", "grad_norm"), ("global_norm", "grad_norm"), ("grad-norm/grad-norm", "grad_norm"), ("train/grad_norm", "grad_norm"),
        ("learning-rate", "lr"), ("learning_rate", "lr"), ("eval/loss", "eval/loss"), ("aux loss", "aux loss"), ("loss scale", "loss_scale"), ("loss_scale", "loss_scale"), ("scaling_sens", "loss_scale"), ("train/loss_scale", "loss_scale"),
    ],
)  # fmt: skip
def test_names(written: str, name: str) -> None:
    assert canonical(written) == name


def test_two_names_of_one_thing_are_both_kept(tmp_path: Path) -> None:
    run = read_curves(write_csv(tmp_path / "a.csv", loss=[1.0, 2.0], lm_loss=[3.0, 4.0]))
    assert run.series["loss"].values.tolist() == [1.0, 2.0] and run.series["lm_loss"].values.tolist() == [3.0, 4.0]


MEGATRON_LINE = " iteration        1/      10 | learning rate: 1.0E-05 | lm loss: {} | grad norm: 1.000 |\n"
BAD: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "{path} is empty; expected a recording of probe, a log of Megatron, MindFormers, PaddleNLP"),
    "prose": ("\nhello\n", "{path}, line 2: neither the header of a CSV with a column of steps (step, steps, "),
    "bytes": (b"PK\x03\x04\x00\x00", "{path} is a file of bytes that probe does not know; expected a recording of probe"),
    "csv cell": ("step,loss\n0,1.5\n1,abc\n", "{path}, line 3: loss: expected a number, got 'abc'"),
    "csv step": ("step,loss\n0.5,1.5\n", "{path}, line 2: step: expected a whole number, got '0.5'"),
    "csv row": ("step,loss\n0,1.5\n1\n", "{path}, line 3: expected 2 cells (step, loss), got 1"),
    "csv empty": ("step,loss\n", "{path}: no row with a number behind the header step, loss"),
    "json": ('{"log_history": [\n{"step": 1,,}]}', "{path}, line 2: not valid JSON ("),
    "json without": ('{"epoch": 3}', "{path}: expected a log_history (of transformers' trainer_state.json)"),
    "json entry": ('[{"loss": 1.0}]', "{path}, log_history[0]: expected an object with a step (step, steps, "),
    "json lines": ('{"step": 1, "loss": 1.0}\n{"step": 2, "loss"\n{"step": 3}\n', "{path}, line 2: not valid JSON ("),
    "json no number": ('[{"step": 1, "note": "x"}]', "{path}: its entries hold no number beside the step"),
    "megatron": ("start\n" + MEGATRON_LINE.format("oops"), "{path}, line 2: lm loss: expected a number, got 'oops'"),
    "mindformers": (
        "{ Epoch:[  1/  9], step:[    1/  10], loss: x.5, lr: 1e-05", "{path}, line 1: loss: expected a number, got 'x.5'",
    ),
    "events": (event_file([(0, "loss", 1.0)])[:-1] + b"\xff", "{path}, byte "),
    "no scalar": (event_file([]), "{path}: its events hold no scalar; expected loss, grad-norm, learning-rate …"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named(name: str, tmp_path: Path) -> None:
    content, expected = BAD[name]
    path = write(tmp_path / "file", content)
    with pytest.raises(FormatError) as caught:
        read_curves(path)
    assert str(caught.value).startswith(expected.format(path=path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no file .*missing.log$"):
        read_curves(tmp_path / "missing.log")
    with pytest.raises(
        FormatError, match="is a folder with neither event files of TensorBoard nor a trainer_state.json"
    ):
        read_curves(tmp_path)


def cut(run: RunCurves) -> list[int]:
    return run.series["loss"].steps.tolist()


def test_what_is_still_being_written(tmp_path: Path) -> None:
    whole = event_file([(0, "loss", 1.0), (1, "loss", 2.0)])
    run = read_curves(write(tmp_path / "events", whole[:-5]))
    assert cut(run) == [0] and "ends inside a record, which is left out" in run.notes[0]
    run = read_curves(write(tmp_path / "lines", '{"step": 0, "loss": 1.0}\n{"step": 1, "lo'))
    assert cut(run) == [0] and run.notes[0].startswith("line 2 is not complete and is left out")


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    run = read_curves(write(tmp_path / "t.json", '[{"step": 1, "loss": NaN}, {"step": 2, "loss": Infinity}]'))
    assert math.isnan(run.series["loss"].values[0]) and math.isinf(run.series["loss"].values[1])


def test_what_is_printed_of_a_learning_rate(tmp_path: Path) -> None:
    """``0.001`` printed to three digits must not make 0.001 and 0.002 the same, nor ``1e-05`` 1e-5 and 2e-5."""
    for texts in (["0.001", "0.002"], ["1e-05", "1e-05"]):
        run = read_curves(write(tmp_path / "t.csv", "step,lr\n" + "".join(f"{i},{t}\n" for i, t in enumerate(texts))))
        rate = run.series["lr"]
        assert (rate.resolution(rate.values) <= 1e-3 * rate.values).all()
    run = read_curves(write(tmp_path / "l.csv", "step,loss\n0,1e-05\n1,2e-05\n"))
    assert not run.series["loss"].resolution(run.series["loss"].values).any(), (
        "of 1e-05 no digit is known to be rounded"
    )


# ---- Lines of PaddleNLP, of transformers' Trainer and of MindSpore's LossMonitor become curves with the right steps.

LOSSES = [10.61234567, 9.87, 8.5, 7.25]


def read(tmp_path: Path, text: str) -> RunCurves:
    path = tmp_path / "train.log"
    path.write_text(text, encoding="utf-8")
    return read_curves(path)


def curve(run: RunCurves, name: str) -> dict[int, float]:
    series = run.series[name]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def paddlenlp(every: int = 1) -> str:
    lines = ["[2024-03-03 18:06:30,000] [    INFO] -   Total optimization steps = 1,000"]
    for index, loss in enumerate(LOSSES, 1):
        lines.append(
            f"[2024-03-03 18:06:33,568] [    INFO] - loss: {loss}, learning_rate: {index}e-06, global_step: {index * every}, "
            "current_memory_allocated: 7.5, interval_runtime: 1.2, interval_samples_per_second: 0.9, progress_or_epoch: 0.1"
        )
    lines.append(
        "[2024-03-03 18:07:00,000] [    INFO] - eval_loss: 7.5, eval_accuracy: 0.5, eval_runtime: 2.0, epoch: 1.0"
    )
    return "\n".join(lines)


def test_paddlenlp(tmp_path: Path) -> None:
    run = read(tmp_path, paddlenlp(10))
    assert run.kind == "PaddleNLP log" and not run.notes
    assert curve(run, "loss") == dict(zip([10, 20, 30, 40], LOSSES, strict=True))
    assert curve(run, "lr") == {10: 1e-6, 20: 2e-6, 30: 3e-6, 40: 4e-6}
    assert curve(run, "eval_accuracy") == {40: 0.5}
    assert "global_step" not in run.series


def test_other_programs_with_such_lines(tmp_path: Path) -> None:
    line = "[2024/08/06 18:03:31] openrec INFO: epoch: [1/2], global_step: {}, lr: 0.000005, loss: 69.37, avg_batch_cost: 0.18 s, ips: 355.1 samples/s, eta: 0:32:33\n"
    run = read(tmp_path, line.format(100) + line.format(110))
    assert curve(run, "loss") == {100: 69.37, 110: 69.37} and curve(run, "lr") == {100: 5e-6, 110: 5e-6}


def trainer(v5: bool, bars: str = "") -> str:
    lines = []
    for index, loss in enumerate(LOSSES, 1):
        if v5:
            row = {
                "loss": f"{loss:.4g}",
                "grad_norm": f"{index / 3:.4g}",
                "learning_rate": f"{index * 1e-5:.4g}",
                "epoch": f"{index / 4:.4g}",
            }
        else:
            row = {"loss": round(loss, 4), "grad_norm": index / 3, "learning_rate": index * 1e-5, "epoch": index / 4}  # type: ignore[dict-item]
        lines.append(str(row) + bars.format(10 * index))
    lines.insert(2, str({"eval_loss": 9.0, "eval_runtime": 1.5, "epoch": 0.5}))
    lines.append(str({"train_runtime": 12.5, "train_samples_per_second": 3.0, "train_loss": 9.1, "epoch": 1.0}))
    return "Loading weights\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("v5", [False, True])
def test_a_trainer_prints_no_steps(v5: bool, tmp_path: Path) -> None:
    run = read(tmp_path, trainer(v5))
    assert run.kind == "Trainer output" and run.notes == (COUNTED,)
    assert set(run.series) == {"loss", "grad_norm", "lr", "epoch", "eval_loss", "eval_runtime"}
    assert run.series["loss"].steps.tolist() == [1, 2, 3, 4]
    assert curve(run, "eval_loss") == {2: 9.0}
    values = run.series["loss"].values
    np.testing.assert_allclose(values, LOSSES, rtol=1e-3 if v5 else 1e-5)
    off = np.abs(values - LOSSES)
    assert (off <= run.series["loss"].resolution(values)).all(), "what printing rounded is no difference"
    assert run.series["loss"].resolution(np.array([10.0]))[0] == pytest.approx(1e-2 if v5 else 1e-4)


def test_progress_bars_tell_the_steps(tmp_path: Path) -> None:
    bar = "\n\r  5%|▌         | {}/200 [00:05<01:35,  2.0it/s]\r 50%|█    | 3/6 [00:01<00:01]"
    run = read(tmp_path, "  0%|          | 0/200 [00:00<?, ?it/s]" + trainer(True, bar))
    assert run.series["loss"].steps.tolist() == [10, 20, 30, 40] and not run.notes
    late = trainer(True) + "".join(f"\r| {step}/200 [00:05<01:35]" for step in (10, 20, 30, 40))
    run = read(tmp_path, "| 0/200 [00:00<?]" + late)  # stdout came in one piece: the bars stand elsewhere
    assert run.series["loss"].steps.tolist() == [1, 2, 3, 4] and run.notes == (COUNTED,)


def test_steps_in_the_dicts_count(tmp_path: Path) -> None:
    run = read(
        tmp_path,
        "{'loss': 0.18, 'learning_rate': 4.5e-05, 'global_step': 150, 'epoch': 2.0}\n{'loss': nan, 'global_step': 160, 'epoch': 2.1}",
    )
    assert run.series["loss"].steps.tolist() == [150, 160] and np.isnan(run.series["loss"].values[1])
    assert not run.notes


@pytest.mark.parametrize(
    "places, steps",
    [
        ([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)], [1, 2, 3, 4, 5]),
        ([(1, 100), (1, 200), (2, 50), (2, 150)], [100, 200, 300, 400]),  # per_print_times=100, 250 steps an epoch
        ([(1, 1875), (2, 1875), (3, 1875)], [1875, 3750, 5625]),  # data sink mode
        ([(2, 1), (2, 2), (3, 1), (3, 2)], [3, 4, 5, 6]),  # resumed behind the first epoch
        ([(1, 10), (1, 20)], [10, 20]),
    ],
)
def test_loss_monitor_counts_steps_in_each_epoch(
    places: list[tuple[int, int]], steps: list[int], tmp_path: Path
) -> None:
    lines = [f"epoch: {epoch} step: {step}, loss is {float(index)}" for index, (epoch, step) in enumerate(places)]
    run = read(tmp_path, "\n".join([*lines, "epoch time: 7.8 ms, per step time: 7.8 ms"]))
    assert run.kind == "LossMonitor output"
    assert curve(run, "loss") == dict(zip(steps, map(float, range(len(steps))), strict=True))


def test_a_loss_that_is_no_number_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"train\.log, line 2: loss: expected a number, got 'oops'"):
        read(tmp_path, "epoch: 1 step: 1, loss is 2.5\nepoch: 1 step: 2, loss is oops")
