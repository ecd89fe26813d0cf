"""Small trainings of every kind that probe must not disturb.

Each `Case` builds a model and says how it is trained; `train` runs 4 steps of 2 accumulations from a fixed seed, with
or without an observer, and returns everything that must come out bitwise the same.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import paddle
import zoo_models_paddle as models
from paddle import Tensor, nn
from zoo_models_paddle import batch, mlp, tokens

from tests import left_as_it_was

STEPS, ACCUMULATIONS = 4, 2
Optimizer = paddle.optimizer.Optimizer


class Observer(Protocol):
    """What watches a training; the plain run has none."""

    def start(self, model: nn.Layer, optimizer: Optimizer) -> None: ...

    def step(self, loss: Tensor) -> None: ...

    def stop(self) -> None: ...


@dataclass
class Result:
    """What a training left behind; all of it must be the same with and without probe."""

    losses: list[np.ndarray] = field(default_factory=list)
    """losses, outputs of evaluations and whatever else a case keeps"""
    gradients: list[dict[str, np.ndarray | None]] = field(default_factory=list)
    """by parameter name, per optimizer step, as the optimizer found them"""
    weights: dict[str, Any] = field(default_factory=dict)
    random_states: tuple[Any, ...] = ()
    """of python, numpy and paddle, at the end"""


Loss = Callable[[nn.Layer, int], Tensor]


def by_sgd(model: nn.Layer) -> Optimizer:
    return paddle.optimizer.SGD(0.05, parameters=model.parameters())


def by_momentum(model: nn.Layer) -> Optimizer:
    return paddle.optimizer.Momentum(0.05, 0.9, parameters=model.parameters(), use_nesterov=True, weight_decay=0.01)


def by_adam_with_clip(model: nn.Layer) -> Optimizer:
    clip = nn.ClipGradByGlobalNorm(0.1)
    return paddle.optimizer.Adam(0.01, parameters=model.parameters(), weight_decay=0.01, grad_clip=clip)


def by_adamw(model: nn.Layer) -> Optimizer:
    schedule = paddle.optimizer.lr.StepDecay(0.01, 2)
    return paddle.optimizer.AdamW(
        schedule, parameters=model.parameters(), apply_decay_param_fun=lambda name: "b_0" not in name
    )


def by_groups(model: nn.Layer) -> Optimizer:
    first, *rest = model.parameters()
    groups = [
        {"params": [first], "learning_rate": 0.1, "weight_decay": 0.1},
        {"params": rest, "grad_clip": nn.ClipGradByNorm(0.1)},
    ]
    return paddle.optimizer.AdamW(0.01, parameters=groups)


def by_lbfgs(model: nn.Layer) -> Optimizer:
    return paddle.optimizer.LBFGS(0.1, max_iter=3, parameters=model.parameters())


def backward(loss: Tensor) -> None:
    loss.backward()


def step_and_clear(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.step()
    optimizer.clear_grad()


def minimize(optimizer: Optimizer, loss: Tensor) -> None:
    optimizer.minimize(loss)
    optimizer.clear_gradients() if hasattr(optimizer, "clear_gradients") else optimizer.clear_grad(False)


@dataclass(frozen=True)
class Case:
    """One way to train.

    ``loss(model, i)`` is the loss of micro-batch i; ``between(model)`` runs before each optimizer step and
    returns tensors to keep; with ``closure`` the optimizer calls forward and backward itself.
    """

    build: Callable[[], nn.Layer]
    loss: Loss
    optimizer: Callable[[nn.Layer], Optimizer] = by_momentum
    backward: Callable[[Tensor], None] = backward
    update: Callable[[Optimizer, Tensor], None] = step_and_clear
    between: Callable[[nn.Layer], list[Tensor]] = lambda model: []
    closure: bool = False
    setup: Callable[[nn.Layer, Optimizer], None] = lambda model, optimizer: None


def seed() -> None:
    random.seed(7)
    np.random.seed(7)
    paddle.seed(7)


def train(case: Case, observer: Observer | None = None) -> Result:
    """Train as the case says, from a fixed seed."""
    seed()
    result = Result()
    with paddle.utils.unique_name.guard():
        model = case.build()
        optimizer = case.optimizer(model)
        case.setup(model, optimizer)
        if observer:
            observer.start(model, optimizer)
        for step in range(STEPS):
            loss = _step(case, model, optimizer, step, result)
            if observer:
                observer.step(loss)
        if observer:
            observer.stop()
        result.weights = plain({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    result.random_states = (random.getstate(), np.random.get_state(), paddle.rand([3]).numpy())
    return result


def _step(case: Case, model: nn.Layer, optimizer: Optimizer, step: int, result: Result) -> Tensor:
    def accumulate() -> Tensor:
        for micro in range(ACCUMULATIONS):
            loss = case.loss(model, step * ACCUMULATIONS + micro)
            result.losses.append(plain(loss))
            case.backward(loss)
        result.gradients.append({name: plain(p.grad) for name, p in model.named_parameters()})
        result.losses += [plain(kept) for kept in case.between(model)]
        return loss

    if case.closure:
        loss = optimizer.step(accumulate)
        optimizer.clear_grad()
        return loss
    loss = accumulate()
    case.update(optimizer, loss)
    return loss.detach()


def plain(value: Any) -> Any:
    """Copy tensors out of a container, as their bits."""
    if isinstance(value, Tensor):
        return value.astype("float32").numpy() if str(value.dtype) == "paddle.bfloat16" else value.numpy().copy()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return copy.deepcopy(value)


def _told(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return vars(value) if isinstance(value, Result) else value


differences = functools.partial(left_as_it_was.differences, told=_told)


# ---- how they are trained ----------------------------------------------------------------------------------


def squared(*shape: int) -> Loss:
    """The mean square of the output for a random batch."""
    return lambda model, index: model(batch(index, *shape)).astype("float32").square().mean()


def with_user_hooks(model: nn.Layer, optimizer: Optimizer) -> None:
    """Hooks of the user's own that change what passes."""
    linear, norm = model[0], model[1]

    def halve_gradient(layer: nn.Layer, args: Any, out: Tensor) -> Tensor:
        if not out.stop_gradient:
            out.register_hook(lambda gradient: gradient * 0.5)
        return out * 1.25

    linear.register_forward_post_hook(halve_gradient)
    norm.register_forward_pre_hook(lambda layer, args: (args[0] + 0.1,))
    linear.weight.register_hook(lambda gradient: gradient.clip(-0.1, 0.1))


def gradient_penalty(model: nn.Layer, index: int) -> Tensor:
    """A penalty on the gradient at the input, by double backward."""
    x = batch(index, 4, 6)
    x.stop_gradient = False
    out = model(x).sum()
    (gradient,) = paddle.grad(out, x, create_graph=True)
    return 0.1 * (out.square() + gradient.square().sum())


def catching(model: nn.Layer, index: int) -> Tensor:
    with contextlib.suppress(ValueError):
        return model(batch(index, 4, 6)).square().mean()
    return model.before(batch(index, 4, 6)).square().mean()


def twice(loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def two_forwards(model: nn.Layer, index: int) -> Tensor:
    """Two forwards, then one backward of both."""
    first, second = (model(batch(i, 4, 6)) for i in (index, index + 100))
    return (first * second).mean()


def under_auto_cast(model: nn.Layer, index: int) -> Tensor:
    with paddle.amp.auto_cast(dtype="bfloat16"):
        return model(batch(index, 4, 6)).astype("float32").square().mean()


SCALER = paddle.amp.GradScaler(init_loss_scaling=8.0, enable=False)


def scaled_backward(loss: Tensor) -> None:
    SCALER.scale(loss).backward()


def scaler_step(optimizer: Optimizer, loss: Tensor) -> None:
    SCALER.step(optimizer)
    SCALER.update()
    optimizer.clear_grad()


def evaluations(model: nn.Layer) -> list[Tensor]:
    """Validation between the steps, without gradients and with."""
    model.eval()
    with paddle.no_grad():
        first = model(batch(50, 4, 6))
    second = model(batch(52, 4, 6))
    model.train()
    return [first, second]


def averaged(model: nn.Layer) -> list[Tensor]:
    """A copy of the model (moving averages), which runs and learns by itself."""
    twin = copy.deepcopy(model)
    twin(batch(60, 4, 6)).sum().backward()
    with paddle.no_grad():
        return [twin(batch(61, 4, 6)), twin[0].weight.grad]


def clipped(model: nn.Layer) -> list[Tensor]:
    return [nn.utils.clip_grad_norm_(model.parameters(), 0.1)]


ROWS = squared(4, 6)

CASES: dict[str, Case] = {
    "mlp": Case(mlp, ROWS, optimizer=by_adamw),
    "cnn_in_place": Case(models.InPlaceCNN, squared(3, 2, 8, 8)),
    "shared_layer": Case(models.SharedLayer, lambda m, i: m(batch(i, 2, 6)).square().mean()),
    "views": Case(models.Views, ROWS),
    "outputs": Case(models.ManyOutputs, lambda m, i: m(batch(i, 3, 4))["out"].square().mean()),
    "lists_of_tensors": Case(models.Concatenated, ROWS),
    "lstm": Case(models.Recurrent, squared(5, 3, 4)),
    "multihead_attention": Case(models.Attention, squared(2, 3, 8)),
    "transformer_encoder": Case(models.encoder, squared(2, 3, 8), optimizer=by_adam_with_clip),
    "recompute_reentrant": Case(lambda: models.Recomputed(True), ROWS),
    "recompute": Case(lambda: models.Recomputed(False), ROWS),
    "tied": Case(models.Tied, lambda m, i: m(tokens(i, 2, 5))),
    "gradient_penalty": Case(lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), gradient_penalty),
    "pylayer": Case(models.WithPyLayer, ROWS),
    "sgd": Case(mlp, ROWS, optimizer=by_sgd),
    "momentum": Case(mlp, ROWS, between=clipped),
    "adam_with_clip": Case(mlp, ROWS, optimizer=by_adam_with_clip),
    "groups": Case(mlp, ROWS, optimizer=by_groups),
    "minimize": Case(mlp, ROWS, update=minimize),
    "lbfgs": Case(mlp, ROWS, optimizer=by_lbfgs, closure=True),
    "evaluation": Case(mlp, ROWS, between=evaluations),
    "raises": Case(models.SometimesRaises, catching),
    "auto_cast": Case(mlp, under_auto_cast, backward=scaled_backward, update=scaler_step),
    "retain_graph": Case(mlp, ROWS, backward=twice),
    "two_forwards": Case(mlp, two_forwards),
    "user_hooks": Case(mlp, ROWS, setup=with_user_hooks),
    "copied": Case(mlp, ROWS, between=averaged),
    "data_parallel": Case(lambda: paddle.DataParallel(mlp()), ROWS),
    "sparse": Case(
        lambda: nn.Embedding(16, 4, sparse=True), lambda m, i: m(tokens(i, 3)).square().mean(), optimizer=by_sgd
    ),
    "compiled_part": Case(models.with_compiled_part, ROWS),
}
"""by name"""
