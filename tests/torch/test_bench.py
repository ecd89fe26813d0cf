"""The cost benchmark runs, measures in pairs, and leaves the plain model alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.optim.optimizer import _global_optimizer_pre_hooks  # noqa: E402

from benchmarks.cost.__main__ import main  # noqa: E402
from benchmarks.cost.measure import Comparison  # noqa: E402
from benchmarks.cost.model import SIZES, Trainee  # noqa: E402
from benchmarks.cost.pairs import ratios  # noqa: E402
from benchmarks.cost.recorders import Probe  # noqa: E402
from benchmarks.cost.rows import ROWS  # noqa: E402


def bench(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["--quick", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_it_prints_a_row_for_everything_and_keeps_what_was_measured_before(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    bench("--row", "statistics", "--pairs", "2", "--json", str(out))
    first = json.loads(out.read_text())["rows"]
    printed = bench("--row", "tensors", "--row", "passes", "--pairs", "2", "--json", str(out))
    found = json.loads(out.read_text())
    assert found["rows"][0] == first[0] and [row["row"] for row in found["rows"]] == ["statistics", "tensors"]
    for row in found["rows"]:
        assert row["pairs"] == 2 and row["losses_equal"] and row["new_files_per_step"] == 0
        assert row["written_ratio"]["median"] > 1 and row["cpu_ratio"]["median"] > 1
        assert ROWS[row["row"]].title in printed
    parameters = sum(p.numel() * 4 for p in Trainee(SIZES["tiny"]).model.parameters())
    small, large = [row["bytes_per_step"] for row in found["rows"]]
    assert 10_000 < small and 5 * parameters < large - small < 20 * parameters
    assert found["passes"][0]["case"] == "float32 [4096, 4096]" and "≤ 6" in printed
    assert {"cpu", "cores", "python"} <= set(found["machine"])


def test_the_ratio_is_taken_pair_by_pair() -> None:
    assert ratios([1.0, 2.0, 4.0], [2.0, 2.0, 12.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_the_plain_model_has_no_hooks_and_the_other_one_has(tmp_path: Path) -> None:
    plain, watched, tool = Trainee(SIZES["tiny"]), Trainee(SIZES["tiny"]), Probe({})
    tool.open(watched, tmp_path)
    try:
        assert not any(module._forward_hooks for module in plain.model.modules())
        assert not any(p._post_accumulate_grad_hooks for p in plain.model.parameters())
        assert not _global_optimizer_pre_hooks
        assert all(module._forward_hooks for module in watched.model.modules())
        assert torch.equal(plain.step(), tool.step(watched.step))
    finally:
        tool.close()


def test_losses_that_differ_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Probe.step
    monkeypatch.setattr(Probe, "step", lambda self, train: step(self, train) + 1)
    assert not Comparison(ROWS["statistics"], SIZES["tiny"], tmp_path).run(2)["losses_equal"]
