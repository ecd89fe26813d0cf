"""Small trainings of every kind that probe must not disturb, in MindSpore.

Each `Case` builds a model and says how it is trained; `train` runs a few steps from a fixed seed, with or without
an observer, and returns everything that must come out bitwise the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

STEPS, ACCUMULATIONS = 3, 2


def batch(index: int, *shape: int) -> Tensor:
    return Tensor(np.random.default_rng(index).standard_normal(shape).astype(np.float32))


class Block(nn.Cell):
    """Linear, LayerNorm, GELU, noise, and a residual; MindSpore's Dropout does not repeat itself on the CPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm((width,)), nn.Dense(width, width), nn.GELU()

    def construct(self, x: Tensor) -> Tensor:
        return x + self.act(self.up(self.norm(x))) + 0.01 * ops.standard_normal(x.shape)


class Mlp(nn.Cell):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.blocks = nn.CellList([Block(6), Block(6)])
        self.head = nn.Dense(6, 3)
        if recompute:
            self.blocks[0].recompute()

    def construct(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Cnn(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.pool, self.head = nn.AvgPool2d(2, 2), nn.Dense(4 * 3 * 3, 3)

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(self.act(self.norm(self.conv(x))))
        return self.head(x.reshape(x.shape[0], -1))


class PartlyCompiled(nn.Cell):
    """A model of which one part is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Dense(6, 6), CompiledBlock(), nn.Dense(6, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


class CompiledBlock(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Dense(6, 6), nn.ReLU()

    @mindspore.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.act(self.layer(x))


class Recurrent(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 5, batch_first=True, bidirectional=True), nn.Dense(10, 3)

    def construct(self, x: Tensor) -> Tensor:
        out, (hidden, _) = self.lstm(x)
        return self.head(out[:, -1]) + hidden.sum()


class Encoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Dense(8, 3)

    def construct(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(ids)))


class Shared(nn.Cell):
    """One cell that is called twice, and a weight that is tied."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.tied = nn.Dense(6, 6), nn.Dense(6, 6)
        self.tied.weight = self.layer.weight
        self.frozen = Parameter(Tensor(np.full(6, 0.5, np.float32)), requires_grad=False)

    def construct(self, x: Tensor) -> Tensor:
        return self.tied(ops.tanh(self.layer(ops.tanh(self.layer(x))))) * self.frozen


Loss = Callable[[nn.Cell, int], Tensor]


def squared(*shape: int) -> Loss:
    return lambda model, index: model(batch(index, *shape)).square().mean()


def of_tokens(model: nn.Cell, index: int) -> Tensor:
    ids = Tensor(np.random.default_rng(index).integers(0, 16, (2, 5)).astype(np.int32))
    return model(ids).square().mean()


def by_momentum(weights: list[Parameter]) -> nn.Cell:
    return nn.Momentum(weights, 0.05, 0.9, weight_decay=0.01)


@dataclass
class Result:
    """What a training left behind; all of it must be the same with and without probe."""

    losses: list[bytes] = field(default_factory=list)
    gradients: list[list[bytes]] = field(default_factory=list)
    weights: dict[str, bytes] = field(default_factory=dict)
    states: dict[str, bytes] = field(default_factory=dict)
    random: list[bytes] = field(default_factory=list)


class Observer(Protocol):
    """What watches a training; the plain run has none."""

    def start(self, model: nn.Cell, optimizer: nn.Cell) -> None: ...

    def step(self, loss: Tensor) -> None: ...

    def stop(self) -> None: ...


Train = Callable[["Case", nn.Cell, nn.Cell, Result, Callable[[Tensor], None]], None]


def bits(tensor: Tensor) -> bytes:
    return tensor.asnumpy().tobytes()


def functional(case: Case, model: nn.Cell, optimizer: nn.Cell, result: Result, done: Callable[[Tensor], None]) -> None:
    """``value_and_grad``, with gradients that are added up over micro-batches."""
    weights = list(optimizer.parameters)
    scale = case.scale
    forward = mindspore.value_and_grad(lambda index: case.loss(model, index) * scale, None, weights)
    for step in range(STEPS):
        total: list[Tensor] | None = None
        for micro in range(ACCUMULATIONS):
            loss, gradients = forward(step * ACCUMULATIONS + micro)
            result.losses.append(bits(loss))
            result.gradients.append([bits(gradient) for gradient in gradients])
            total = list(gradients) if total is None else [a + b for a, b in zip(total, gradients, strict=True)]
        assert total is not None
        optimizer(tuple(gradient / scale for gradient in total) if scale != 1 else tuple(total))
        done(loss)


def compiled(case: Case, model: nn.Cell, optimizer: nn.Cell, result: Result, done: Callable[[Tensor], None]) -> None:
    """The whole step in one compiled function."""

    def forward(x: Tensor) -> Tensor:
        return model(x).square().mean()

    differentiate = mindspore.value_and_grad(forward, None, optimizer.parameters)

    @mindspore.jit
    def step(x: Tensor) -> Tensor:
        loss, gradients = differentiate(x)
        return ops.depend(loss, optimizer(gradients))

    for number in range(STEPS):
        loss = step(batch(number, 4, 6))
        result.losses.append(bits(loss))
        done(loss)


class WithLoss(nn.Cell):
    """A network with its loss, as ``nn.TrainOneStepCell`` takes it."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x: Tensor, label: Tensor) -> Tensor:
        return ((self.network(x) - label) ** 2).mean()


def one_step(case: Case, model: nn.Cell, optimizer: nn.Cell, result: Result, done: Callable[[Tensor], None]) -> None:
    """``nn.TrainOneStepCell``; the model that is recorded is inside it."""
    cell = nn.TrainOneStepCell(WithLoss(model), optimizer)
    cell.set_train()
    for step in range(STEPS):
        loss = cell(batch(step, 4, 6), batch(step + 50, 4, 3))
        result.losses.append(bits(loss))
        done(loss)


class Callback(mindspore.train.Callback):
    """Ends a step of `mindspore.train.Model`."""

    def __init__(self, result: Result, done: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.result, self.done = result, done

    def on_train_step_end(self, run_context: Any) -> None:
        loss = run_context.original_args().net_outputs
        self.result.losses.append(bits(loss))
        self.done(loss)


def by_model(case: Case, model: nn.Cell, optimizer: nn.Cell, result: Result, done: Callable[[Tensor], None]) -> None:
    """``mindspore.train.Model.train``."""
    batches = [(batch(i, 4, 6).asnumpy(), batch(i + 50, 4, 3).asnumpy()) for i in range(STEPS)]
    data = mindspore.dataset.GeneratorDataset(batches, ["x", "label"], shuffle=False)
    trainer = mindspore.train.Model(model, nn.MSELoss(), optimizer)
    trainer.train(1, data, callbacks=[Callback(result, done)], dataset_sink_mode=False)


@dataclass(frozen=True)
class Case:
    """One way to train."""

    build: Callable[[], nn.Cell]
    loss: Loss = squared(4, 6)
    optimizer: Callable[[list[Parameter]], nn.Cell] = by_momentum
    train: Train = functional
    scale: float = 1.0


def half(model: Mlp) -> nn.Cell:
    """Let a part run in float16; the CPU has no matrix product of 16-bit numbers."""
    model.blocks[0].act.to_float(mindspore.float16)
    return model


def in_groups(weights: list[Parameter]) -> nn.Cell:
    return nn.Adam([{"params": weights[:2], "lr": 0.02}, {"params": weights[2:], "weight_decay": 0.1}], 0.01)


CASES = {
    "mlp": Case(Mlp),
    "cnn_with_batch_norm": Case(Cnn, squared(3, 2, 6, 6)),
    "lstm": Case(Recurrent, squared(3, 4, 6)),
    "transformer": Case(Encoder, of_tokens, lambda w: nn.Adam(w, 0.01)),
    "shared_and_tied": Case(Shared),
    "recompute": Case(lambda: Mlp(recompute=True)),
    "sgd": Case(Mlp, optimizer=lambda w: nn.SGD(w, 0.05)),
    "adam": Case(Mlp, optimizer=lambda w: nn.Adam(w, [0.01, 0.02, 0.03], weight_decay=0.1)),
    "adam_weight_decay": Case(Mlp, optimizer=lambda w: nn.AdamWeightDecay(w, nn.CosineDecayLR(0.0, 0.01, 10))),
    "rmsprop": Case(Mlp, optimizer=lambda w: nn.RMSProp(w, 0.01)),
    "groups": Case(Mlp, optimizer=in_groups),
    "experimental_adamw": Case(Mlp, optimizer=lambda w: mindspore.experimental.optim.AdamW(w, lr=0.01)),
    "mint_sgd": Case(Mlp, optimizer=lambda w: mindspore.mint.optim.SGD(w, lr=0.01, momentum=0.9)),
    "loss_scale": Case(Mlp, scale=1024.0),
    "loss_scale_of_optimizer": Case(Mlp, optimizer=lambda w: nn.Momentum(w, 0.05, 0.9, loss_scale=4.0)),
    "float16": Case(lambda: half(Mlp())),
    "train_one_step_cell": Case(Mlp, train=one_step),
    "partly_compiled": Case(PartlyCompiled),
    "compiled_step": Case(Shared, train=compiled),
    "model_train": Case(Mlp, train=by_model),
}


def train(case: Case, observer: Observer | None = None) -> Result:
    """Train as the case says, from a fixed seed."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.set_seed(7)
    np.random.seed(7)
    result = Result()
    model = case.build()
    model.set_train()
    optimizer = case.optimizer(model.trainable_params())
    if observer:
        observer.start(model, optimizer)
    case.train(case, model, optimizer, result, observer.step if observer else lambda loss: None)
    if observer:
        observer.stop()
    result.weights = {name: bits(parameter) for name, parameter in model.parameters_and_names()}
    result.states = {parameter.name: bits(parameter) for parameter in optimizer.get_parameters()}
    result.random = [
        bits(mindspore.get_rng_state()),
        np.random.get_state()[1].tobytes(),
        bits(ops.standard_normal((3,))),
    ]
    return result
