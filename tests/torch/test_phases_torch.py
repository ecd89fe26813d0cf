"""Some phases alone, over several steps: weights that differ are known by what calls find, and their updates are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase, Role  # noqa: E402
from probe.store.reading.reader import Reader  # noqa: E402


def recorded(path: Path, phases: list[str] | None, lr: float = 1e-2) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    with probe.capture(model, path, phases=phases):
        for step in range(3):
            loss = model(torch.randn(8, 16, generator=torch.Generator().manual_seed(step))).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("phases", [["forward", "loss"], ["forward", "gradient"], ["forward", "backward"]], ids=str)
def test_weights_that_differ_where_no_update_was_recorded(tmp_path: Path, phases: list[str]) -> None:
    a = recorded(tmp_path / "a.h5", phases)
    with Reader(a) as run:
        found = [int(row["step"]) for row in run.records if (row["phase"], row["role"]) == (Phase.FORWARD, Role.PARAM)]
    assert found == [1] * 4 + [2] * 4, "what calls find written to"
    assert probe.compare(a, recorded(tmp_path / "same.h5", phases)).verdict is Verdict.ALIGNED
    other = probe.compare(a, recorded(tmp_path / "b.h5", phases, lr=2e-2))
    assert other.verdict is Verdict.UNDECIDED, other
    assert re.fullmatch(
        r"step 1 uses weights that differ \(rel \S+, all 4 together\), and what changed them was not recorded: record the phases "
        "init and update too",
        other.doubts[0],
    )


@pytest.mark.parametrize("phases", [["forward"], ["init", "forward"], ["forward", "gradient"]], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_updates_that_one_side_alone_recorded_are_not_taken_for_something_elses_work(
    tmp_path: Path, phases: list[str], turned: bool
) -> None:
    files = [recorded(tmp_path / "a.h5", None), recorded(tmp_path / "b.h5", phases, lr=2e-2)]
    found = probe.compare(*(files[::-1] if turned else files))
    assert found.verdict is Verdict.UNDECIDED, found
    assert re.fullmatch(
        r"step 1 uses weights that differ \(rel \S+, all 4 together\), and what changed them was not recorded: .*",
        found.doubts[0],
    )
