"""States of optimizers that have one canonical name hold the same numbers in every framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from probe.numbers.layouts import state_name
from tests.frameworks.optimizers import LR

HERE = Path(__file__).parent
Arrays = dict[str, np.ndarray]


def states(framework: str, folder: Path) -> dict[str, Arrays]:
    """Return the states of each case by their canonical names."""
    command = [sys.executable, str(HERE / "optimizers.py"), framework, str(folder / "out.npz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent.parent, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Arrays] = {}
    for name, x in np.load(folder / "out.npz").items():
        case, class_name, *state = name.split("/")
        key = state_name(framework, class_name, state[0]) if state else class_name
        found.setdefault(case, {})[key] = x
    return found


SHARED = {
    "Adam": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, "AdamW": {"exp_avg", "exp_avg_sq"}, "Momentum": {"momentum_buffer"},
    "Adamax": {"exp_avg", "exp_inf"}, "Adagrad": {"sum"}, "Adadelta": {"square_avg", "acc_delta"},
    "RMSProp": {"square_avg", "grad_avg"},
}  # fmt: skip


@pytest.fixture(scope="module")
def torchs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arrays]:
    return states("torch", tmp_path_factory.mktemp("states"))


def test_paddle(tmp_path: Path, torchs: dict[str, Arrays]) -> None:
    found = states("paddle", tmp_path)
    for case, names in SHARED.items():
        assert names <= found[case].keys() & torchs[case].keys(), case
        for name in names:
            assert np.allclose(found[case][name], torchs[case][name], rtol=1e-5, atol=1e-7), (case, name)
    times_lr = found["RMSProp"]["momentum_buffer_times_lr"]
    assert np.allclose(times_lr, LR * torchs["RMSProp"]["momentum_buffer"], rtol=1e-4)
    assert not np.allclose(times_lr, torchs["RMSProp"]["momentum_buffer"], rtol=0.5)


def test_mindspore(tmp_path: Path, torchs: dict[str, Arrays]) -> None:
    found = states("mindspore", tmp_path)
    for case in ("Adam", "AdamW", "Momentum", "Adamax", "Adagrad", "Adadelta"):
        for name in SHARED[case] - {"max_exp_avg_sq"}:
            assert np.allclose(found[case][name], torchs[case][name], rtol=1e-5, atol=1e-7), (case, name)
    assert np.allclose(found["SGD"]["momentum_buffer"], torchs["Momentum"]["momentum_buffer"], rtol=1e-5)
