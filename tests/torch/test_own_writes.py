"""Weights that a program writes to by itself: averages of weights that nothing calls, steps by hand from gradients that nobody saw."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.answer import Comparison  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from probe.records import Phase, Role  # noqa: E402
from tests.torch import test_weights_within_steps as within  # noqa: E402
from tests.torch.test_weights_within_steps import WAYS, Attention, batch, blend, mlp  # noqa: E402

in_float64 = within.in_float64
Elsewhere = Callable[[], None]
LOOK = "look at what writes to this weight behind the optimizer's step: averaging (EMA, teachers), or an update by hand"
WRITTEN = "this weight is written to before a call uses it, otherwise than by an optimizer's update, and differs then"


class Keys(nn.Module):
    """An attention whose keys have a bias of two axes: of that shape there is no other weight."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.bias = nn.Parameter(torch.zeros(1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (layer(x) for layer in (self.attention.query, self.attention.key, self.attention.value))
        return torch.softmax(query @ (key + self.bias).T / 4, -1) @ value


def averaged(
    path: Path,
    decay: float = 0.9,
    later: float | None = None,
    *,
    way: str = "in place",
    model: Callable[[], nn.Module] = mlp,
    rule: Any = torch.optim.AdamW,
    when: str = "behind the update",
    is_called: bool = False,
    steps: int = 4,
    task: str = "statistics",
) -> Path:
    """A teacher that follows the model, from the second time on otherwise: it is recorded too, and the step calls it or not."""
    torch.manual_seed(0)
    trained = model()
    teacher = copy.deepcopy(trained).requires_grad_(False)
    optimizer = rule(trained.parameters(), lr=1e-3 if rule is torch.optim.AdamW else 0.1)

    def follow(now: str, number: int) -> None:
        share = 1 - (decay if later is None or not number else later)
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), trained.parameters(), strict=True):
                if now == when:
                    blend(mine, theirs, share, way)

    with probe.capture([trained, teacher], path, task=task):
        for number in range(steps):
            optimizer.zero_grad()
            if is_called:
                with torch.no_grad():
                    teacher(batch(7, 4, 16))
            loss = trained(batch(number, 16, 16)).square().mean()
            loss.backward()
            follow("before the update", number)
            optimizer.step()
            follow("behind the update", number)
            probe.step(loss=loss)
            follow("behind the step", number)
    return path


def by_hand(
    path: Path, lr: float = 0.1, *, model: Callable[[], nn.Module] = mlp, functional: bool = False, steps: int = 3
) -> Path:
    """Gradients come from torch.autograd.grad, and the program itself takes them off."""
    torch.manual_seed(0)
    trained = model()
    weights = dict(trained.named_parameters())
    with probe.capture(trained, path):
        for number in range(steps):
            x = batch(number, 16, 16)
            y = torch.func.functional_call(trained, weights, (x,)) if functional else trained(x)
            gradients = torch.autograd.grad(y.square().mean(), list(weights.values()))
            with torch.no_grad():
                for weight, gradient in zip(weights.values(), gradients, strict=True):
                    weight -= lr * gradient
            probe.step()
    return path


def by_optimizer(path: Path, lr: float = 0.1, *, model: Callable[[], nn.Module] = mlp, steps: int = 3) -> Path:
    torch.manual_seed(0)
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=lr)
    with probe.capture(trained, path):
        for number in range(steps):
            optimizer.zero_grad()
            trained(batch(number, 16, 16)).square().mean().backward()
            optimizer.step()
            probe.step()
    return path


def without_own_writes(path: Path) -> Path:
    """Make a recording one of a framework that does not tell what the program writes."""
    with h5py.File(path, "r+") as file:
        file.attrs["tells_writes"] = False
    return path


def first_of(found: Comparison) -> tuple[int, Phase, Role, str]:
    first = found.first_divergence
    assert first is not None, found
    return first.step, first.phase, first.role, first.path


def left(path: Path, module: str) -> list[tuple[int, str]]:
    """Return the weights of a module that steps end with records of."""
    return [(each.step, each.slot) for each in probe.open(path)[module].param if each.phase is Phase.UPDATE]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("model", [mlp, Attention, Keys])
def test_a_teacher_that_nothing_calls(
    tmp_path: Path, in_float64: Elsewhere, way: str, rule: Any, model: Callable[[], nn.Module]
) -> None:
    """Of an attention's keys the bias has a gradient that is rounding alone: so is what its average follows."""
    run = functools.partial(averaged, way=way, rule=rule, model=model)
    a = run(tmp_path / "a.h5")
    in_float64()
    found = probe.compare(a, run(tmp_path / "b.h5"))
    assert found.verdict is Verdict.ALIGNED, found


@pytest.mark.parametrize("way", WAYS)
def test_what_is_recorded_of_a_teacher(tmp_path: Path, way: str) -> None:
    run = averaged(tmp_path / "a.h5", way=way, steps=2)
    assert left(run, "1.0") == [(0, "weight"), (0, "bias"), (1, "weight"), (1, "bias")]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("way", WAYS)
def test_a_teacher_with_another_decay(tmp_path: Path, in_float64: Elsewhere, way: str, task: str) -> None:
    a = averaged(tmp_path / "a.h5", way=way, task=task)
    in_float64()
    found = probe.compare(a, averaged(tmp_path / "b.h5", 0.95, way=way, task=task))
    assert first_of(found) == (0, Phase.UPDATE, Role.DELTA, "1.0")
    assert {each.path for each in found.divergences} == {"1.0", "1.2"}
    first = found.divergences[0]
    assert first.evidence == ("B's update is 0.5 times as long as A's",) and first.hint == LOOK


def test_a_teacher_that_follows_before_the_update(tmp_path: Path) -> None:
    found = probe.compare(averaged(tmp_path / "a.h5"), averaged(tmp_path / "b.h5", when="before the update"))
    assert first_of(found) == (0, Phase.UPDATE, Role.DELTA, "1.0")


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_teacher_that_one_side_leaves_as_it_was(tmp_path: Path, side: str) -> None:
    files = [averaged(tmp_path / f"{name}.h5", when="" if name == side else "behind the update") for name in "AB"]
    found = probe.compare(*files)
    assert first_of(found) == (0, Phase.UPDATE, Role.DELTA, "1.0")
    first = found.divergences[0]
    assert first.evidence == (f"only {'B' if side == 'A' else 'A'} writes to this weight",)
    assert first.hint == (
        f"in {side} nothing had written to it at its probe.step(): is it averaged (EMA) or updated, and is probe.step() called behind that?"
    )


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_recording_that_does_not_tell_what_the_program_writes(tmp_path: Path, side: str) -> None:
    files = [averaged(tmp_path / f"{name}.h5", when="" if name == side else "behind the update") for name in "AB"]
    without_own_writes(files["AB".index(side)])
    found = probe.compare(*files)
    other = "B" if side == "A" else "A"
    assert found.verdict is Verdict.ALIGNED, found
    said = f"{other} writes to weights by itself (averages, updates by hand), which {side}'s recording does not tell: they are not compared"
    assert found.warnings.count(said) == 1


@pytest.mark.parametrize("others", ["behind the step", "behind the update"])
@pytest.mark.parametrize("model", [mlp, Attention])
def test_calls_tell_of_a_teacher_that_follows_behind_the_step_on_one_side(
    tmp_path: Path, in_float64: Elsewhere, others: str, model: Callable[[], nn.Module]
) -> None:
    run = functools.partial(averaged, is_called=True, model=model)
    whens = [others, "behind the step" if others == "behind the update" else "behind the update"]
    a = run(tmp_path / "a.h5", when=whens[0])
    in_float64()
    found = probe.compare(a, run(tmp_path / "b.h5", when=whens[1]))
    assert found.verdict is Verdict.ALIGNED, found
    alone = "A" if others == "behind the update" else "B"
    said = f"step 3 is the last, and {alone} alone writes to weights in it behind their calls: they are not compared; record another step"
    assert found.warnings.count(said) == 1, found.warnings
    first = probe.compare(a, run(tmp_path / "c.h5", 0.95, when=whens[1])).first_divergence
    assert first is not None and (first.step, first.phase, first.role) == (1, Phase.UPDATE, Role.PARAM)
    assert first.evidence == (WRITTEN, "what it is changed by is 0.5 times as long in B as in A")


def test_calls_tell_of_a_teacher_that_follows_otherwise_later(tmp_path: Path) -> None:
    """What was compared in the step before is no part of the change."""
    run = functools.partial(averaged, is_called=True)
    first = probe.compare(run(tmp_path / "a.h5"), run(tmp_path / "b.h5", later=0.95, when="behind the step"))
    assert first_of(first) == (2, Phase.UPDATE, Role.PARAM, "1.0")
    assert first.divergences[0].evidence == (WRITTEN, "what it is changed by is 0.5 times as long in B as in A")


def test_calls_tell_of_a_teacher_that_one_side_leaves_as_it_was(tmp_path: Path) -> None:
    run = functools.partial(averaged, is_called=True)
    found = probe.compare(run(tmp_path / "a.h5"), run(tmp_path / "b.h5", when=""))
    assert first_of(found) == (1, Phase.UPDATE, Role.PARAM, "1.0")
    assert found.divergences[0].evidence == (WRITTEN, "B does not change it")


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("model", [mlp, Attention])
def test_an_update_by_hand(
    tmp_path: Path, in_float64: Elsewhere, functional: bool, model: Callable[[], nn.Module]
) -> None:
    files = [by_optimizer(tmp_path / "a.h5", model=model), by_hand(tmp_path / "b.h5", model=model)]
    in_float64()
    other = by_hand(tmp_path / "c.h5", model=model, functional=functional)
    for each in files:
        found = probe.compare(each, other)
        assert found.verdict is Verdict.ALIGNED, found


@pytest.mark.parametrize("run", [by_optimizer, by_hand])
def test_an_update_by_hand_with_another_rate(tmp_path: Path, in_float64: Elsewhere, run: Callable[..., Path]) -> None:
    a = run(tmp_path / "a.h5")
    in_float64()
    found = probe.compare(a, by_hand(tmp_path / "b.h5", 0.11))
    assert first_of(found) == (0, Phase.UPDATE, Role.DELTA, "")
    assert found.divergences[0].evidence[:2] == (
        "the updates of 4 of 4 parameters differ",
        "all by the same factor: B is 1.1 times A",
    )


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_weights_that_a_program_replaces_are_not_said_to_stay(tmp_path: Path) -> None:
    """A functional program keeps its weights in a table of its own: what becomes of them is not recorded."""
    torch.manual_seed(0)
    model = mlp()
    weights = {name: weight.detach().clone().requires_grad_() for name, weight in model.named_parameters()}
    with probe.capture(model, tmp_path / "b.h5"):
        for number in range(3):
            loss = torch.func.functional_call(model, weights, (batch(number, 16, 16),)).square().mean()
            gradients = torch.autograd.grad(loss, list(weights.values()))
            pairs = zip(weights.items(), gradients, strict=True)
            weights = {name: (weight - 0.1 * grad).detach().requires_grad_() for (name, weight), grad in pairs}
            probe.step()
    found = probe.compare(by_optimizer(tmp_path / "a.h5"), tmp_path / "b.h5")
    assert found.verdict is Verdict.UNDECIDED, found
    said = (
        "B's weights were replaced after probe.start(), and what became of them is not recorded: no update was compared"
    )
    assert found.warnings.count(said) == 1


@pytest.mark.parametrize("task", ["structure", "norms", "statistics"])
def test_plain_training_has_no_more_records(tmp_path: Path, task: str) -> None:
    """A weight that nothing writes to is not recorded again; a frozen one is looked at by a few elements."""
    torch.manual_seed(0)
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with probe.capture(model, tmp_path / "a.h5", task=task):
        for number in range(3):
            optimizer.zero_grad()
            model(batch(number, 16, 16)).square().mean().backward()
            optimizer.step()
            probe.step()
    assert left(tmp_path / "a.h5", "0") == []
    count = 0 if task == "norms" else 3
    assert len(left(tmp_path / "a.h5", "2")) in (2 * count, 6)


def test_what_goes_wrong_does_not_reach_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.adapters.torch.adapter import TorchAdapter

    def broken(self: TorchAdapter, tensor: Any) -> bytes:
        raise ValueError("no sample")

    monkeypatch.setattr(TorchAdapter, "sample_of", broken)
    with pytest.warns(ProbeWarning, match="not recorded because of an error inside probe: ValueError"):
        averaged(tmp_path / "a.h5", steps=1)
