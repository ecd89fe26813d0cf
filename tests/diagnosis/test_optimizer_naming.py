"""The hyper-parameter by which two optimizers differ is named by the numbers: no settings are needed, and none are believed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict
from probe.diagnosis.optimizer import naming
from probe.records import Phase
from tests import fusing
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import batch, gpt, loss_of, module, plain_step
from tests.verdict.planted import TASKS, Model, Recorder


class Own(nn.Optimizer):
    """An optimizer of one's own: what it does stands in no setting, and its states have other names."""

    rule: dict[str, Any] = {}

    def __init__(self, parameters: Any, **rule: Any) -> None:
        super().__init__(parameters)
        self.rule = {"rate": 1e-3, "b1": 0.9, "b2": 0.95, "eps": 1e-8, "decay": 0.1, "l2": 0.0, "corrects": True,
                     "inside": False, "sign": 1.0, **rule}  # fmt: skip

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        r = self.rule
        state["count"] = count = state.get("count", 0) + 1
        g = r["sign"] * g + np.float32(r["l2"]) * p
        m = state.setdefault("m", Tensor(np.zeros_like(p))).data
        q = state.setdefault("q", Tensor(np.zeros_like(p))).data
        m[...] = r["b1"] * m + (1 - r["b1"]) * g
        q[...] = r["b2"] * q + (1 - r["b2"]) * g * g
        first, second = (1 - r["b1"] ** count, 1 - r["b2"] ** count) if r["corrects"] else (1.0, 1.0)
        below = np.sqrt(q / second + r["eps"]) if r["inside"] else np.sqrt(q / second) + r["eps"]
        p -= (r["rate"] * (m / first / below + r["decay"] * p)).astype(p.dtype)


class OwnMomentum(nn.Optimizer):
    """The same for gradient descent."""

    def __init__(self, parameters: Any, **rule: Any) -> None:
        super().__init__(parameters)
        self.rule = {"rate": 0.05, "momentum": 0.9, "dampening": 0.0, "l2": 0.01, "decay": 0.0, "ahead": False, **rule}

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        r = self.rule
        g = g + np.float32(r["l2"]) * p
        first = "v" not in state
        v = state.setdefault("v", Tensor(np.zeros_like(p))).data
        v[...] = r["momentum"] * v + (1 if first else 1 - r["dampening"]) * g
        p -= (r["rate"] * ((g + r["momentum"] * v if r["ahead"] else v) + r["decay"] * p)).astype(p.dtype)


def told(found: Comparison) -> list[str]:
    """Return what is said of the first finding by the numbers, without how many parameters say it."""
    first = found.first_divergence
    assert first is not None and first.phase is Phase.UPDATE, (first, found.warnings)
    texts = [line.removeprefix("by the numbers: ") for line in first.evidence if line.startswith("by the numbers: ")]
    assert not texts or first.hint == f"by the numbers: {next(x for x in first.evidence if 'numbers' in x)[16:]}"
    return [re.sub(r" \(\d+ of \d+ parameters\)$", "", text) for text in texts]


def pair(run: Recorder, kind: type[nn.Optimizer], task: str, steps: int, **rule: Any) -> Comparison:
    a, b = gpt(), gpt()
    return probe.compare(
        run(a, optimizer=kind(a.parameters()), task=task, steps=steps),
        run(b, optimizer=kind(b.parameters(), **rule), task=task, steps=steps),
    )


ADAM: dict[str, tuple[dict[str, Any], str]] = {
    "lr": ({"rate": 1.1e-3}, "B's lr is 1.1 times A's"),
    "lr applied twice": ({"rate": 1e-6}, "B's lr is 0.001 times A's"),
    "beta1": ({"b1": 0.8}, "beta1 0.9 against 0.8"),
    "beta2": ({"b2": 0.999}, "beta2 0.95 against 0.999"),
    "no bias correction": ({"corrects": False}, "B does not correct the bias of Adam's moments, A does"),
    "L2": ({"l2": 0.1, "decay": 0.0}, "B adds 0.1 times the weight to the gradient (L2, as Adam does), A does not"),
    "maximize": ({"sign": -1.0}, "one side goes up where the other goes down (maximize, or the sign of the gradient)"),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", ADAM)
def test_adam_is_read_from_its_numbers(run: Recorder, name: str, task: str) -> None:
    rule, text = ADAM[name]
    assert text in told(pair(run, Own, task, 1, **rule))


def test_a_decay_of_some_weights(run: Recorder) -> None:
    found = pair(run, Own, "statistics", 1, decay=0.0)
    assert told(found) == ["B takes 0.0001 times the weight less away with an update (weight_decay)"]


def test_eps_from_values_and_from_statistics(run: Recorder) -> None:
    assert told(pair(run, Own, "tensor", 1, eps=1e-3)) == ["eps 0.001 in B, in A it is too small to show"]
    (text,) = told(pair(run, Own, "statistics", 1, eps=1e-3))
    assert text in (f"eps of B is larger, about {size}: the smaller a gradient, the shorter is its update"
                    for size in ("7e-04", "8e-04", "9e-04", "1e-03"))  # fmt: skip


def test_eps_inside_the_root(run: Recorder) -> None:
    assert told(pair(run, Own, "tensor", 1, eps=1e-6, inside=True)) == [
        "B adds eps (1e-06) inside the root, A behind it"
    ]


MOMENTUM: dict[str, tuple[dict[str, Any], int, str]] = {
    "lr": ({"rate": 0.055}, 1, "lr 0.05 against 0.055"),
    "lr in the second step": ({"rate": 0.055}, 2, "lr 0.05 against 0.055"),
    "momentum": ({"momentum": 0.8}, 2, "momentum 0.9 against 0.8"),
    "dampening": ({"dampening": 0.1}, 2, "dampening 0 against 0.1"),
    "weight decay": ({"l2": 0.1}, 1, "weight_decay 0.01 against 0.1"),
    "no weight decay": ({"l2": 0.0}, 1, "A adds 0.01 times the weight to the gradient (L2, as Adam does), B does not"),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", MOMENTUM)
def test_momentum_is_read_from_its_numbers(run: Recorder, name: str, task: str) -> None:
    rule, steps, text = MOMENTUM[name]
    assert text in told(pair(run, OwnMomentum, task, steps, **rule))


class WithZeros(OwnMomentum):
    """Keeps zeros that nothing uses, as MindSpore's SGD does."""

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        super().update(p, g, group, state)
        state.setdefault("stat", Tensor(np.zeros_like(p)))


def test_zeros_beside_the_momentum_are_no_second_moment(run: Recorder) -> None:
    a, b = gpt(), gpt()
    found = probe.compare(
        run(a, optimizer=OwnMomentum(a.parameters()), steps=1),
        run(b, optimizer=WithZeros(b.parameters(), l2=0.1), steps=1),
    )
    assert told(found) == ["weight_decay 0.01 against 0.1"]


def test_of_weights_that_began_with_zeros_the_old_momentum_is_no_decay(run: Recorder) -> None:
    """After one step they are a multiple of it."""
    runs = []
    for dampening in (0.0, 0.1):
        model = gpt()
        for parameter in model.parameters():
            if parameter.data.ndim == 1 and parameter.data.mean() < 0.5:  # a bias; norms multiply by about 1
                parameter.data[...] = 0
        runs.append(run(model, optimizer=OwnMomentum(model.parameters(), l2=0.0, dampening=dampening), steps=2))
    assert told(probe.compare(*runs)) == ["dampening 0 against 0.1"]


def test_two_settings_at_once(run: Recorder) -> None:
    found = told(pair(run, Own, "statistics", 1, rate=1.1e-3, b1=0.8))
    assert {*found} >= {"B's lr is 1.1 times A's", "beta1 0.9 against 0.8"}


def test_clean_optimizers_of_ones_own(run: Recorder) -> None:
    for kind in (Own, OwnMomentum):
        assert pair(run, kind, "statistics", 3).verdict is Verdict.ALIGNED


class Lying(nn.AdamW):
    """Its settings say another learning rate than the one it uses."""

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        super().update(p, g, {**group, "lr": group["lr"] * 1.1}, state)


Lying.__name__ = "AdamW"


class Twice(nn.AdamW):
    """Applies its learning rate twice."""

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        super().update(p, g, {**group, "lr": group["lr"] ** 2, "weight_decay": group["weight_decay"]}, state)


Twice.__name__ = "AdamW"


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Lying, "lr 0.001 against 0.0011, though both sides recorded 0.001"), (Twice, "B applies lr 0.001 twice")],
)
def test_settings_that_lie(run: Recorder, clean: Any, kind: type[nn.AdamW], text: str) -> None:
    model = gpt()
    found = probe.compare(clean(), run(model, optimizer=kind(model.parameters(), lr=1e-3)))
    assert told(found) == [text]


def _with(change: Any) -> Any:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        loss.backward()
        change(model)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def _clip(norm: float) -> Any:
    def change(model: Model) -> None:
        total = np.sqrt(sum(float((p.grad.data.astype(np.float64) ** 2).sum()) for p in model.parameters()))
        for parameter in model.parameters():
            parameter.grad.data *= np.float32(min(1.0, norm / total))

    return change


def _cut(bound: float) -> Any:
    def change(model: Model) -> None:
        for parameter in model.parameters():
            np.clip(parameter.grad.data, -bound, bound, out=parameter.grad.data)

    return change


def _clip_each(norm: float) -> Any:
    def change(model: Model) -> None:
        for parameter in model.parameters():
            length = float(np.linalg.norm(parameter.grad.data))
            parameter.grad.data *= np.float32(min(1.0, norm / length))

    return change


def _divide(by: float) -> Any:
    def change(model: Model) -> None:
        for parameter in model.parameters():
            parameter.grad.data /= np.float32(by)

    return change


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (None, _clip(0.5), "A uses its gradients as backward left them (norm {}), B clips all its gradients together to a norm of 0.5 (from {})"),
        (_clip(1.0), _clip(0.5), "A clips all its gradients together to a norm of 1 (from {}), B clips all its gradients together to a norm of 0.5 (from {})"),
        (None, _cut(0.01), "A uses its gradients as backward left them (norm {}), B cuts each element of its gradients off at 0.01"),
        (None, _clip_each(0.1), "A uses its gradients as backward left them (norm {}), B clips each gradient by itself to a norm of 0.1"),
        (_divide(1024.0), None, "A divides its gradients by 1024, B uses its gradients as backward left them (norm {})"),
    ],
)  # fmt: skip
def test_what_is_done_to_gradients_is_named(run: Recorder, a: Any, b: Any, text: str) -> None:
    steps = [plain_step if change is None else _with(change) for change in (a, b)]
    found = told(probe.compare(run(step=steps[0]), run(step=steps[1])))
    assert found == [text.replace("{}", f"{_norm(gpt()):.3g}")]


def _norm(model: Model) -> float:
    loss_of(model(batch(0)), batch(0)).backward()
    return float(np.sqrt(sum(float((p.grad.data.astype(np.float64) ** 2).sum()) for p in model.parameters())))


@pytest.mark.parametrize("turned", [False, True])
def test_the_norm_is_that_of_joined_weights_too(run: Recorder, turned: bool) -> None:
    norm = _norm(fusing.apart())
    bound = float(f"{norm / 4.004:.4g}")
    files = [run(fusing.apart()), run(fusing.together(), step=_with(_clip(bound)))]
    found = probe.compare(*(files[::-1] if turned else files), mapping=fusing.mapping())
    parts = [
        f"uses its gradients as backward left them (norm {norm:.3g})",
        f"clips all its gradients together to a norm of {bound:.4g} (from {norm:.3g})",
    ]
    a, b = parts[::-1] if turned else parts
    assert told(found) == [f"A {a}, B {b}"]


@pytest.mark.parametrize("turned", [False, True])
def test_a_joined_weight_has_no_rule_of_one_part(run: Recorder, turned: bool) -> None:
    models = [fusing.apart(), fusing.together()]
    rates = zip(models, (1e-3, 2e-3), strict=True)
    files = [run(model, optimizer=Own(model.parameters(), rate=rate)) for model, rate in rates]
    found = told(probe.compare(*(files[::-1] if turned else files), mapping=fusing.mapping()))
    assert found and not any("second moment" in text for text in found), found


def test_a_gradient_that_is_lost_on_the_way(run: Recorder) -> None:
    def lose(model: Model) -> None:
        module(model, "layers.1.mlp.up").weight.grad.data[...] = 0

    first = probe.compare(run(), run(step=_with(lose))).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.UPDATE, "layers.1.mlp.up")
    assert first.evidence[0] == (
        "the gradient that backward left agrees, the one that the optimizer used differs: B's optimizer is given zeros"
    )


def test_a_state_that_was_not_restored(run: Recorder) -> None:
    def forgetful(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        if number == 2:
            optimizer.state.clear()
        return plain_step(model, optimizer, number)

    found = probe.compare(run(steps=3), run(step=forgetful, steps=3))
    assert found.first_divergence is not None and found.first_divergence.step == 2
    said = "by the numbers: B's optimizer began with an empty state, A's goes on from the step before"
    assert said in found.first_divergence.evidence


def test_no_update_is_called_wrong_below_its_limit(run: Recorder) -> None:
    found = pair(run, Own, "statistics", 1, decay=0.0)
    wrong = [slot for slot in found.slots if slot.verdict == "introduced"]
    assert wrong and all(not slot.error <= slot.limit for slot in wrong)


@pytest.mark.filterwarnings("error")
def test_updates_that_are_all_zero_on_one_side_are_no_multiple() -> None:
    def side(norm: float) -> Any:
        return SimpleNamespace(size=1000, update=SimpleNamespace(norm=norm))

    adam = SimpleNamespace(is_adaptive=True)
    for a, b in ((1e-3, 0.0), (0.0, 1e-3), (0.0, 0.0)):
        pairs: Any = [SimpleNamespace(rule_a=adam, rule_b=adam, a=side(a), b=side(b))] * 5
        assert list(naming._longer_steps(pairs)) == []
