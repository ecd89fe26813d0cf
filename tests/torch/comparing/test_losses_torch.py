"""Losses: alignments that are summed, low temperatures, models that have learnt, where a wrong loss is placed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn import functional as F

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

# ---- A loss that sums over alignments rounds by its own size: CTC, as speech models are trained with.

FRAMES, BATCH, SYMBOLS, LENGTH = 200, 4, 50, 20


class Speech(nn.Module):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.head = nn.Linear(16, 64), nn.Linear(64, SYMBOLS)

    def forward(self, x):
        return self.head(self.encoder(x).relu())


class InParts(nn.Linear):
    def forward(self, x):
        pairs = zip(x.chunk(2, -1), self.weight.chunk(2, 1), strict=True)
        return sum(F.linear(*each) for each in pairs) + self.bias


def record(path, *, split=False, factor=1.0, named=True, seed=0):
    model = Speech()
    if split:
        model.head.__class__ = InParts
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with probe.capture(model, path):
        x = torch.randn(BATCH, FRAMES, 16, generator=generator)
        targets = torch.randint(1, SYMBOLS, (BATCH, LENGTH), generator=generator)
        lengths = torch.full((BATCH,), FRAMES), torch.full((BATCH,), LENGTH)
        loss = F.ctc_loss(model(x).log_softmax(-1).transpose(0, 1), targets, *lengths)
        (factor * loss).backward()
        optimizer.step()
        probe.step(loss=loss * 1.0 if named else loss.item())
    return path


@pytest.mark.parametrize("seed", range(3))
def test_its_rounding_is_no_fault(seed, tmp_path):
    a, b = record(tmp_path / "a.h5", seed=seed), record(tmp_path / "b.h5", split=True, seed=seed)
    assert Reader(a).listed("loss_functions") == ["CtcLoss"]
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def test_of_numbers_alone_nothing_tells_how_they_were_made(tmp_path):
    a, b = record(tmp_path / "a.h5", named=False), record(tmp_path / "b.h5", split=True, named=False)
    assert Reader(a).listed("loss_functions") == []
    assert probe.compare(a, b).verdict is Verdict.DIVERGED


def test_another_scale_of_it_is_a_fault(tmp_path):
    a, b = record(tmp_path / "a.h5"), record(tmp_path / "b.h5", split=True, factor=1.02)
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.phase is Phase.LOSS


def test_weights_and_sums_of_losses_stand_before_them(tmp_path):
    logits = torch.randn(3, 5, requires_grad=True)
    losses = (
        F.cross_entropy(logits, torch.tensor([0, 1, 2])),
        F.mse_loss(logits, torch.zeros(3, 5)),
        logits.abs().mean(),
    )
    model = nn.Linear(2, 2)
    with probe.capture(model, tmp_path / "a.h5"):
        model(torch.ones(1, 2)).sum().backward()
        probe.step(loss=0.3 * losses[0] + losses[1] / 2 + losses[2])
    assert Reader(tmp_path / "a.h5").listed("loss_functions") == ["NllLoss", "MseLoss"]


def test_part_of_a_batch_without_a_gradient_is_a_fault_also_where_losses_are_summed(tmp_path):
    files = []
    for name, kept in (("a", BATCH), ("b", BATCH - 1)):
        model = Speech()
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(BATCH, FRAMES, 16, generator=generator)
        targets = torch.randint(1, SYMBOLS, (BATCH, LENGTH), generator=generator)
        lengths = torch.full((BATCH,), FRAMES), torch.full((BATCH,), LENGTH)
        with probe.capture(model, tmp_path / f"{name}.h5"):
            logits = model(x)
            used = torch.cat([logits[:kept], logits[kept:].detach()])
            loss = F.ctc_loss(used.log_softmax(-1).transpose(0, 1), targets, *lengths, reduction="sum")
            loss.backward()
            probe.step(loss=loss)
        files.append(tmp_path / f"{name}.h5")
    first = probe.compare(*files).first_divergence
    assert first is not None and first.phase is Phase.LOSS


# ---- Losses of few rows and large logits, as contrastive ones behind a low temperature: rounding of the logits is much of such a loss.

ROWS = 4
TEMPERATURE = 0.07


class Contrast(nn.Module):
    """Tells a row's own key from a number of others; in two forms, which round otherwise."""

    def __init__(self, is_first: bool) -> None:
        super().__init__()
        self.encoder, self.is_first = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 8)), is_first
        self.register_buffer("others", functional.normalize(torch.randn(16, 8), dim=1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        u = self.encoder(x)
        with torch.no_grad():
            v = self.encoder(y)
        if self.is_first:
            u, v = functional.normalize(u, dim=1), functional.normalize(v, dim=1)
            return torch.cat([(u * v).sum(1, keepdim=True), u @ self.others.T], 1) / TEMPERATURE
        u, v = u / u.norm(dim=1, keepdim=True), v / v.norm(dim=1, keepdim=True)
        own = torch.einsum("nc,nc->n", u, v)[:, None]
        return torch.cat([own, torch.einsum("nc,mc->nm", u, self.others)], 1) / TEMPERATURE


def record_temperature(path: Path, is_first: bool, seed: int, spread: float, smoothing: float) -> Path:
    torch.manual_seed(seed)
    model = Contrast(is_first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with probe.capture(model, path):
        for step in range(2):
            x, noise = (torch.randn(ROWS, 24, generator=torch.Generator().manual_seed(at)) for at in (step, 100 + step))
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(x, x + spread * noise).float()
                loss = functional.cross_entropy(logits, torch.zeros(ROWS, dtype=torch.long), label_smoothing=smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
    return path


def compared(path: Path, seed: int, spread: float, smoothing: float = 0.0) -> Comparison:
    a = record_temperature(path / "a.h5", True, seed, spread, 0.0)
    return probe.compare(a, record_temperature(path / "b.h5", False, seed, spread, smoothing))


CASES = [(4, 0.5), (5, 0.1)]


@pytest.mark.parametrize(("seed", "spread"), CASES)
def test_rounding_of_large_logits_is_no_fault_of_the_loss(tmp_path: Path, seed: int, spread: float) -> None:
    found = compared(tmp_path, seed, spread)
    assert found.verdict is Verdict.ALIGNED, found


@pytest.mark.parametrize(("seed", "spread"), CASES)
def test_another_loss_is_found(tmp_path: Path, seed: int, spread: float) -> None:
    first = compared(tmp_path, seed, spread, smoothing=0.1).first_divergence
    assert first is not None and first.phase is Phase.LOSS
    assert first.evidence[0].startswith("the loss differs: ")


# ---- Models that have learnt: little of what they return is left in the loss, and rounding is a large part of that.

STEPS = 1500


class Split(torch.nn.Linear):
    """A linear layer that may add up in two halves."""

    halves = False

    def forward(self, x: Any) -> Any:
        if not self.halves:
            return super().forward(x)
        at = x.shape[-1] // 2
        y = x[..., :at] @ self.weight[:, :at].T + x[..., at:] @ self.weight[:, at:].T
        return y + self.bias.to(y.dtype)


def squared(z: Any, target: Any) -> Any:
    return ((z.float() - target) ** 2).mean()


def classes(z: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(z.float(), target.argmax(-1))


@pytest.fixture(scope="module", params=[squared, classes])
def learnt(request: pytest.FixtureRequest) -> tuple[Any, Any, Any, Callable[..., Any]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Split(32, 96), torch.nn.Tanh(), Split(96, 96), torch.nn.Tanh(), Split(96, 16))
    teacher = torch.nn.Sequential(torch.nn.Linear(32, 96), torch.nn.Tanh(), torch.nn.Linear(96, 16))
    x = torch.randn(256, 32)
    target = 3 * teacher(x).detach()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        request.param(model(x), target).backward()
        optimizer.step()
        schedule.step()
    return model, x, target, request.param


def record_converged(
    path: Path, learnt: tuple[Any, Any, Any, Callable[..., Any]], dtype: str, halves: bool, factor: float
) -> Path:
    model, x, target, loss_of = learnt
    model = copy.deepcopy(model)
    for module in model:
        module.halves = halves
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with probe.capture(model, path):
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "autocast"):
                z = model(x)
            loss = loss_of(z, target) * factor
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss.item())
    return path


@pytest.mark.parametrize("dtype", ["fp32", "autocast"])
def test_rounding_is_a_large_part_of_what_is_left(tmp_path: Path, learnt: Any, dtype: str) -> None:
    a = record_converged(tmp_path / "a.h5", learnt, dtype, halves=False, factor=1.0)
    b = record_converged(tmp_path / "b.h5", learnt, dtype, halves=True, factor=1.0)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def test_a_loss_that_is_scaled_is_named_all_the_same(tmp_path: Path, learnt: Any) -> None:
    a = record_converged(tmp_path / "a.h5", learnt, "fp32", halves=False, factor=1.0)
    b = record_converged(tmp_path / "b.h5", learnt, "fp32", halves=True, factor=1.1)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.LOSS)


# ---- Where a wrong loss is placed if the model itself was not called, or not recorded; outputs in other containers.


@dataclass
class Output:
    """Two of three have one shape."""

    logits: Tensor
    last: Tensor
    first: Tensor


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.fc(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.blocks, self.head = nn.Linear(8, 16), nn.ModuleList(Block() for _ in range(3)), nn.Linear(16, 5)
        self.returned: Callable[[Tensor, Tensor, Tensor], Any] = lambda logits, last, first: logits

    def forward(self, x: Tensor) -> Any:
        hidden, seen = self.inp(x), []
        for block in self.blocks:
            seen.append(hidden := block(hidden))
        return self.returned(self.head(hidden), seen[-1], seen[0])


def whole(model: Net, x: Tensor) -> Tensor:
    made = model(x)
    return made.logits if isinstance(made, Output) else made[0] if isinstance(made, tuple) else made


def parts(model: Net, x: Tensor) -> Tensor:
    """The program calls the modules itself."""
    hidden = model.inp(x)
    for block in model.blocks:
        hidden = block(hidden)
    return model.head(hidden)


def by_hand(model: Net, x: Tensor) -> Tensor:
    """The head is code of the program's own."""
    hidden = model.inp(x)
    for block in model.blocks:
        hidden = block(hidden)
    return hidden @ model.head.weight.T + model.head.bias


def record_places(
    path: Path, call: Callable[[Net, Tensor], Tensor], change: Callable[[Net], object] | None = None, times: float = 1.0,
    returned: Callable[..., Any] | None = None, gives_loss: bool = True, **options: Any,
) -> Path:  # fmt: skip
    torch.manual_seed(0)
    model = Net()
    model.returned = returned or model.returned
    if change is not None:
        change(model)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe.start(model, path, **options)
    loss = nn.functional.cross_entropy(call(model, x), torch.arange(4)) * times
    loss.backward()
    optimizer.step()
    probe.step(loss=loss) if gives_loss else probe.step()
    probe.stop()
    return path


def eps(model: Net) -> None:
    model.blocks[0].norm.eps = 1e-2


@pytest.mark.parametrize("gives_loss", [True, False])
@pytest.mark.parametrize(("a", "b"), [(parts, parts), (whole, parts), (by_hand, by_hand), (whole, by_hand)])
def test_a_loss_of_a_model_that_was_not_called_is_no_fault_of_its_first_module(
    a: Callable[..., Tensor], b: Callable[..., Tensor], gives_loss: bool, tmp_path: Path
) -> None:
    one = record_places(tmp_path / "a.h5", a, gives_loss=gives_loss)
    assert probe.compare(one, record_places(tmp_path / "b.h5", b, gives_loss=gives_loss)).verdict is Verdict.ALIGNED
    found = probe.compare(one, record_places(tmp_path / "c.h5", b, times=1.5, gives_loss=gives_loss)).first_divergence
    assert found is not None and found.path == "" and found.phase in (Phase.LOSS, Phase.GRADIENT)
    assert not any("what it is computed from" in text or "the model's outputs" in text for text in found.evidence)
    place = probe.compare(one, record_places(tmp_path / "d.h5", b, eps, gives_loss=gives_loss)).first_divergence
    assert place is not None and place.path == "blocks.0.norm"


@pytest.mark.parametrize("modules", [["inp"], ["blocks.0*"]])
def test_what_the_loss_is_made_of_was_not_recorded(modules: list[str], tmp_path: Path) -> None:
    def late(model: Net) -> None:
        model.blocks[1].norm.eps = 1e-2

    one = record_places(tmp_path / "a.h5", whole, modules=modules)
    assert probe.compare(one, record_places(tmp_path / "b.h5", whole, modules=modules)).verdict is Verdict.ALIGNED
    for number, (change, times) in enumerate([(None, 1.5), (late, 1.0)]):
        other = record_places(tmp_path / f"{number}.h5", whole, change, times, modules=modules)
        found = probe.compare(one, other)
        assert found.verdict is Verdict.UNDECIDED and found.first_divergence is None
        assert any("were not compared" in text for text in found.doubts)


@pytest.mark.parametrize("change", [None, eps])
def test_a_dataclass_and_a_tuple_of_outputs_are_compared(
    change: Callable[[Net], object] | None, tmp_path: Path
) -> None:
    a = record_places(tmp_path / "a.h5", whole, returned=Output)
    b = record_places(tmp_path / "b.h5", whole, change, returned=lambda *made: made)
    found = probe.compare(a, b)
    first = found.first_divergence
    assert (first.path if first is not None else None) == (None if change is None else "blocks.0.norm")
    pairs = [(slot.slot_a, slot.slot_b) for slot in found.slots if not slot.path_a and slot.role is Role.OUTPUT]
    assert pairs == [("logits", "0"), ("last", "1"), ("first", "2")]
