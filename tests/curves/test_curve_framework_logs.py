"""Lines of PaddleNLP, of transformers' Trainer and of MindSpore's LossMonitor become curves with the right steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probe.curve_comparison.reading.files import read_curves
from probe.curve_comparison.reading.framework_logs import COUNTED
from probe.curve_comparison.reading.series import RunCurves
from probe.errors import FormatError

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
