"""Steps that loss scaling skips: float16's gradients are not finite on either side."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.answer import Comparison  # noqa: E402
from probe.comparison.result import Kind, Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402
from probe.store.reading.reader import Reader  # noqa: E402

TASKS = ("statistics", "tensor")


def train(path: Path, task: str, *, lr: float = 1e-2, scale: float = 2.0**40, backoff: float = 2.0**-30) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=backoff)
    with probe.capture(model, path, task=task):
        for _ in range(3):
            x = torch.randn(8, 16)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("task", TASKS)
def test_the_other_steps_are_compared(tmp_path: Path, task: str) -> None:
    found = probe.compare(train(tmp_path / "a.h5", task), train(tmp_path / "b.h5", task, scale=2.0**41))
    assert found.verdict is Verdict.ALIGNED, found
    assert [(left.what, left.why, left.names) for left in found.left_out] == [("gradients", "not finite", ("0",))]
    assert str(found).startswith("ALIGNED but for gradients of step 0 (not finite)  A ")


@pytest.mark.parametrize("task", TASKS)
def test_a_fault_behind_it(tmp_path: Path, task: str) -> None:
    found = probe.compare(train(tmp_path / "a.h5", task), train(tmp_path / "b.h5", task, lr=1.1e-2))
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (1, Phase.UPDATE, "")


def test_every_step_is_skipped(tmp_path: Path) -> None:
    files = [train(tmp_path / name, "statistics", backoff=0.5) for name in ("a.h5", "b.h5")]
    found = probe.compare(*files)
    assert found.verdict is Verdict.UNDECIDED
    assert any(text.endswith("NaN on both sides: what is computed from it cannot be judged") for text in found.doubts)


def overflowing(path: Path, *, is_updated: bool = True, loss: float = 1.0, forward: float = 1.0) -> Path:
    """Gradients that are NaN in the first of two steps, which updates nothing; or the loss, or what the model returns, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.capture(model, path):
        for number in range(2):
            model.zero_grad()
            y = model(torch.randn(4, 8) * (1.0 if number else forward))
            y.register_hook(lambda gradient, number=number: gradient * (1.0 if number else float("nan")))
            y.square().mean().backward()
            if number and is_updated:
                optimizer.step()
            probe.step(loss=1.0 if number else loss)
    return path


def test_only_gradients_overflow_by_their_scale(tmp_path: Path) -> None:
    def compared(**options: float) -> Comparison:
        return probe.compare(*(overflowing(tmp_path / f"{name}{options}.h5", **options) for name in "ab"))

    assert compared().verdict is Verdict.ALIGNED
    assert compared(loss=float("nan")).verdict is Verdict.UNDECIDED
    assert compared(forward=float("nan")).verdict is Verdict.UNDECIDED


def test_gradients_that_nothing_was_seen_to_skip(tmp_path: Path) -> None:
    """Without an optimizer no weight is updated in any step: that says nothing of loss scaling."""
    found = probe.compare(*(overflowing(tmp_path / name, is_updated=False) for name in ("a.h5", "b.h5")))
    assert found.verdict is Verdict.UNDECIDED
    assert any(text.endswith("NaN on both sides: what is computed from it cannot be judged") for text in found.doubts)


class Looking(torch.optim.SGD):
    """Changes nothing where a gradient is not finite."""

    def step(self, closure: None = None) -> None:
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        if all(parameter.grad.isfinite().all() for parameter in own):
            for parameter in own:
                parameter.data.add_(parameter.grad, alpha=-0.1)


def stepping(path: Path, what: str, *, task: str = "statistics", steps: int = 3, decay: float = 0.0) -> Path:
    """Gradients that are Inf or NaN in the second step: ``skip`` or ``take`` it, let the optimizer ``look``, or give it ``zeros``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    made = Looking if what == "look" else torch.optim.SGD
    optimizer = made(model.parameters(), lr=0.1, weight_decay=decay)
    with probe.capture(model, path, task=task):
        for number in range(steps):
            loss = model(torch.randn(4, 8)).square().mean()
            (loss * (float("inf") if number == 1 else 1.0)).backward()
            if what == "zeros":
                for parameter in model.parameters():
                    parameter.grad.nan_to_num_(0, 0, 0)
            if number != 1 or what != "skip":
                optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_one_side_alone_skips_the_step(tmp_path: Path, task: str, steps: int, turned: bool) -> None:
    files = [stepping(tmp_path / f"{what}.h5", what, task=task, steps=steps) for what in ("skip", "take")]
    first = probe.compare(*(files[::-1] if turned else files)).first_divergence
    assert first is not None
    assert (first.step, first.phase, first.kind, first.path) == (1, Phase.UPDATE, Kind.UPDATE, "")
    skips, takes = "BA" if turned else "AB"
    assert first.evidence == (
        f"the gradients of 4 of 4 weights are not finite on either side: {skips} leaves its weights as they were, {takes} updates "
        "4 of them all the same",
        f"4 weights are not finite in {takes} from here on, first weight of 0",
    )
    hint = f"a loss scaler (GradScaler) does, and in {takes} nothing did"
    assert first.hint == f"look at what skips steps whose gradients are not finite: {hint}"


def test_an_optimizer_that_looks_at_its_gradients_itself(tmp_path: Path) -> None:
    """Fused ones do: they step, and change nothing."""
    files = [stepping(tmp_path / f"{what}.h5", what) for what in ("look", "take")]
    with Reader(files[0]) as run:
        assert run.groups_of(1), "it was seen to step"
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (1, Phase.UPDATE, "")
    assert first.evidence[0].endswith("A leaves its weights as they were, B updates 4 of them all the same")
    assert probe.compare(files[0], stepping(tmp_path / "skip.h5", "skip")).verdict is Verdict.ALIGNED


def test_updates_by_zeros_in_the_place_of_what_is_not_finite(tmp_path: Path) -> None:
    found = probe.compare(*(stepping(tmp_path / f"{what}.h5", what, decay=0.1) for what in ("skip", "zeros")))
    first = found.first_divergence
    assert first is not None and (first.step, first.phase) == (1, Phase.UPDATE)
    assert len(first.evidence) == 1 and first.evidence[0].endswith("B updates 4 of them all the same")


@pytest.mark.parametrize("steps", [2, 3])
def test_both_sides_take_the_step(tmp_path: Path, steps: int) -> None:
    """Their weights are NaN then, in the last step too: nothing was skipped."""
    found = probe.compare(*(stepping(tmp_path / name, "take", steps=steps) for name in ("a.h5", "b.h5")))
    assert found.verdict is Verdict.UNDECIDED and found.left_out == ()
    assert any(text.startswith("step 1: ") and "NaN on both sides" in text for text in found.doubts)
