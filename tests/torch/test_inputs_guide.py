"""What docs/guide/inputs.md shows runs."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from probe.reproducibility import origins

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "inputs.md"


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(origins, "_facts", {})
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    code = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        names: dict[str, object] = {}
        exec(compile(code, str(GUIDE), "exec"), names)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
    said = capsys.readouterr()
    assert "first difference: batch 0" in said.out and "seed 42, deterministic: " in said.err
    assert names["logits"].shape == (8, 10)  # type: ignore[attr-defined]
