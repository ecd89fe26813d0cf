"""Situations of PyTorch that differ in one piece: an optimizer, a layer, a loss, a dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn, optim

from benchmarks.situations.table import SITUATIONS
from benchmarks.situations.watching import Watch

STEPS = 2
Build = Callable[[], nn.Module]
Loss = Callable[[nn.Module, int], Tensor]


def batch(index: int, *shape: int) -> Tensor:
    """Return the index-th batch, of which nothing is drawn from the global generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(index))


def tokens(index: int, *shape: int, words: int = 16) -> Tensor:
    """Return the index-th batch of words."""
    return torch.randint(words, shape, generator=torch.Generator().manual_seed(index))


def mlp() -> nn.Module:
    """Return a small model with dropout and a norm."""
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))


def squared(model: nn.Module, index: int) -> Tensor:
    """Return the mean square of the output for a batch of rows."""
    return model(batch(index, 4, 6)).square().mean()


def train(
    watch: Watch,
    model: nn.Module,
    loss: Loss = squared,
    optimizer: Any = None,
    steps: int = STEPS,
    closure: bool = False,
) -> None:
    """Train as anybody does."""
    optimizer = optimizer or optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    watch.start(model, optimizer)
    for step in range(steps):

        def evaluate(step: int = step) -> Tensor:
            optimizer.zero_grad()
            value = loss(model, step)
            value.backward()
            return value

        value = optimizer.step(evaluate) if closure else evaluate()
        if not closure:
            optimizer.step()
        watch.step(value.detach())


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: optim.SGD(p, 0.05),
    "SGD, Nesterov, decay": lambda p: optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, maximize": lambda p: optim.SGD(p, 0.01, maximize=True),
    "SGD, foreach": lambda p: optim.SGD(p, 0.05, momentum=0.9, foreach=True),
    "SGD, fused": lambda p: optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p, 0.01),
    "Adam, amsgrad": lambda p: optim.Adam(p, 0.01, amsgrad=True),
    "Adam, foreach": lambda p: optim.Adam(p, 0.01, foreach=True),
    "Adam, fused": lambda p: optim.Adam(p, 0.01, fused=True),
    "Adam, learning rate as a tensor": lambda p: optim.Adam(p, torch.tensor(0.01)),
    "AdamW": lambda p: optim.AdamW(p, 0.01),
    "AdamW, fused": lambda p: optim.AdamW(p, 0.01, fused=True),
    "AdamW, foreach off": lambda p: optim.AdamW(p, 0.01, foreach=False),
    "Adamax": lambda p: optim.Adamax(p, 0.01),
    "NAdam": lambda p: optim.NAdam(p, 0.01),
    "RAdam": lambda p: optim.RAdam(p, 0.01),
    "Adagrad": lambda p: optim.Adagrad(p, 0.01),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adafactor": lambda p: optim.Adafactor(p),
    "RMSprop": lambda p: optim.RMSprop(p, 0.01),
    "RMSprop, centred, momentum": lambda p: optim.RMSprop(p, 0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: optim.Rprop(p, 0.01),
    "ASGD": lambda p: optim.ASGD(p, 0.01),
}

LAYERS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "Conv1d": (lambda: nn.Conv1d(2, 3, 3), (2, 2, 6)),
    "Conv2d, groups, reflected": (lambda: nn.Conv2d(2, 4, 3, groups=2, padding=1, padding_mode="reflect"), (2, 2, 5, 5)),
    "Conv3d": (lambda: nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(2, 3, 2, stride=2), (1, 2, 3, 3)),
    "Conv2d, channels last": (
        lambda: nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last), (2, 2, 5, 5)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), (4, 6)),
    "BatchNorm2d, no statistics": (lambda: nn.BatchNorm2d(2, track_running_stats=False), (2, 2, 3, 3)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(2, affine=True), (2, 2, 3, 3)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    "RMSNorm": (lambda: nn.RMSNorm(6), (4, 6)),
    "LocalResponseNorm": (lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.LocalResponseNorm(2)), (1, 2, 3, 3)),
    "pooling, adaptive and with indices": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)), (1, 2, 4, 4)),
    "PixelShuffle, Upsample": (
        lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.PixelShuffle(2), nn.Upsample(scale_factor=2)), (1, 1, 2, 2)),
    "Flatten, Unflatten": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Unflatten(1, (2, 2))), (2, 3, 4)),
    "PReLU": (lambda: nn.PReLU(6), (4, 6)),
    "RReLU, drawn slopes": (lambda: nn.Sequential(nn.Linear(6, 6), nn.RReLU()), (4, 6)),
    "Dropout2d, AlphaDropout": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.Dropout2d(0.5), nn.AlphaDropout(0.2)), (2, 2, 3, 3)),
    "Softmax, LogSoftmax": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1), nn.LogSoftmax(-1)), (4, 6)),
    "GLU": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GLU()), (4, 6)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8)),
    "TransformerEncoderLayer, norm first": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, dropout=0.1), (3, 2, 8)),
}  # fmt: skip

IN_PLACE: dict[str, Callable[[], nn.Module]] = {
    "ReLU": lambda: nn.ReLU(True), "LeakyReLU": lambda: nn.LeakyReLU(0.1, True), "ELU": lambda: nn.ELU(inplace=True),
    "SELU": lambda: nn.SELU(True), "CELU": lambda: nn.CELU(inplace=True), "SiLU": lambda: nn.SiLU(True),
    "Mish": lambda: nn.Mish(True), "Hardtanh": lambda: nn.Hardtanh(inplace=True), "ReLU6": lambda: nn.ReLU6(True),
    "Hardsigmoid": lambda: nn.Hardsigmoid(True), "Hardswish": lambda: nn.Hardswish(True),
    "Threshold": lambda: nn.Threshold(0.1, 0.0, True), "Dropout": lambda: nn.Dropout(0.3, True),
}  # fmt: skip

LOSSES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "MSELoss": lambda y, i: nn.MSELoss()(y, batch(i + 9, 4, 3)),
    "L1Loss": lambda y, i: nn.L1Loss(reduction="sum")(y, batch(i + 9, 4, 3)),
    "SmoothL1Loss": lambda y, i: nn.SmoothL1Loss()(y, batch(i + 9, 4, 3)),
    "HuberLoss": lambda y, i: nn.HuberLoss()(y, batch(i + 9, 4, 3)),
    "CrossEntropyLoss, smoothed": lambda y, i: nn.CrossEntropyLoss(label_smoothing=0.1)(y, tokens(i, 4, words=3)),
    "NLLLoss": lambda y, i: nn.NLLLoss()(y.log_softmax(-1), tokens(i, 4, words=3)),
    "BCEWithLogitsLoss": lambda y, i: nn.BCEWithLogitsLoss()(y, batch(i, 4, 3).sigmoid()),
    "KLDivLoss": lambda y, i: nn.KLDivLoss(reduction="batchmean")(y.log_softmax(-1), batch(i, 4, 3).softmax(-1)),
    "CosineEmbeddingLoss": lambda y, i: nn.CosineEmbeddingLoss()(y, batch(i, 4, 3), torch.ones(4)),
    "TripletMarginLoss": lambda y, i: nn.TripletMarginLoss()(y, batch(i, 4, 3), batch(i + 1, 4, 3)),
    "GaussianNLLLoss": lambda y, i: nn.GaussianNLLLoss()(y, batch(i, 4, 3), torch.ones(4, 3)),
}

DTYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16, "complex64": torch.complex64}


def _optimizer(make: Callable[[Any], Any], watch: Watch) -> None:
    model = mlp()
    train(watch, model, optimizer=make(model.parameters()))


def _layer(build: Build, shape: tuple[int, ...], watch: Watch) -> None:
    train(watch, nn.Sequential(build()), lambda model, index: model(batch(index, *shape)).square().mean())


def _in_place(build: Build, watch: Watch) -> None:
    train(watch, nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), build(), nn.Linear(6, 2)))


def _loss(criterion: Callable[[Tensor, int], Tensor], watch: Watch) -> None:
    train(watch, mlp(), lambda model, index: criterion(model(batch(index, 4, 6)), index))


def _dtype(dtype: torch.dtype, watch: Watch) -> None:
    model = nn.Sequential(nn.Linear(6, 4, dtype=dtype), nn.Tanh(), nn.Linear(4, 2, dtype=dtype))
    train(watch, model, lambda model, index: model(batch(index, 4, 6).to(dtype)).abs().square().mean())


def _enter() -> None:
    for name, make in OPTIMIZERS.items():
        SITUATIONS[f"optimizer: {name}"] = functools.partial(_optimizer, make)
    for name, (build, shape) in LAYERS.items():
        SITUATIONS[f"layer: {name}"] = functools.partial(_layer, build, shape)
    for name, build in IN_PLACE.items():
        SITUATIONS[f"in place: {name}"] = functools.partial(_in_place, build)
    for name, criterion in LOSSES.items():
        SITUATIONS[f"loss: {name}"] = functools.partial(_loss, criterion)
    for name, dtype in DTYPES.items():
        SITUATIONS[f"dtype: {name}"] = functools.partial(_dtype, dtype)


_enter()
