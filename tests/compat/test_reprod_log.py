"""`probe.compat.reprod_log`: files, log lines, and what must not pass."""

from __future__ import annotations

import pickle
import re
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
        (X, X.T, True), (X, X + 1, False), (X, X[:1], False), (X, X[0], False), (np.array([1.0, NAN]), np.array([1.0, 2.0]), False),
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


def test_nested_names_and_remarks(capsys: pytest.CaptureFixture[str]) -> None:
    helper = ReprodDiffHelper()
    helper.compare_info({"block": {"w": X, "b": X}}, {"block": {"w": X.T, "b": X[:1]}})
    assert helper.report(path=None) is False
    lines = [line.partition("INFO: ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[:4] == ["block", "\tw: ", "\t\ttranspose sub_data1", "\t\tmean diff: check passed: True, value: 0.0"]
    assert lines[5] == "\t\tshapes (2, 3) and (1, 3): not compared"


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


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("ran"),)


def test_a_file_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("hostile.npy", {"x": _Hostile()})  # type: ignore[arg-type]
    with pytest.raises((ConversionError, pickle.UnpicklingError)):
        ReprodDiffHelper().load_info("hostile.npy")
    assert not Path("ran").exists()
