"""The frameworks read what probe writes, and probe what they write: torch → other → torch, bit for bit in bfloat16."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from probe.checkpoints import Stored, open_checkpoint, write_checkpoint
from probe.conversion import convert_checkpoint
from tests.published.structures import Modules, state_of, structure

HERE = Path(__file__).parent
NET: Modules = {
    "": ("Sequential", {}),
    "0": ("Linear", {"weight": (4, 4), "bias": (4,)}),
    "1": ("BatchNorm1d", {"weight": (4,), "bias": (4,), "running_mean": (4,), "running_var": (4,)}),
    "2": ("PReLU", {"weight": (4,)}),
    "3": ("Linear", {"weight": (2, 4), "bias": (2,)}),
}
TORCH = structure("torch", NET)
PADDLE_NET: Modules = {
    **NET, "1": ("BatchNorm1D", {"weight": (4,), "bias": (4,), "_mean": (4,), "_variance": (4,)}),
    "2": ("PReLU", {"_weight": (4,)}), "3": ("Linear", {"weight": (4, 2), "bias": (2,)}),
}  # fmt: skip
PADDLE = structure("paddle", PADDLE_NET)


@pytest.mark.parametrize(("framework", "suffix"), [("paddle", ".pdparams"), ("mindspore", ".ckpt")])
def test_there_through_the_framework_and_back(tmp_path: Path, framework: str, suffix: str) -> None:
    state = state_of(TORCH, dtype=ml_dtypes.bfloat16)
    (tmp_path / "net").mkdir()
    stored = [Stored(name, x.dtype, x.shape) for name, x in state.items()]
    write_checkpoint(tmp_path / "net", ".safetensors", [stored], state.__getitem__, "torch")
    like = PADDLE if framework == "paddle" else None
    given, _ = convert_checkpoint(
        tmp_path / "net" / "model.safetensors", tmp_path / f"given{suffix}", to=framework, model=TORCH, like=like
    )
    own, out = tmp_path / f"own{suffix}", tmp_path / "out.npz"
    command = [sys.executable, str(HERE / "files.py"), framework, str(given), str(own), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent.parent, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded, written = np.load(out), open_checkpoint(given)
    assert {name: x.tobytes() for name, x in loaded.items()} == {n: written.read(n).tobytes() for n in written.tensors}
    back, _ = convert_checkpoint(own, tmp_path / "back.safetensors", to="torch", model=like, like=TORCH)
    found = open_checkpoint(back)
    assert {n: found.read(n).tobytes() for n in found.tensors} == {n: x.tobytes() for n, x in state.items()}
