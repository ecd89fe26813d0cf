"""Updates made of the same bits leave only rounding; optimizers' counts of steps; what becomes of an optimizer behind the last step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402
from probe.records import Phase, Role  # noqa: E402
from probe.store.reading.reader import Reader  # noqa: E402

Change = Callable[[nn.Module, torch.optim.Optimizer], object]
TASKS = ["statistics", "tensor"]


class Scaled(nn.Module):
    """Has a parameter without axes: its moments are no counts of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x))) * self.scale


def recorded(
    path: Path, before: Change | None = None, *, behind: Change | None = None, factor: float = 1.0, steps: int = 1,
    optimizer: str = "AdamW", settings: dict[str, Any] | None = None, **options: Any,
) -> Path:  # fmt: skip
    """Record a training in which an optimizer's states are changed before the first step, or something behind the last one."""
    torch.manual_seed(0)
    model = Scaled()
    chosen = getattr(torch.optim, optimizer)(model.parameters(), **{"lr": 1e-2, **(settings or {})})
    if before is not None:
        before(model, chosen)
    with probe.capture(model, path, **options):
        for step in range(steps):
            x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
            loss = factor * model(x).pow(2).mean()
            loss.backward()
            chosen.step()
            chosen.zero_grad()
            probe.step(loss=loss)
        if behind is not None:
            behind(model, chosen)
    return path


def compared(folder: Path, a: dict[str, Any], b: dict[str, Any]) -> Comparison:
    return probe.compare(recorded(folder / "a.h5", **a), recorded(folder / "b.h5", **b))


def warm(count: int, which: int | None = None) -> Change:
    """Return what gives an optimizer moments of many steps, and a count of them; another one to a single parameter."""

    def change(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.manual_seed(1)
        for number, p in enumerate(model.parameters()):
            steps = count if which in (None, number) else 1000
            optimizer.state[p] = {
                "step": torch.tensor(float(steps)), "exp_avg": 1e-3 * torch.randn_like(p), "exp_avg_sq": 1e-6 * torch.rand_like(p),
            }  # fmt: skip

    return change


@pytest.mark.parametrize("task", TASKS)
def test_a_count_of_steps_that_differs_by_one(tmp_path: Path, task: str) -> None:
    found = compared(tmp_path, {"before": warm(1000), "task": task}, {"before": warm(1001), "task": task})
    first = found.first_divergence
    assert first is not None and (first.phase, first.role, first.path) == (Phase.UPDATE, Role.STATE, "")
    assert "the first of them: the optimizer's count of steps is 1001 in A and 1002 in B" in first.evidence


class WithPlainCount(torch.optim.AdamW):
    """Keeps its count of steps as a plain number, as optimizers of other packages do."""

    def step(self, closure: Callable[[], float] | None = None) -> None:
        for state in self.state.values():
            state["step"] = torch.tensor(float(state["step"]))
        super().step(closure)
        for state in self.state.values():
            state["step"] = int(state["step"])


@pytest.mark.parametrize("extra", [0, 1])
def test_a_count_of_steps_that_is_a_plain_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: int) -> None:
    monkeypatch.setattr(torch.optim, "WithPlainCount", WithPlainCount, raising=False)
    found = compared(tmp_path, {"before": warm(1000)}, {"before": warm(1000 + extra), "optimizer": "WithPlainCount"})
    assert (found.verdict is Verdict.ALIGNED) is not bool(extra)
    assert not any("step" in text for text in found.warnings)
    assert not extra or "the optimizer's count of steps is 1001 in A and 1002 in B" in " ".join(
        found.divergences[0].evidence
    )


def test_a_count_of_steps_of_one_parameter(tmp_path: Path) -> None:
    found = compared(tmp_path, {"before": warm(1000)}, {"before": warm(1001, which=3)})
    first = found.first_divergence
    assert first is not None and (first.role, first.path, first.a[0].slot) == (Role.STATE, "last", "weight.step")


def test_a_bias_correction_that_differs_where_counts_agree(tmp_path: Path) -> None:
    """The count is put right again behind the update: the update alone shows that another one was used."""

    def corrected(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        warm(1001)(model, optimizer)

        def put_right(used: torch.optim.Optimizer, *_: object) -> None:
            for state in used.state.values():
                state["step"] -= 1

        optimizer.register_step_post_hook(put_right)

    found = compared(tmp_path, {"before": warm(1000)}, {"before": corrected})
    first = found.first_divergence
    assert first is not None and (first.phase, first.role) == (Phase.UPDATE, Role.DELTA)
    text = "gradient, states and parameter are bit-equal, the update differs by more than rounding"
    assert any(text in line for line in first.evidence), first.evidence


SAME = [("AdamW", {"foreach": True}), ("AdamW", {"fused": True}), ("Adam", {"fused": True, "weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "fused": True}), ("NAdam", {"foreach": True}), ("RMSprop", {"foreach": True}),
        ("Adagrad", {"fused": True})]  # fmt: skip


KERNELS = [(*each, torch.float32) for each in SAME] + [(*each, torch.bfloat16) for each in SAME[:3]]


@pytest.mark.parametrize(("optimizer", "how", "dtype"), KERNELS, ids=str)
def test_other_kernels_of_one_optimizer_are_rounding(
    tmp_path: Path, optimizer: str, how: dict[str, Any], dtype: torch.dtype
) -> None:
    common = {key: value for key, value in how.items() if key not in ("foreach", "fused")}
    side = {"before": _of_inputs(dtype), "optimizer": optimizer, "steps": 3}
    plain, other = {**side, "settings": {"foreach": False, **common}}, {**side, "settings": how}
    found = compared(tmp_path, plain, other)
    assert found.verdict is Verdict.ALIGNED, found


def _of_inputs(dtype: torch.dtype) -> Change:
    def change(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model.to(dtype)
        model.register_forward_pre_hook(lambda _, args: tuple(each.to(dtype) for each in args))

    return change


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("factor", [1.0, 30.0])
@pytest.mark.parametrize("number", range(5))
def test_a_second_moment_that_began_at_another_number(tmp_path: Path, task: str, factor: float, number: int) -> None:
    def begun_at(value: float) -> Change:
        def change(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            for at, p in enumerate(model.parameters()):
                second = torch.full_like(p, value if at == number else 0.0)
                optimizer.state[p] = {
                    "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": second,
                }  # fmt: skip

        return change

    sides = [{"before": begun_at(value), "task": task, "factor": factor} for value in (0.0, 1e-8)]
    found = compared(tmp_path, *sides)
    size = next(p for at, p in enumerate(Scaled().parameters()) if at == number)
    if found.verdict is Verdict.ALIGNED:  # of a gradient so large that float32 loses it
        state = [
            slot for slot in found.slots if slot.slot_a.endswith("exp_avg_sq") and slot.shape_a == tuple(size.shape)
        ]
        assert max(slot.metrics.rel_l2 for slot in state) < 5e-7
        return
    first = found.first_divergence
    assert (
        first is not None
        and first.phase is Phase.UPDATE
        and first.path == ("", "first", "first", "last", "last")[number]
    )


def test_states_without_axes_are_recorded(tmp_path: Path) -> None:
    with Reader(recorded(tmp_path / "a.h5", steps=2)) as run:
        states = {run.slots[row["slot"]]: row for row in run.records if row["role"] == Role.STATE}
        assert {"scale.step", "scale.exp_avg", "scale.exp_avg_sq", "weight.step"} <= states.keys()
        assert states["weight.step"]["mean"] == 2.0 and states["weight.step"]["dtype"] == b"float32"


def _rate(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 9.0


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].mul_(3)


def _loaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


BEHIND = {
    "lr is 0.01 in A and 9.0 in B": _rate,
    "B's program wrote to 5 states of its optimizer, first scale.exp_avg": _moments,
}


@pytest.mark.parametrize("text", BEHIND)
def test_what_changes_behind_the_last_step_is_said(tmp_path: Path, text: str) -> None:
    found = compared(tmp_path, {"steps": 2}, {"steps": 2, "behind": BEHIND[text]})
    assert found.verdict is Verdict.ALIGNED
    (note,) = found.warnings
    assert note == f"behind the last step, {text}: no step that was recorded shows what that does"
    again = probe.compare(recorded(tmp_path / "c.h5", steps=2, behind=BEHIND[text]), tmp_path / "b.h5")
    assert again.warnings == (), "both did"


def test_a_schedule_and_a_checkpoint_say_nothing(tmp_path: Path) -> None:
    def scheduled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.optim.lr_scheduler.StepLR(optimizer, 1).step()

    assert compared(tmp_path, {"behind": scheduled}, {"behind": scheduled}).warnings == ()
    found = probe.compare(recorded(tmp_path / "c.h5"), recorded(tmp_path / "d.h5", behind=_loaded))
    assert found.verdict is Verdict.ALIGNED and not found.warnings and not found.left_out


def test_what_steps_that_were_not_recorded_do_is_no_change_behind_the_last_one(tmp_path: Path) -> None:
    files = [recorded_first(tmp_path / f"{name}.h5", count) for name, count in (("a", 2), ("b", 5))]
    assert probe.compare(*files).warnings == ()


def recorded_first(path: Path, count: int) -> Path:
    """Record the first of some steps."""
    torch.manual_seed(0)
    model = Scaled()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with probe.capture(model, path, steps=[0]):
        for step in range(count):
            loss = model(torch.randn(8, 16, generator=torch.Generator().manual_seed(step))).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
            optimizer.param_groups[0]["lr"] *= 0.9
    return path
