"""Mixed precision by hand, as Megatron's optimizers do it: copies in float32 are trained, and copied back into the weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.adapters.torch.adapter import TorchAdapter  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase, Role  # noqa: E402
from probe.store.reading.reader import Reader  # noqa: E402

WIDTH, STEPS = 32, 3
NOTE = (
    "A's optimizer trains copies of its weights in a wider dtype (master weights), B's does not: small updates are rounded away "
    "there"
)


def model_in(dtype: Any) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)).to(dtype)


def train(path: Path, model: Any, optimizer: Any, before: Callable[[], None], after: Callable[[], None]) -> Path:
    probe.start(model, path)
    for number in range(STEPS):
        torch.manual_seed(100 + number)
        dtype = next(model.parameters()).dtype
        loss = model(torch.randn(64, 16, dtype=dtype)).float().square().mean()
        loss.backward()
        before()
        optimizer.step()
        after()
        model.zero_grad()
        optimizer.zero_grad()
        probe.step(loss=loss)
    probe.stop()
    return path


def with_masters(path: Path, lr: float = 1e-2, main_grad: bool = False, others: int = 0) -> Path:
    """Train copies; with ``main_grad``, gradients are added up in float32 where they do not stand at the parameter."""
    model = model_in(torch.bfloat16)
    masters = [parameter.detach().clone().float() for parameter in model.parameters()]
    unrelated = [torch.zeros(WIDTH, WIDTH, requires_grad=True) for _ in range(others)]
    if main_grad:
        for parameter in model.parameters():
            parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
            parameter.register_post_accumulate_grad_hook(_taken_away)

    def before() -> None:
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = (parameter.main_grad if main_grad else parameter.grad).float().clone()

    @torch.no_grad()
    def after() -> None:
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.copy_(master)
            if main_grad:
                parameter.main_grad.zero_()

    return train(path, model, torch.optim.AdamW([*unrelated, *masters], lr=lr), before, after)


def _taken_away(parameter: Any) -> None:
    parameter.main_grad += parameter.grad
    parameter.grad = None


def plain(path: Path, dtype: Any, lr: float = 1e-2) -> Path:
    model = model_in(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    return train(path, model, optimizer, lambda: None, lambda: None)


def roles(path: Path) -> dict[tuple[Phase, Role], int]:
    with Reader(path) as reader:
        rows = reader.of_step("records", 1)
        slots = [reader.slots[index] for index in rows["slot"]]
    found: dict[tuple[Phase, Role], int] = {}
    for phase, role, slot in zip(rows["phase"], rows["role"], slots, strict=True):
        if Role(role) is not Role.STATE or slot.endswith(".master_weight"):
            found[Phase(phase), Role(role)] = found.get((Phase(phase), Role(role)), 0) + 1
    return found


@pytest.mark.parametrize("main_grad", [False, True])
def test_what_the_optimizer_does_to_copies_is_recorded_as_done_to_the_weights(tmp_path: Path, main_grad: bool) -> None:
    found = roles(with_masters(tmp_path / "a.h5", main_grad=main_grad))
    for key in (
        (Phase.GRADIENT, Role.PARAM_GRAD), (Phase.UPDATE, Role.PARAM_GRAD), (Phase.UPDATE, Role.DELTA),
        (Phase.UPDATE, Role.PARAM), (Phase.UPDATE, Role.STATE),
    ):  # fmt: skip
        assert found.get(key) == 6, key


@pytest.mark.parametrize("main_grad", [False, True])
def test_a_learning_rate_is_named(tmp_path: Path, main_grad: bool) -> None:
    files = [with_masters(tmp_path / f"{lr}.h5", lr=lr, main_grad=main_grad) for lr in (1e-2, 1.2e-2)]
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.UPDATE)
    assert first.hint == "the settings differ: lr 0.01 against 0.012 (group 0)"


def test_two_ways_to_write_it_are_aligned(tmp_path: Path) -> None:
    found = probe.compare(with_masters(tmp_path / "a.h5"), with_masters(tmp_path / "b.h5", main_grad=True, others=2))
    assert found.verdict is Verdict.ALIGNED and not any("master" in text for text in found.warnings), found.warnings


def test_one_side_alone_has_copies(tmp_path: Path) -> None:
    found = probe.compare(with_masters(tmp_path / "a.h5"), plain(tmp_path / "b.h5", torch.bfloat16))
    assert NOTE in found.warnings and found.verdict is Verdict.ALIGNED


def test_copies_against_a_model_that_is_float32_itself(tmp_path: Path) -> None:
    found = probe.compare(with_masters(tmp_path / "a.h5"), plain(tmp_path / "b.h5", torch.float32, lr=3e-2))
    first = found.first_divergence
    assert first is not None and first.phase is Phase.UPDATE and "lr 0.01 against 0.03" in first.hint


def test_what_cannot_be_compared_is_no_copy_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> bool:
        raise RuntimeError("no values")

    monkeypatch.setattr(TorchAdapter, "is_wider_copy", fails)
    found = roles(with_masters(tmp_path / "a.h5"))
    assert found[Phase.GRADIENT, Role.PARAM_GRAD] == 6 and found[Phase.UPDATE, Role.PARAM] == 6
    assert (Phase.UPDATE, Role.STATE) not in found


def test_copies_that_are_not_copied_back(tmp_path: Path) -> None:
    model = model_in(torch.bfloat16)
    masters = [parameter.detach().clone().float() for parameter in model.parameters()]

    def before() -> None:
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()

    b = train(tmp_path / "b.h5", model, torch.optim.AdamW(masters, lr=1e-2), before, lambda: None)
    first = probe.compare(with_masters(tmp_path / "a.h5"), b).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.UPDATE)
    assert first.evidence[0].startswith("B's weights stay as they were in step 0, whatever the optimizer does: ")
