"""Weights that change in the middle of a step, or to which a program writes by itself: optimizers in turn, closures, averages, perturbations."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict
from probe.errors import ProbeWarning
from probe.records import Phase, Role

# ---- Weights that change in the middle of a step: two optimizers in turn, closures, averages of weights, perturbed weights.

Training = tuple[Any, Callable[[int], Tensor]]


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Another kernel: linear layers that sum in float64."""
    plain = functional.linear

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return plain(x.double(), weight.double(), None if bias is None else bias.double()).to(x.dtype)

    return lambda: monkeypatch.setattr(functional, "linear", linear)


def batch(number: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number))


def mlp(inner: int = 32, out: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, inner), nn.LeakyReLU(0.2), nn.Linear(inner, out))


def gan(lr: float = 1e-3, lr_of_generator: float = 1e-3, fused: bool = False) -> Training:
    """A Wasserstein GAN: the gradient of the last bias is rounding alone, and Adam makes full steps of it."""
    generator, critic = mlp(), nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    of_critic = torch.optim.Adam(critic.parameters(), lr=lr, fused=fused)
    of_generator = torch.optim.Adam(generator.parameters(), lr=lr_of_generator)

    def step(number: int) -> Tensor:
        of_critic.zero_grad()
        fake = generator(batch(number, 16, 16))
        loss = critic(fake.detach()).mean() - critic(batch(number + 50, 16, 8)).mean()
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake).mean()).backward()
        of_generator.step()
        return loss

    return [generator, critic], step


def labelled_gan(label: float = 1.0, as_one: bool = False) -> Training:
    """The discriminator's turn, with labels, then the generator's; as two models, or as the parts of one that is never called."""
    both = nn.Sequential(mlp(out=16), mlp(out=1))
    generator, judge = both
    of_judge, of_generator = (torch.optim.Adam(part.parameters(), lr=1e-2) for part in (judge, generator))
    score = functional.binary_cross_entropy_with_logits

    def step(number: int) -> Tensor:
        of_judge.zero_grad()
        fake = generator(batch(number, 16, 16))
        real = judge(batch(number + 50, 16, 16))
        loss = score(real, torch.full_like(real, label)) + score(judge(fake.detach()), torch.zeros(16, 1))
        loss.backward()
        of_judge.step()
        of_generator.zero_grad()
        score(judge(fake), torch.ones(16, 1)).backward()
        of_generator.step()
        return loss

    return both if as_one else [generator, judge], step


class Attention(nn.Module):
    """The gradient of its keys' bias is rounding alone, and 1.0 of it differs."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        nn.init.zeros_(self.key.bias)

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(self.query(x) @ self.key(x).T / 4, -1) @ self.value(x)


def blend(mine: Tensor, theirs: Tensor, share: float, way: str) -> None:
    """Move a weight towards another one, which is seen or not."""
    if way == "in place":
        mine.lerp_(theirs, share)
    elif way == "data in place":
        mine.data.mul_(1 - share).add_(theirs.data, alpha=share)
    else:
        mine.data = mine.data * (1 - share) + theirs.data * share


class Momentum(nn.Module):
    """An encoder of keys that follows the one of queries, inside the forward pass."""

    def __init__(self, momentum: float, encoder: Callable[[], nn.Module], every: int, way: str) -> None:
        super().__init__()
        self.way = way
        self.queries, self.momentum, self.every, self.calls = encoder(), momentum, every, 0
        self.keys = copy.deepcopy(self.queries).requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            if self.calls % self.every == 0:
                for mine, theirs in zip(self.keys.parameters(), self.queries.parameters(), strict=True):
                    blend(mine, theirs, 1 - self.momentum, self.way)
            keys = self.keys(y)
        self.calls += 1
        return functional.cross_entropy(self.queries(x) @ keys.T, torch.arange(len(x)))


def momentum(
    value: float = 0.9,
    encoder: Callable[[], nn.Module] = mlp,
    every: int = 1,
    rule: Any = torch.optim.AdamW,
    lr: float = 1e-3,
    way: str = "in place",
) -> Training:
    model = Momentum(value, encoder, every, way)
    optimizer = rule(model.queries.parameters(), lr=lr)

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        loss = model(batch(number, 16, 16), batch(number + 50, 16, 16))
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def perturbed(rho: float = 0.05, encoder: Callable[[], nn.Module] = Attention) -> Training:
    """Sharpness-aware: the gradient is that of weights which were moved along it, and moved back."""
    model = encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> Tensor:
        x = batch(number, 16, 16)
        loss = model(x).square().mean()
        loss.backward()
        moves = [parameter.grad * rho for parameter in model.parameters()]
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return model, step


def swapped(decay: float = 0.9, are_used: bool = True) -> Training:
    """Behind its step the optimizer's weights make room for their averages, for an evaluation."""
    model = mlp(64, 16)
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> Tensor:
        loss = model(batch(number, 16, 16)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            kept = [parameter.detach().clone() for parameter in model.parameters()]
            for parameter, average in zip(model.parameters(), averages, strict=True):
                average.lerp_(parameter, 1 - decay)
                parameter.copy_(average if are_used else parameter)
            model(batch(7, 4, 16))
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.copy_(value)
        return loss

    return model, step


attentive = functools.partial(momentum, encoder=Attention)
seldom = functools.partial(attentive, every=2)


def clamped() -> Training:
    """Of each module the weight alone is written to before its call."""
    model = Attention()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> Tensor:
        with torch.no_grad():
            for weight in (parameter for parameter in model.parameters() if parameter.ndim > 1):
                weight.clamp_(-0.2, 0.2)
        optimizer.zero_grad()
        loss = model(batch(number, 16, 16)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def averages(decay: float = 0.9, way: str = "in place") -> Training:
    """The average of the weights is a model of its own, updated and evaluated between the steps."""
    model = mlp()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        loss = model(batch(number, 16, 16)).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
                blend(mine, theirs, 1 - decay, way)
            average(batch(7, 4, 16))
        return loss

    return [model, average], step


def closures(lr: float = 0.1) -> Training:
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=lr, max_iter=3)

    def step(number: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (model(batch(number, 16, 16)) - 1).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)

    return model, step


def record(path: Path, training: Callable[..., Training], task: str = "statistics", **options: Any) -> Path:
    torch.manual_seed(0)
    models, step = training(**options)
    with probe.capture(models, path, task=task):
        for number in range(4):
            probe.step(loss=step(number))
    return path


def compared(
    tmp_path: Path, training: Callable[..., Training], otherwise: Callable[[], None], **options: Any
) -> Comparison:
    a = record(tmp_path / "a.h5", training)
    otherwise()
    return probe.compare(a, record(tmp_path / "b.h5", training, **options))


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")  # a closure's gradients
@pytest.mark.parametrize(
    "training", [gan, labelled_gan, momentum, attentive, seldom, averages, clamped, closures, perturbed, swapped]
)
def test_rounding_is_no_divergence(
    tmp_path: Path, in_float64: Callable[[], None], training: Callable[..., Training]
) -> None:
    assert compared(tmp_path, training, in_float64).verdict is Verdict.ALIGNED


@pytest.mark.parametrize("as_one", [False, True])
def test_labels_of_the_first_of_two_turns(tmp_path: Path, in_float64: Callable[[], None], as_one: bool) -> None:
    """What the model returns behind the first update, with wrong weights, is no source of the gradients before it."""
    training = functools.partial(labelled_gan, as_one=as_one)
    first = compared(tmp_path, training, in_float64, label=0.9).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.LOSS, "")
    assert first.evidence[0] == "the gradient of 1's output 0 differs"


@pytest.mark.parametrize("fused", [False, True])
def test_the_first_of_two_optimizers(tmp_path: Path, in_float64: Callable[[], None], fused: bool) -> None:
    found = compared(tmp_path, gan, in_float64, lr=1.1e-3, fused=fused)
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.role) == (0, Phase.UPDATE, Role.DELTA), found
    assert first.path.startswith("1") and first.hint == "the settings differ: lr 0.001 against 0.0011 (group 0)"


def test_the_second_of_two_optimizers(tmp_path: Path, in_float64: Callable[[], None]) -> None:
    first = compared(tmp_path, gan, in_float64, lr_of_generator=1.1e-3).first_divergence
    assert first is not None and (first.step, first.phase, first.role) == (0, Phase.UPDATE, Role.DELTA)
    assert first.path.startswith("0")


WAYS = ["in place", "data in place", "data"]


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("training", [momentum, averages])
def test_rounding_of_weights_that_are_written_through_data(
    tmp_path: Path, in_float64: Callable[[], None], training: Callable[..., Training], way: str
) -> None:
    assert compared(tmp_path, functools.partial(training, way=way), in_float64).verdict is Verdict.ALIGNED


@pytest.mark.parametrize("way", WAYS)
def test_another_momentum(tmp_path: Path, in_float64: Callable[[], None], way: str) -> None:
    training = functools.partial(momentum, way=way)
    first = compared(tmp_path, training, in_float64, value=0.95).first_divergence
    assert first is not None and (first.step, first.phase, first.role, first.path) == (
        1,
        Phase.UPDATE,
        Role.PARAM,
        "keys.0",
    )
    assert (
        first.evidence[0]
        == "this weight is written to before a call uses it, otherwise than by an optimizer's update, and differs then"
    )
    assert first.evidence[1] == "what it is changed by is 0.5 times as long in B as in A"
    assert "momentum encoders" in first.hint


@pytest.mark.parametrize("value", [0.0, 0.99])
@pytest.mark.parametrize(("rule", "lr"), [(torch.optim.AdamW, 1e-3), (torch.optim.SGD, 0.1)])
def test_another_momentum_beside_a_gradient_that_is_rounding(
    tmp_path: Path, in_float64: Callable[[], None], value: float, rule: Any, lr: float
) -> None:
    training = functools.partial(attentive, rule=rule, lr=lr)
    first = compared(tmp_path, training, in_float64, value=value).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (1, Phase.UPDATE, "keys.query")


def test_another_momentum_of_weights_that_were_not_written_to_in_the_step_before(
    tmp_path: Path, in_float64: Callable[[], None]
) -> None:
    first = compared(tmp_path, seldom, in_float64, value=0.95).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (2, Phase.UPDATE, "keys.query")
    assert first.evidence[1] == "what it is changed by is 0.5 times as long in B as in A"


def test_an_encoder_that_follows_on_one_side_only(tmp_path: Path, in_float64: Callable[[], None]) -> None:
    first = compared(tmp_path, momentum, in_float64, every=1000).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (1, Phase.UPDATE, "keys.0")
    assert first.evidence[1] == "B does not change it"


@pytest.mark.parametrize(("rho", "text"), [
    (0.02, "what it is changed by is 0.4 times as long in B as in A"), (0.0, "B does not change it"),
])  # fmt: skip
def test_other_perturbations_of_weights_that_an_optimizer_updates_too(
    tmp_path: Path, in_float64: Callable[[], None], rho: float, text: str
) -> None:
    training = functools.partial(perturbed, encoder=mlp)
    first = compared(tmp_path, training, in_float64, rho=rho).first_divergence
    assert first is not None and (first.step, first.phase, first.role, first.path) == (0, Phase.UPDATE, Role.PARAM, "0")
    assert first.evidence[1] == text


@pytest.mark.parametrize(("options", "text"), [
    ({"decay": 0.5}, "what it is changed by is 0.556 times as long in B as in A"), ({"are_used": False}, "B does not change it"),
])  # fmt: skip
def test_other_averages_behind_an_update(
    tmp_path: Path, in_float64: Callable[[], None], options: dict[str, Any], text: str
) -> None:
    """Of what the weights are changed by, the optimizer's update is no part."""
    first = compared(tmp_path, swapped, in_float64, **options).first_divergence
    assert first is not None and (first.step, first.phase, first.role, first.path) == (0, Phase.UPDATE, Role.PARAM, "0")
    assert first.evidence[1] == text


@pytest.mark.parametrize("way", WAYS)
def test_averages_that_one_side_does_not_update(tmp_path: Path, in_float64: Callable[[], None], way: str) -> None:
    first = compared(tmp_path, functools.partial(averages, way=way), in_float64, decay=1.0).first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (0, Phase.UPDATE, "1.0")
    assert first.evidence[1] == "B does not change it"


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_the_settings_of_an_optimizer_with_a_closure(tmp_path: Path, in_float64: Callable[[], None]) -> None:
    first = compared(tmp_path, closures, in_float64, lr=0.11).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.UPDATE)


def test_weights_are_recorded_as_a_call_finds_them(tmp_path: Path) -> None:
    run = probe.open(record(tmp_path / "a.h5", gan, "tensor"))
    begun, found, left = (
        {each.slot: each.values() for each in run["1.0"].param if (each.step, each.phase) == (0, phase)}
        for phase in (Phase.INIT, Phase.FORWARD, Phase.UPDATE)
    )
    assert sorted(found) == ["bias", "weight"]
    assert (found["weight"] == left["weight"]).all() and (found["weight"] != begun["weight"]).any()
    assert not any(each.phase is Phase.FORWARD for each in run["0.0"].param)


# ---- Weights that a program writes to by itself: averages of weights that nothing calls, steps by hand from gradients that nobody saw.

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
    path: Path,
    lr: float = 0.1,
    *,
    model: Callable[[], nn.Module] = mlp,
    functional: bool = False,
    steps: int = 3,
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
    assert first_of(found)[:3] == (0, Phase.UPDATE, Role.DELTA)
    assert found.divergences[0].path in ("1.0", "1.2")
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
    assert first.evidence == (f"{side} does not change this parameter at all",) and first.hint == LOOK


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
