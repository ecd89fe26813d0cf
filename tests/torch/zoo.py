"""Small trainings of every kind that probe must not disturb.

Each `Case` builds a model and says how it is trained; `train` runs 8 steps of 2 accumulations from a fixed
seed, with or without an observer, and returns everything that must come out bitwise the same.
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
import torch
from torch import Tensor, nn

from tests import left_as_it_was
from tests.torch import zoo_models as models
from tests.torch.zoo_models import batch, mlp, tokens

STEPS, ACCUMULATIONS = 8, 2


class Observer(Protocol):
    """What watches a training; the plain run has none."""

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None: ...

    def step(self, loss: Tensor) -> None: ...

    def stop(self) -> None: ...


@dataclass
class Result:
    """What a training left behind; all of it must be the same with and without probe."""

    losses: list[Tensor] = field(default_factory=list)
    """losses, outputs of evaluations and whatever else a case keeps"""
    gradients: list[dict[str, Tensor | None]] = field(default_factory=list)
    """by parameter name, per optimizer step, as the optimizer found them"""
    weights: dict[str, Any] = field(default_factory=dict)
    """the model's and the optimizer's state at the end"""
    random_states: tuple[Any, ...] = ()
    """of python, numpy and torch, at the end"""


Loss = Callable[[nn.Module, int], Tensor]


def by_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)


def by_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def backward(loss: Tensor) -> None:
    loss.backward()


@dataclass(frozen=True)
class Case:
    """One way to train.

    ``loss(model, i)`` is the loss of micro-batch i; ``between(model)`` runs before each optimizer step and
    returns tensors to keep; with ``closure`` the optimizer calls forward and backward itself.
    """

    build: Callable[[], nn.Module]
    loss: Loss
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = by_sgd
    backward: Callable[[Tensor], None] = backward
    between: Callable[[nn.Module], list[Tensor]] = lambda model: []
    closure: bool = False
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model
    setup: Callable[[nn.Module, torch.optim.Optimizer], None] = lambda model, optimizer: None


def seed() -> None:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)


def train(case: Case, observer: Observer | None = None) -> Result:
    """Train as the case says, from a fixed seed."""
    seed()
    result = Result()
    model = case.wrap(case.build())
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
    result.weights = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    result.random_states = (random.getstate(), np.random.get_state(), torch.get_rng_state())
    return result


def _step(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, result: Result) -> Tensor:
    def accumulate() -> Tensor:
        optimizer.zero_grad()
        for micro in range(ACCUMULATIONS):
            loss = case.loss(model, step * ACCUMULATIONS + micro)
            result.losses.append(loss.detach().clone())
            case.backward(loss)
        gradients = {n: p.grad for n, p in model.named_parameters()}
        result.gradients.append({n: None if g is None else g.detach().clone() for n, g in gradients.items()})
        result.losses += [kept.detach().clone() for kept in case.between(model)]
        return loss

    if case.closure:
        return optimizer.step(accumulate)
    loss = accumulate()
    optimizer.step()
    return loss.detach()


def _told(value: Any) -> Any:
    if isinstance(value, Tensor):
        dense = value.to_dense() if value.layout is not torch.strided else value
        bits = dense.detach().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), bits.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return vars(value) if isinstance(value, Result) else value


differences = functools.partial(left_as_it_was.differences, told=_told)


# ---- how they are trained ----------------------------------------------------------------------------------


def squared(*shape: int) -> Loss:
    """The mean square of the output for a random batch."""
    return lambda model, index: model(batch(index, *shape)).float().square().mean()


def with_user_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Hooks of the user's own that change what passes, and one that fires late in backward."""
    linear, norm, gelu = model[0], model[1], model[2]

    def halve_gradient(module: nn.Module, args: tuple, out: Tensor) -> Tensor:
        if out.requires_grad:
            out.register_hook(lambda gradient: gradient * 0.5)
        return out * 1.25

    def scale_gradient(parameter: Tensor) -> None:
        parameter.grad.mul_(0.5)

    linear.register_forward_hook(halve_gradient)
    norm.register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
    gelu.register_full_backward_hook(lambda module, grad_input, grad_output: (grad_input[0] * 1.5,))
    linear.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    norm.weight.register_post_accumulate_grad_hook(scale_gradient)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 0.5) and None)


def in_backward(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An optimizer of its own for every parameter, stepped and cleared as soon as its gradient is there."""
    for parameter in model[0].parameters():
        own = torch.optim.SGD([parameter], lr=0.01)
        parameter.register_post_accumulate_grad_hook(lambda p, own=own: (own.step(), own.zero_grad()) and None)


def gradient_penalty(model: models.Penalised, index: int) -> Tensor:
    """A penalty on the gradient at the input, by double backward."""
    out = model(model.x).sum() + model(batch(index, 4, 6)).sum()
    (gradient,) = torch.autograd.grad(out, model.x, create_graph=True)
    return 0.1 * (out.square() + gradient.square().sum())


def catching(model: nn.Module, index: int) -> Tensor:
    with contextlib.suppress(ValueError):
        return model(batch(index, 4, 6)).square().mean()
    return model.before(batch(index, 4, 6)).square().mean()


def twice(loss: Tensor) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def two_forwards(model: nn.Module, index: int) -> Tensor:
    """Two forwards, then one backward of both."""
    first, second = (model(batch(i, 4, 6)) for i in (index, index + 100))
    return (first * second).mean()


def under_autocast(model: nn.Module, index: int) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(batch(index, 4, 6)).float().square().mean()


def per_sample(model: nn.Module, index: int) -> Tensor:
    """Per-sample gradients by vmap of grad, beside the usual loss."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    gradients = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, batch(index, 4, 6))
    return model(batch(index, 4, 6)).square().mean() * gradients["0.weight"].norm()


def evaluations(model: nn.Module) -> list[Tensor]:
    """Validation between the steps, without gradients and in inference mode."""
    model.eval()
    with torch.no_grad():
        first = model(batch(50, 4, 6))
    with torch.inference_mode():
        second = model(batch(51, 4, 6)) * 1
    third = model(batch(52, 4, 6))
    model.train()
    return [first, second, third]


def eval_sequences(model: nn.Module) -> list[Tensor]:
    model.eval()
    with torch.no_grad():
        out = [model(batch(50, 2, 3, 8)), model(batch(51, 2, 3, 8))]
    model.train()
    return out


def averaged(model: nn.Module) -> list[Tensor]:
    """A copy of the model (moving averages), which runs and learns by itself."""
    twin = copy.deepcopy(model)
    twin(batch(60, 4, 6)).sum().backward()
    with torch.no_grad():
        return [twin(batch(61, 4, 6)), twin[0].weight.grad]


def lm_loss(model: nn.Module, index: int) -> Tensor:
    words = tokens(index, 2, 6, words=32)
    return model(input_ids=words, labels=words).loss


def keyword_loss(model: nn.Module, index: int) -> Tensor:
    x = batch(index, 3, 4)
    return model(inputs={"x": x, "mask": x > 1}).square().mean()


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")


def compiled_in_place(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    model.compile(backend="eager")
    return model


def by_sparse_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SparseAdam(model.parameters(), lr=0.01)


ROWS = squared(4, 6)

CASES: dict[str, Case] = {
    "mlp": Case(mlp, ROWS, optimizer=by_adamw),
    "cnn_in_place": Case(models.InPlaceCNN, squared(3, 2, 8, 8)),
    "shared_layer": Case(models.SharedLayer, lambda m, i: m(batch(i, 2, 6)).square().mean()),
    "views": Case(models.Views, ROWS),
    "outputs": Case(models.ManyOutputs, lambda m, i: m(batch(i, 3, 4))["out"].square().mean()),
    "keyword_only": Case(models.KeywordOnly, keyword_loss),
    "lstm": Case(models.Recurrent, squared(5, 3, 4)),
    "multihead_attention": Case(models.Attention, squared(2, 3, 8)),
    "transformer_encoder": Case(models.Encoder, squared(2, 3, 8), between=eval_sequences),
    "checkpoint_reentrant": Case(lambda: models.Checkpointed(True), ROWS),
    "checkpoint": Case(lambda: models.Checkpointed(False), ROWS),
    "tied": Case(models.Tied, lambda m, i: m(tokens(i, 2, 5))),
    "gradient_penalty": Case(models.Penalised, gradient_penalty),
    "fused_adamw": Case(mlp, ROWS, optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, fused=True)),
    "lbfgs": Case(mlp, ROWS, optimizer=lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=3), closure=True),
    "evaluation": Case(mlp, ROWS, between=evaluations),
    "raises": Case(models.SometimesRaises, catching),
    "autocast_bf16": Case(mlp, under_autocast),
    "bf16": Case(lambda: mlp().bfloat16(), lambda m, i: m(batch(i, 4, 6).bfloat16()).float().square().mean()),
    "retain_graph": Case(mlp, ROWS, backward=twice),
    "two_forwards": Case(mlp, two_forwards),
    "many_or_never": Case(models.ManyOrNever, lambda m, i: m(batch(i, 2, 6), i).square().mean()),
    "user_hooks": Case(mlp, ROWS, setup=with_user_hooks),
    "optimizer_in_backward": Case(mlp, ROWS, setup=in_backward),
    "own_parameter": Case(models.OwnParameter, ROWS),
    "sparse": Case(
        lambda: nn.Embedding(16, 4, sparse=True),
        lambda m, i: m(tokens(i, 3)).square().mean(),
        optimizer=by_sparse_adam,
    ),
    "lazy": Case(lambda: nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(2)), ROWS),
    "per_sample_gradients": Case(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)), per_sample),
    "copied": Case(mlp, ROWS, between=averaged),
    "parametrized": Case(lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4))), ROWS),
    "compiled": Case(mlp, ROWS, wrap=compiled),
    "compiled_in_place": Case(mlp, ROWS, wrap=compiled_in_place),
    "scripted_part": Case(lambda: nn.Sequential(torch.jit.script(nn.Linear(6, 4)), nn.Linear(4, 2)), ROWS),
    "qwen2_eager": Case(lambda: models.qwen2("eager"), lm_loss, optimizer=by_adamw),
    "qwen2_sdpa": Case(lambda: models.qwen2("sdpa"), lm_loss, optimizer=by_adamw),
}
"""by name"""


def ddp(**options: Any) -> Callable[[nn.Module], nn.Module]:
    return lambda model: nn.parallel.DistributedDataParallel(model, **options)


def of_rank(model: nn.Module, index: int, *shape: int) -> Tensor:
    """Every rank has batches of its own."""
    return model(batch(index + 1000 * torch.distributed.get_rank(), *shape)).square().mean()


def no_sync(model: nn.Module, index: int) -> Tensor:
    """Gradients are reduced with the last micro-batch of a step only."""
    last = index % ACCUMULATIONS == ACCUMULATIONS - 1
    with contextlib.nullcontext() if last else model.no_sync():
        return of_rank(model, index, 4, 6)


DDP_CASES: dict[str, Case] = {
    "ddp": Case(models.InPlaceCNN, lambda m, i: of_rank(m, i, 3, 2, 8, 8), wrap=ddp()),
    "ddp_no_sync": Case(mlp, no_sync, wrap=ddp(gradient_as_bucket_view=True), optimizer=by_adamw),
    "ddp_unused": Case(models.SharedLayer, lambda m, i: of_rank(m, i, 2, 6), wrap=ddp(find_unused_parameters=True)),
    "ddp_static_graph": Case(mlp, lambda m, i: of_rank(m, i, 4, 6), wrap=ddp(static_graph=True)),
}
"""by name; each is run by several processes"""
