"""`probe.compat.reprod_log`: files, log lines, and what must not pass."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from probe.compat.reprod_log import ReprodDiffHelper, ReprodLogger
from probe.errors import ConfigError, ConversionError, FormatError, StoreError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
NAN = float("nan")


def compared(a: Any, b: Any) -> ReprodDiffHelper:
    helper = ReprodDiffHelper()
    helper.compare_info({"x": a}, {"x": b})
    return helper


def test_the_program_of_the_guide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for side, shift in (("torch", 0.0), ("paddle", 0.25)):
        logger = ReprodLogger()
        logger.add("demo_test_1", X)
        logger.add("demo_test_2", X + np.float32(shift))
        logger.add("not_this", X)
        logger.remove("not_this")
        logger.save(str(tmp_path / "log_reprod" / f"forward_{side}.npy"))
    helper = ReprodDiffHelper()
    infos = [helper.load_info(str(tmp_path / "log_reprod" / f"forward_{side}.npy")) for side in ("torch", "paddle")]
    assert infos[0].keys() == {"demo_test_1", "demo_test_2"} and np.array_equal(infos[0]["demo_test_1"], X)
    helper.compare_info(*infos)
    assert helper.report(path=str(tmp_path / "logs" / "forward_diff.log")) is False
    lines = capsys.readouterr().out
    assert lines == (tmp_path / "logs" / "forward_diff.log").read_text()
    stamp = r"\[\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\] root INFO: "
    assert re.sub(stamp, "", lines) == (
        "demo_test_1: \n\tmean diff: check passed: True, value: 0.0\n"
        "demo_test_2: \n\tmean diff: check passed: False, value: 0.25\ndiff check failed\n"
    )
    assert helper.report(diff_threshold=0.25, path=None) is True
    read_by_numpy = np.load(tmp_path / "log_reprod" / "forward_torch.npy", allow_pickle=True).tolist()
    assert read_by_numpy.keys() == infos[0].keys()


@pytest.mark.parametrize(
    "method, lines",
    [("min", ["min"]), (["max", "min"], ["max", "min"]), ("all", ["min", "max", "mean"])],
)
def test_methods(method: Any, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    helper = compared(np.array([0.0, 1.0, 5.0]), np.array([0.0, 0.0, 0.0]))
    assert helper.report(diff_method=method, diff_threshold=3, path=None) is ("max" not in lines)
    found = re.findall(r"\t(\w+) diff: check passed: (\w+), value: ([\d.]+)", capsys.readouterr().out)
    values = {"min": ("True", "0.0"), "max": ("False", "5.0"), "mean": ("True", "2.0")}
    assert found == [(name, *values[name]) for name in lines]  # each by itself


@pytest.mark.parametrize(
    "a, b, passes",
    [
        (X, X.T, False), (X, X + 1, False), (X, X[:1], False), (X, X[0], False), (np.array([1.0, NAN]), np.array([1.0, 2.0]), False),
        (np.array([NAN]), np.array([NAN]), False), (np.array([np.inf]), np.array([np.inf]), True), (np.zeros(0), np.zeros(0), False),
        (np.array([1], np.uint8), np.array([2], np.uint8), False), (np.array([True]), np.array([False]), False),
        (np.array([200], np.uint8), np.array([200], np.int64), True), (np.array([1j]), np.array([1.0]), False),
        (X.astype(ml_dtypes.bfloat16), X, True), (np.array(2.0), np.array([2.0]), True), (np.array([2.0]), np.array(2.5), False),
        (X[:, :1], X[:, 0], True), (X[:, :1], X[::-1, 0], False), (X, X.reshape(2, 1, 3), True),
    ],
)  # fmt: skip
def test_what_passes(a: np.ndarray, b: np.ndarray, passes: bool) -> None:
    for method in ("mean", "all"):
        assert compared(a, b).report(method, 1e-6, None) is passes


@pytest.mark.parametrize(
    "a, b, lines",
    [
        (X.T, X, ["shapes (3, 2) and (2, 3), one is the other transposed: not compared", "False, value: nan"]),
        (X, X[:1], ["shapes (2, 3) and (1, 3): not compared", "False, value: nan"]),
        (X[:, :1], X[:, 0], ["shapes (2, 1) and (2,): axes of size 1 left out", "True, value: 0.0"]),
        (X, np.where(X > 3, NAN, X), ["NaN in 2 of 6 places", "False, value: nan"]),
        (np.zeros((0, 2)), np.zeros((0, 2)), ["shapes (0, 2) and (0, 2): not compared", "False, value: nan"]),
        (np.array([0, 3], "u1"), np.array([255, 3], "u1"), ["False, value: 255"]),
        (np.array([-(2**63)]), np.array([2**63 - 1]), [f"False, value: {2**64 - 1}"]),
        (np.array(0.5, "f4"), np.array([0.5], "f4"), ["True, value: 0.0"]),
        (X, X + np.float32(0.1), [f"False, value: {np.abs(X - (X + np.float32(0.1))).max()}"]),
    ],
    ids=["transposed", "broadcast", "axis", "nan", "empty", "uint8", "int64", "loss", "float32"],
)
def test_the_log_says_why(a: np.ndarray, b: np.ndarray, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    helper = ReprodDiffHelper()
    helper.compare_info({"block": {"mean": a, "max": X, "min": X}}, {"block": {"mean": b, "max": X, "min": X}})
    assert helper.report("max", path=None) is lines[-1].startswith("True")
    said = [line.partition("INFO: ")[2] for line in capsys.readouterr().out.splitlines()]
    wanted = [f"\t\t{why}" for why in lines[:-1]] + [f"\t\tmax diff: check passed: {lines[-1]}"]
    assert said[: 2 + len(lines)] == ["block", "\tmean: ", *wanted]


def test_an_array_counts_as_it_was_when_it_was_added() -> None:
    logger, gradient = ReprodLogger(), X.copy()
    logger.add("gradient", gradient)
    gradient[:] = 0  # as zero_grad() does
    assert np.array_equal(logger.data["gradient"], X)


def test_nothing_to_compare_does_not_pass() -> None:
    helper = ReprodDiffHelper()
    helper.compare_info({}, {})
    assert helper.report(path=None) is False


def test_errors(tmp_path: Path) -> None:
    logger, helper = ReprodLogger(), ReprodDiffHelper()
    with pytest.raises(
        ConfigError, match=r"x: expected a numpy array, got builtins\.list; of a tensor: tensor\.detach"
    ):
        logger.add("x", [1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"on one side only: c; both programs"):
        helper.compare_info({"a": X, "b": {"w": X}}, {"a": X, "b": {}, "c": X})
    with pytest.raises(ConfigError, match=r"on one side only: b\.w; both programs"):
        helper.compare_info({"b": {"w": X}}, {"b": {}})
    with pytest.raises(ConfigError, match="a: expected numpy arrays, got ndarray and dict"):
        helper.compare_info({"a": X}, {"a": {}})
    with pytest.raises(ConfigError, match="diff_method='avg' is not known; expected min, max, mean or all"):
        helper.report("avg", path=None)
    with pytest.raises(StoreError, match="there is no file"):
        helper.load_info(tmp_path / "no.npy")
    np.save(tmp_path / "array.npy", X)
    with pytest.raises(FormatError, match="holds an array; expected the dict"):
        helper.load_info(tmp_path / "array.npy")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "array.npy").read_bytes()[:20])
    with pytest.raises(FormatError, match="is damaged"):
        helper.load_info(tmp_path / "cut.npy")


def folder_of(folder: Path, **points: dict[str, Any]) -> Path:
    """Write the ten files of the guide; the port's are shifted by what stands under ``shift``."""
    for point in ("forward", "metric", "loss", "bp_align", "train_align"):
        names, options = ["loss_0", "loss_1"] if point == "bp_align" else ["x"], points.get(point, {})
        for side in ("torch", "paddle"):
            logger, shift = ReprodLogger(), options.get("shift", 0) * (side == "paddle")
            for name in [*names[: options.get("count", 2)], *options.get(side, ())]:
                logger.add(name, np.array([0.5 + shift]))
            logger.save(folder / f"{point}_{'benchmark' if (point, side) == ('train_align', 'torch') else side}.npy")
    return folder


@pytest.mark.parametrize(
    "points, said",
    [
        ({}, "accepted"),
        ({"forward": {"shift": 1e-7}, "train_align": {"shift": 0.001}}, "accepted"),
        ({"forward": {"shift": 2e-6}}, "not accepted: forward"),
        ({"train_align": {"shift": 0.002}}, "not accepted: train_align"),
        ({"metric": {"paddle": ["f1"]}}, "metric: on one side only: f1; both programs add arrays of the same names\n"
                                         "not accepted: metric"),
        ({"bp_align": {"count": 1}}, "bp_align: 1 arrays, expected 2 or more\nnot accepted: bp_align"),
        ({"loss": {"shift": NAN}}, "not accepted: loss"),
    ],
)  # fmt: skip
def test_the_example_of_five_points(points: dict[str, Any], said: str, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "docs" / "examples" / "acceptance.py"
    command = [sys.executable, str(script), str(folder_of(tmp_path, **points)), "--train-threshold", "0.0015"]
    env = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    own = "".join(f"{line}\n" for line in done.stdout.splitlines() if not line.startswith("["))
    assert (own, done.returncode) == (f"{said}\n", int("not" in said)), done.stderr
    logs = sorted(path.name for path in tmp_path.glob("*_diff.log"))
    assert len(logs) == 5 - ("one side" in said) and "diff check" in (tmp_path / logs[0]).read_text()


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("ran"),)


def test_a_file_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("hostile.npy", {"x": _Hostile()})  # type: ignore[arg-type]
    with pytest.raises((ConversionError, pickle.UnpicklingError)):
        ReprodDiffHelper().load_info("hostile.npy")
    assert not Path("ran").exists()
