"""Situations of PyTorch that differ in what the program does with its model."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils import parametrizations, parametrize, prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.situations.table import situation
from benchmarks.situations.torch_pieces import STEPS, batch, mlp, squared, tokens, train
from benchmarks.situations.watching import Watch


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def sgd(model: nn.Module, rate: float = 0.05) -> optim.Optimizer:
    return optim.SGD([p for p in model.parameters() if p.requires_grad], rate)


def one_step(watch: Watch, model: nn.Module, optimizer: optim.Optimizer, index: int = 0) -> None:
    optimizer.zero_grad()
    loss = squared(model, index)
    loss.backward()
    optimizer.step()
    watch.step(loss)


# Optimizers and schedules


@situation
def lbfgs(watch: Watch) -> None:
    """LBFGS with a closure"""
    model = mlp()
    train(
        watch,
        model,
        optimizer=optim.LBFGS(model.parameters(), 0.1, max_iter=3, line_search_fn="strong_wolfe"),
        closure=True,
    )


@situation
def closures(watch: Watch) -> None:
    """SGD with a closure"""
    train(watch, mlp(), closure=True)


@situation
def groups(watch: Watch) -> None:
    """groups of parameters, one of them added later, and schedules"""
    model = small()
    optimizer = optim.AdamW([{"params": model[0].parameters(), "lr": 0.1}], 0.01)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    schedule.step()
    optimizer.add_param_group({"params": model[2].parameters(), "max_lr": 0.1, "initial_lr": 0.1, "min_lr": 0.01})
    one_step(watch, model, optimizer, 1)


@situation
def several_optimizers(watch: Watch) -> None:
    """a GAN: two models, two optimizers"""
    maker, judge = small(), nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(0.2, True), nn.Linear(4, 1))
    of_maker, of_judge = optim.Adam(maker.parameters(), 0.01), optim.Adam(judge.parameters(), 0.01)
    watch.start([maker, judge], of_maker)
    for step in range(STEPS):
        made = maker(batch(step, 4, 6))
        of_judge.zero_grad()
        (judge(made.detach()).mean() - judge(batch(step, 4, 2)).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        loss = -judge(made).mean()
        loss.backward()
        of_maker.step()
        watch.step(loss)


@situation
def averages(watch: Watch) -> None:
    """stochastic weight averaging, and an exponential average"""
    model = mlp()
    optimizer = sgd(model)
    swa = optim.swa_utils.AveragedModel(model)
    ema = optim.swa_utils.AveragedModel(model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))
    watch.start(model, optimizer)
    for step in range(STEPS):
        one_step(watch, model, optimizer, step)
        swa.update_parameters(model), ema.update_parameters(model)
    watch.keep("averages", [*swa.parameters(), *ema.parameters()])


@situation
def accumulation(watch: Watch) -> None:
    """gradients of four batches added up, and clipped"""
    model = mlp()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(4):
            (squared(model, 4 * step + micro) / 4).backward()
        watch.keep("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        watch.step(0.0)


@situation
def values_clipped(watch: Watch) -> None:
    """gradients clipped by value, and noise added to them"""
    model = mlp()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        squared(model, step).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        for parameter in model.parameters():
            parameter.grad += torch.randn_like(parameter) * 0.001
        optimizer.step()
        watch.step()


@situation
def scaler(watch: Watch) -> None:
    """a GradScaler, one step of which overflows"""
    model = small()
    optimizer = sgd(model)
    scaling = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    watch.start(model, optimizer)
    for step in range(3):
        optimizer.zero_grad()
        loss = squared(model, step) * (float("inf") if step == 1 else 1.0)
        scaling.scale(loss).backward()
        scaling.unscale_(optimizer)
        scaling.step(optimizer)
        scaling.update()
        watch.step(loss)
    watch.keep("scale", scaling.state_dict())


@situation
def by_hand(watch: Watch) -> None:
    """weights updated by hand"""
    model = small()
    watch.start(model)
    for step in range(STEPS):
        gradients = torch.autograd.grad(squared(model, step), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        watch.step()


@situation
def through_data(watch: Watch) -> None:
    """weights written through .data, and replaced by it"""
    model = small()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    for step in range(STEPS):
        one_step(watch, model, optimizer, step)
        model[0].weight.data.mul_(0.9)
        model[2].bias.data = torch.ones(2) * step


# Precision, modes


@situation
def autocast(watch: Watch) -> None:
    """autocast to bfloat16"""

    def loss(model: nn.Module, index: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(batch(index, 4, 6)).float().square().mean()

    train(watch, mlp(), loss)


@situation
def default_dtype(watch: Watch) -> None:
    """the default dtype changes on the way"""
    model = small()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    torch.set_default_dtype(torch.float64)
    try:
        model.double()
        optimizer.zero_grad()
        model(batch(1, 4, 6)).square().mean().backward()
        optimizer.step()
        watch.step()
    finally:
        torch.set_default_dtype(torch.float32)


@situation
def deterministic(watch: Watch) -> None:
    """deterministic algorithms only"""
    torch.use_deterministic_algorithms(True)
    try:
        train(watch, mlp())
    finally:
        torch.use_deterministic_algorithms(False)


@situation
def anomaly(watch: Watch) -> None:
    """anomaly detection"""
    with torch.autograd.set_detect_anomaly(True):
        train(watch, mlp())


@situation
def evaluations(watch: Watch) -> None:
    """evaluation in no_grad and in inference mode between steps"""
    model = mlp()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    for step in range(STEPS):
        one_step(watch, model, optimizer, step)
        model.eval()
        with torch.no_grad():
            watch.keep("no_grad", squared(model, 50))
        with torch.inference_mode():
            watch.keep("inference", squared(model, 51) * 1)
        model.train()


@situation
def grad_switched(watch: Watch) -> None:
    """gradients switched off and on inside of a forward"""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.first(x)
                with torch.enable_grad():
                    y = self.second(x)
            return y + self.second(self.first(x.detach()))

    train(watch, Model())


@situation
def requires_grad(watch: Watch) -> None:
    """parameters frozen and unfrozen on the way"""
    model = mlp()
    optimizer = sgd(model)
    model[0].requires_grad_(False)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    model[0].requires_grad_(True)
    model[4].weight.requires_grad_(False)
    one_step(watch, model, optimizer, 1)


@situation
def dispatch_mode(watch: Watch) -> None:
    """a TorchDispatchMode of the user's counts operations"""

    class Counting(TorchDispatchMode):
        names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    model = small()
    Counting.names = []
    optimizer = sgd(model)
    watch.start(model, optimizer)
    for step in range(STEPS):
        with Counting():
            squared(model, step).backward()
        optimizer.step()
        watch.step()
    watch.keep("operations", Counting.names)


@situation
def function_mode(watch: Watch) -> None:
    """a TorchFunctionMode of the user's counts functions"""

    class Counting(TorchFunctionMode):
        names: list[str] = []

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    model = small()
    Counting.names = []
    watch.start(model)
    with Counting():
        squared(model, 0).backward()
    watch.step()
    watch.keep("functions", Counting.names)


@situation
def flops(watch: Watch) -> None:
    """a FlopCounterMode"""
    model = small()
    watch.start(model)
    with FlopCounterMode(display=False) as counting:
        squared(model, 0).backward()
    watch.step()
    watch.keep("flops", {str(key): dict(value) for key, value in counting.get_flop_counts().items()})


@situation
def default_device(watch: Watch) -> None:
    """a default device, and part of the model on meta"""
    model = nn.ModuleDict({"real": small(), "meta": nn.Linear(6, 2, device="meta")})

    def loss(model: Any, index: int) -> Tensor:
        model["meta"](torch.empty(4, 6, device="meta"))
        return squared(model["real"], index)

    with torch.device("cpu"):
        train(watch, model, loss)


# Autograd


@situation
def double_backward(watch: Watch) -> None:
    """a penalty on gradients: backward through backward"""

    def loss(model: nn.Module, index: int) -> Tensor:
        x = batch(index, 4, 6).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        return gradient.square().sum()

    train(watch, small(), loss)


@situation
def retained(watch: Watch) -> None:
    """backward twice through a graph that is kept"""

    def loss(model: nn.Module, index: int) -> Tensor:
        value = squared(model, index)
        value.backward(retain_graph=True)
        return value

    train(watch, small(), loss)


@situation
def hessian(watch: Watch) -> None:
    """a Hessian-vector product"""
    model = small()
    watch.start(model)
    gradients = torch.autograd.grad(squared(model, 0), list(model.parameters()), create_graph=True)
    product = torch.autograd.grad(sum((g * g.detach()).sum() for g in gradients), list(model.parameters()))
    watch.keep("product", product)
    watch.step()


@situation
def own_function(watch: Watch) -> None:
    """an autograd.Function of the user's"""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2 + ctx.saved_tensors[0] * 0

    train(watch, small(), lambda model, index: Doubled.apply(model(batch(index, 4, 6))).square().mean())


@situation
def saved_hooks(watch: Watch) -> None:
    """saved_tensors_hooks that pack what backward needs"""
    packed: list[object] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tuple(tensor.shape))
        return tensor

    def loss(model: nn.Module, index: int) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return squared(model, index)

    train(watch, small(), loss)
    watch.keep("packed", packed)


@situation
def saved_on_cpu(watch: Watch) -> None:
    """save_on_cpu and disable_saved_tensors_hooks"""

    def loss(model: nn.Module, index: int) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return squared(model, index)

    train(watch, small(), loss)


@situation
def users_hooks(watch: Watch) -> None:
    """hooks of the user's of every kind, some taken off on the way"""
    model = small()
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
    handle = model[0].register_forward_hook(lambda module, args, output: output * 1.5)
    model[2].register_full_backward_hook(lambda module, given, got: (given[0] * 0.5,))
    model[2].register_full_backward_pre_hook(lambda module, got: (got[0] * 2,))
    model[0].weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    optimizer = sgd(model)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    handle.remove()
    model[1].register_forward_hook(_noticed)
    one_step(watch, model, optimizer, 1)


def _noticed(module: nn.Module, args: Any, output: Any) -> None:
    """A hook that can be pickled."""


@situation
def hooks_that_pickle(watch: Watch) -> None:
    """hooks of the user's that stand in the pickle of the model"""
    model = small()
    model[0].register_forward_hook(_noticed)
    optimizer = sgd(model)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    model[2].register_forward_pre_hook(_pre_noticed)
    one_step(watch, model, optimizer, 1)


def _pre_noticed(module: nn.Module, args: Any) -> None:
    """A hook that can be pickled."""


@situation
def checkpointed(watch: Watch) -> None:
    """activation checkpointing in segments"""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2)) for _ in range(4)])
    train(watch, model, lambda m, i: checkpoint_sequential(m, 2, batch(i, 4, 6), use_reentrant=False).square().mean())


@situation
def checkpointed_reentrant(watch: Watch) -> None:
    """reentrant activation checkpointing"""
    model = small()
    train(watch, model, lambda m, i: checkpoint(m, batch(i, 4, 6).requires_grad_(), use_reentrant=True).square().mean())


@situation
def forward_mode(watch: Watch) -> None:
    """forward-mode differentiation with dual numbers"""
    model = small()
    watch.start(model)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(batch(0, 4, 6), torch.ones(4, 6))
        watch.keep("tangent", forward_ad.unpack_dual(model(dual)).tangent)
    watch.step()
    squared(model, 1).backward()
    watch.step()


@situation
def func_jvp(watch: Watch) -> None:
    """torch.func.jvp beside the usual training"""

    def loss(model: nn.Module, index: int) -> Tensor:
        _, tangent = jvp(model, (batch(index, 4, 6),), (torch.ones(4, 6),))
        return squared(model, index) + tangent.detach().sum() * 0.01

    train(watch, small(), loss)


@situation
def func_grad(watch: Watch) -> None:
    """torch.func.grad and functional_call"""
    model = small()

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x,)).square().mean()

    watch.start(model)
    for step in range(STEPS):
        watch.keep("func", grad(loss)({k: v.detach() for k, v in model.named_parameters()}, batch(step, 4, 6)))
        squared(model, step).backward()
        watch.step()


@situation
def per_sample(watch: Watch) -> None:
    """gradients of each sample by vmap"""
    model = small()

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x,)).square().sum()

    watch.start(model)
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    watch.keep("samples", vmap(grad(loss), (None, 0))(parameters, batch(0, 4, 6)))
    squared(model, 0).backward()
    watch.step()


# The model


@situation
def weight_norm(watch: Watch) -> None:
    """weight_norm as a parametrization"""
    train(watch, nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 4)), nn.Linear(4, 2)))


@situation
def spectral_norm(watch: Watch) -> None:
    """spectral_norm as a parametrization"""
    train(watch, nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 4)), nn.Linear(4, 2)))


@situation
def old_norms(watch: Watch) -> None:
    """weight_norm and spectral_norm as they were, by hooks"""
    train(watch, nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 4)), nn.Linear(4, 2)))


@situation
def orthogonal(watch: Watch) -> None:
    """an orthogonal weight"""
    train(watch, nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6)), nn.Linear(6, 2)))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


@situation
def own_parametrization(watch: Watch) -> None:
    """a parametrization of the user's, cached, and removed on the way"""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    optimizer = sgd(model)
    watch.start(model, optimizer)
    with parametrize.cached():
        one_step(watch, model, optimizer)
    parametrize.remove_parametrizations(model[0], "weight")
    one_step(watch, model, optimizer, 1)


@situation
def pruned(watch: Watch) -> None:
    """weights pruned on the way"""
    model = small()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    prune.l1_unstructured(model[0], "weight", 0.5)
    one_step(watch, model, optimizer, 1)
    prune.remove(model[0], "weight")
    one_step(watch, model, optimizer, 2)


@situation
def lazy(watch: Watch) -> None:
    """LazyModules, whose first forward is recorded"""
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    watch.start(model)
    for step in range(STEPS):
        squared(model, step).backward()
        watch.step()


@situation
def shared(watch: Watch) -> None:
    """one layer called three times"""
    layer = nn.Linear(6, 6)
    train(watch, nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), layer))


class Words(nn.Module):
    def __init__(self, tied: bool, sparse: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 4, padding_idx=0, sparse=sparse)
        self.head = nn.Linear(4, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embed(words))


@situation
def tied(watch: Watch) -> None:
    """embedding and head with one weight"""
    train(watch, Words(True), lambda m, i: nn.functional.cross_entropy(m(tokens(i, 5)), tokens(i + 1, 5)))


@situation
def sparse(watch: Watch) -> None:
    """sparse gradients, SparseAdam beside SGD"""
    model = Words(False, sparse=True)
    one, two = optim.SparseAdam(model.embed.parameters(), 0.01), optim.SGD(model.head.parameters(), 0.1)
    watch.start(model, one)
    for step in range(STEPS):
        one.zero_grad(), two.zero_grad()
        loss = model(tokens(step, 5)).square().mean()
        loss.backward()
        one.step(), two.step()
        watch.step(loss)


@situation
def bags(watch: Watch) -> None:
    """EmbeddingBag with offsets"""
    model = nn.EmbeddingBag(16, 4, mode="mean")
    train(watch, model, lambda m, i: m(tokens(i, 6), torch.tensor([0, 2, 4])).square().mean())


def _recurrent(kind: Any, watch: Watch, **options: Any) -> None:
    train(watch, kind(4, 3, **options), lambda m, i: m(batch(i, 5, 2, 4))[0].square().mean())


@situation
def rnn(watch: Watch) -> None:
    """RNN with ReLU, two layers"""
    _recurrent(nn.RNN, watch, num_layers=2, nonlinearity="relu")


@situation
def gru(watch: Watch) -> None:
    """GRU in both directions, with dropout"""
    _recurrent(nn.GRU, watch, num_layers=2, bidirectional=True, dropout=0.2)


@situation
def lstm(watch: Watch) -> None:
    """LSTM with a projection"""
    _recurrent(nn.LSTM, watch, proj_size=2)


@situation
def cells(watch: Watch) -> None:
    """LSTMCell in a loop of Python, truncated in time"""

    def loss(model: nn.Module, index: int) -> Tensor:
        h = c = torch.zeros(2, 3)
        for time in range(4):
            h, c = model(batch(4 * index + time, 2, 4), (h, c))
            if time == 1:
                h, c = h.detach(), c.detach()
        return h.square().mean()

    train(watch, nn.LSTMCell(4, 3), loss)


@situation
def packed_sequences(watch: Watch) -> None:
    """packed sequences through an LSTM"""

    def loss(model: nn.Module, index: int) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(batch(index, 5, 2, 4), [5, 3])
        return nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0].square().mean()

    train(watch, nn.LSTM(4, 3), loss)


@situation
def nested(watch: Watch) -> None:
    """nested tensors of the jagged layout"""

    def loss(model: nn.Module, index: int) -> Tensor:
        ragged = torch.nested.nested_tensor([batch(index, 2, 6), batch(index, 3, 6)], layout=torch.jagged)
        return model(ragged).values().square().mean()

    train(watch, nn.Linear(6, 2), loss)


@situation
def attention(watch: Watch) -> None:
    """attention with a mask and its weights"""

    def loss(model: nn.Module, index: int) -> Tensor:
        x = batch(index, 3, 2, 8)
        output, weights = model(x, x, x, attn_mask=torch.ones(3, 3, dtype=torch.bool).triu(1))
        return output.square().mean() + weights.square().mean()

    train(watch, nn.MultiheadAttention(8, 2, dropout=0.1), loss)


@situation
def views(watch: Watch) -> None:
    """views that are written to in place"""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            left, right = self.first(x).chunk(2, -1)
            left = left * 1
            left[:, :2] += right[:, :2]
            return self.second(left.relu_())

    train(watch, Model())


@situation
def scripted(watch: Watch) -> None:
    """TorchScript modules inside"""
    train(watch, nn.Sequential(torch.jit.script(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 2)))


@situation
def subclass(watch: Watch) -> None:
    """inputs of a subclass of Tensor"""

    class Named(Tensor):
        pass

    train(watch, small(), lambda m, i: m(batch(i, 4, 6).as_subclass(Named)).square().mean().as_subclass(Tensor))


@situation
def complex_weights(watch: Watch) -> None:
    """complex parameters, conjugate views"""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 2, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return x.to(torch.complex64) @ self.weight.conj()

    train(watch, nn.Sequential(Model()), lambda m, i: m(batch(i, 4, 6)).abs().square().mean())


@situation
def quantized_aware(watch: Watch) -> None:
    """quantization-aware training by a straight-through estimator"""

    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            weight = torch.fake_quantize_per_tensor_affine(self.weight, 0.05, 0, -128, 127)
            return nn.functional.linear(x, weight, self.bias)

    train(watch, nn.Sequential(Rounded(6, 4), nn.Tanh(), Rounded(4, 2)))


@situation
def containers(watch: Watch) -> None:
    """dicts, dataclasses and None in and out of modules"""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 2)

        def forward(self, given: dict[str, Any], scale: float | None = None) -> dict[str, Any]:
            return {"out": [self.inner(given["x"])], "none": None, "scale": scale}

    model = Model()
    train(watch, model, lambda m, i: m({"x": batch(i, 4, 6)}, scale=2.0)["out"][0].square().mean())


@situation
def generators(watch: Watch) -> None:
    """a module that yields"""

    class Stages(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])

        def forward(self, x: Tensor) -> Any:
            for layer in self.layers:
                x = layer(x)
                yield x

    train(watch, Stages(), lambda m, i: sum(x.square().mean() for x in m(batch(i, 4, 6))))


@situation
def exceptions(watch: Watch) -> None:
    """an exception in a forward, which the program catches"""

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                raise ValueError("too large")
            return x

    def loss(model: nn.Module, index: int) -> Tensor:
        with contextlib.suppress(ValueError):
            model(batch(index, 4, 6) + 100)
        return model[0](batch(index, 4, 6)).square().mean()

    train(watch, nn.Sequential(nn.Linear(6, 6), Fails()), loss, steps=3)


@situation
def threads(watch: Watch) -> None:
    """forwards in another thread, one after the other"""

    def loss(model: nn.Module, index: int) -> Tensor:
        found: list[Tensor] = []
        thread = threading.Thread(target=lambda: found.append(squared(model, index)))
        thread.start()
        thread.join()
        return found[0] + squared(model, index + 1)

    train(watch, small(), loss)


# On the way


@situation
def state_dict(watch: Watch) -> None:
    """a state_dict is loaded on the way, the optimizer's too"""
    model = mlp()
    optimizer = optim.AdamW(model.parameters(), 0.01)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    one_step(watch, model, optimizer, 1)
    model.load_state_dict(kept[0]), optimizer.load_state_dict(kept[1])
    one_step(watch, model, optimizer, 2)


@situation
def assigned(watch: Watch) -> None:
    """load_state_dict(assign=True)"""
    model = small()
    watch.start(model)
    squared(model, 0).backward()
    watch.step()
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    squared(model, 1).backward()
    watch.step()


@situation
def copies(watch: Watch) -> None:
    """copies and pickles of the model on the way, which then are trained"""
    model = mlp()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        squared(twin, 5).backward()
        watch.keep("twin", [parameter.grad for parameter in twin.parameters()])
    one_step(watch, model, optimizer, 1)


@situation
def swapped(watch: Watch) -> None:
    """parameters swapped by double() and load_state_dict, while it is recorded and afterwards"""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model = small()
        watch.start(model)
        squared(model, 0).backward()
        watch.step()
        model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
        squared(model, 1).backward()
        watch.step()
        watch.stop()
        model.double()
        model(batch(2, 4, 6).double()).sum().backward()
        watch.keep("last", [parameter.grad for parameter in model.parameters()])
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@situation
def resized(watch: Watch) -> None:
    """storages freed and filled again between steps, as FSDP does"""
    model = small()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    for step in range(STEPS):
        one_step(watch, model, optimizer, step)
        for parameter in model.parameters():
            storage, kept = parameter.untyped_storage(), parameter.detach().clone()
            size = storage.nbytes()
            storage.resize_(0)
            storage.resize_(size)
            parameter.data.copy_(kept)


@situation
def modules_changed(watch: Watch) -> None:
    """modules added, replaced and removed on the way"""
    model = small()
    watch.start(model)
    squared(model, 0).backward()
    watch.step()
    model.append(nn.Linear(2, 2))
    model[1] = nn.ReLU()
    squared(model, 1).backward()
    watch.step()
    del model[3]
    squared(model, 2).backward()
    watch.step()


@situation
def buffers(watch: Watch) -> None:
    """a buffer that is another tensor after every forward"""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            return x * self.count

    train(watch, nn.Sequential(nn.Linear(6, 2), Counting()))


@situation
def compiled(watch: Watch) -> None:
    """torch.compile with the eager backend"""
    torch._dynamo.reset()
    train(watch, torch.compile(small(), backend="eager"))


@situation
def compiled_in_place(watch: Watch) -> None:
    """Module.compile with the eager backend"""
    torch._dynamo.reset()
    model = small()
    model.compile(backend="eager")
    train(watch, model)


@situation
def traced(watch: Watch) -> None:
    """torch.jit.trace before the first forward, and on the way"""
    model = small()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    for step in range(STEPS):
        watch.keep("traced", torch.jit.trace(model, batch(9, 4, 6))(batch(step, 4, 6)))
        one_step(watch, model, optimizer, step)


@situation
def exported(watch: Watch) -> None:
    """torch.export, torch.fx and torch.jit.script on the way"""
    model = small()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    for step in range(STEPS):
        x = batch(step, 4, 6)
        for each in (
            torch.export.export(model, (x,)).module(),
            torch.fx.symbolic_trace(model),
            torch.jit.script(model),
        ):
            watch.keep("graph", each(x).detach())
        gc.collect()  # the exporter leaves weak references, until they are collected
        one_step(watch, model, optimizer, step)


@situation
def stopped_early(watch: Watch) -> None:
    """the training goes on after probe.stop()"""
    model = mlp()
    optimizer = sgd(model)
    watch.start(model, optimizer)
    one_step(watch, model, optimizer)
    loss = squared(model, 1)
    watch.stop()
    loss.backward()
    optimizer.step()
    watch.keep("weights", list(model.parameters()))
