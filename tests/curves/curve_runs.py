"""Runs for the tests of `probe curves`: logs written by hand, and toy trainings with the numpy framework."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import probe
from probe.curve_comparison import CurveComparison, curves
from probe.curve_comparison.reading.events import masked_crc32c
from tests.toy import nn
from tests.toy.tensor import Tensor, cross_entropy

VOCABULARY, WIDTH, BATCH = 24, 12, 16


def wave(count: int, period: float = 7.3, phase: float = 0.0) -> np.ndarray:
    """Return numbers between −1 and 1 that fluctuate, the same on every machine to the digits that are printed."""
    return np.sin(np.arange(count) * 2 * np.pi / period + phase)


def losses(count: int = 1000) -> np.ndarray:
    """Return a curve that falls from 5 to 2."""
    return 2 + 3 * np.exp(-np.arange(count) / 200) + 0.05 * wave(count, 11.7)


def write_csv(path: Path, first: int = 0, every: int = 1, **columns: Sequence[float] | np.ndarray) -> Path:
    """Write series of equal length as CSV, each number in full."""
    rows = [",".join(["step", *columns])]
    for index, values in enumerate(zip(*columns.values(), strict=True)):
        rows.append(",".join([str(first + index * every), *(repr(float(value)) for value in values)]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def megatron(values: Mapping[int, Mapping[str, float]], total: int = 5000) -> str:
    """Return lines as Megatron-LM prints them."""
    lines = ["[default0]: > building train, validation, and test datasets ..."]
    for step, row in values.items():
        lines.append(
            f" [2026-01-02 03:04:05] iteration {step:8d}/{total:8d} | consumed samples: {step * 64:12d} | elapsed time per "
            f"iteration (ms): 812.3 | learning rate: {row['lr']:.6E} | global batch size:    64 | lm loss: {row['loss']:.6E} | "
            f"loss scale: 1.0 | grad norm: {row['grad_norm']:.3f} | number of skipped iterations:   0 | number of nan "
            "iterations:   0 |"
        )
    return "\n".join(lines) + "\n"


def mindformers(values: Mapping[int, Mapping[str, float]], per_epoch: int, brackets: bool = False) -> str:
    """Return lines as MindFormers' MFLossMonitor logs them; steps are counted from 1, per epoch."""
    lines = [
        "2026-01-02 03:04:05,678 - mindformers[core/callback/callback.py:101] - INFO - ....... Start Training ......."
    ]
    for step, row in values.items():
        epoch, inside = divmod(step - 1, per_epoch)
        loss = f"loss:[{row['loss']:5.3f}/{row['loss'] + 1:5.3f}]" if brackets else f"loss: {row['loss']:5.3f}"
        lines.append(
            f"2026-01-02 03:04:05,678 - mindformers[core/callback/callback.py:529] - INFO - {{ Epoch:[{epoch + 1:3d}/  9], "
            f"step:[{inside + 1:5d}/{per_epoch:5d}], {loss}, per_step_time: 812ms, lr: {float(row['lr'])!r}, overflow cond: False, "
            f"loss_scale: 65536.0, global_norm: [{float(row['grad_norm'])!r}], train_throughput_per_npu: 41.245T"
        )
        lines.append(
            "2026-01-02 03:04:05,679 - mindformers[core/callback/callback.py:540] - INFO -   1.1% |█  | 12.3 samples/s/p }"
        )
    return "\n".join(lines) + "\n"


def event_file(scalars: Sequence[tuple[int, str, float]], style: str = "simple") -> bytes:
    """Return a TensorBoard event file; as a simple value, or as a tensor with content or with float_val."""
    out = _record(_message(1, 1, struct.pack("<d", 0.0)) + _message(3, 2, b"brain.Event:2"))
    for step, tag, value in scalars:
        if style == "simple":
            held = _message(2, 5, struct.pack("<f", value))
        elif style == "content":
            held = _message(8, 2, _message(1, 0, 1) + _message(2, 2, b"") + _message(4, 2, struct.pack("<f", value)))
        else:
            held = _message(8, 2, _message(1, 0, 1) + _message(2, 2, b"") + _message(5, 2, struct.pack("<f", value)))
        summary = _message(1, 2, _message(1, 2, tag.encode()) + held)
        out += _record(_message(1, 1, struct.pack("<d", 1.5)) + _message(2, 0, step) + _message(5, 2, summary))
    return out


def _record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


def _message(number: int, wire: int, value: int | bytes) -> bytes:
    tag = _varint(number << 3 | wire)
    if wire == 0:
        return tag + _varint(value)
    return tag + (_varint(len(value)) if wire == 2 else b"") + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


# Trainings


class Model(nn.Module):
    """Predicts the next of a few symbols."""

    def __init__(self) -> None:
        super().__init__(
            embed=nn.Embedding(VOCABULARY, WIDTH),
            layers=nn.ModuleList(
                *(nn.Sequential(nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2))
            ),
            norm=nn.RMSNorm(WIDTH),
            head=nn.Linear(WIDTH, VOCABULARY),
        )

    def forward(self, x: np.ndarray) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x))


def train(
    path: Path, steps: int, *, parts: int = 1, lr: float = 2e-3, decay: float = 0.0, decay_all: bool = False,
    change: Callable[[int, Model, Any], None] | None = None, **options: Any,
) -> Path:  # fmt: skip
    """Train the model on the same batches and record it; ``parts`` adds up the gradients of parts of a batch.

    ``change`` is called with step, model and optimizer when the gradients are there.
    """
    nn.manual_seed(0)
    model, rng = Model(), np.random.default_rng(1)
    small = [p for _, p, _ in model.named_tensors(nn.Parameter) if p.data.ndim < 2]
    large = [p for _, p, _ in model.named_tensors(nn.Parameter) if p.data.ndim >= 2]
    groups = [{"params": large, "weight_decay": decay}, {"params": small, "weight_decay": decay if decay_all else 0.0}]
    optimizer = nn.AdamW(groups, lr=lr)
    following = rng.dirichlet(np.full(VOCABULARY, 0.1), VOCABULARY).cumsum(axis=1)
    with probe.capture(model, path, **{"task": "norms", **options}):
        for step in range(steps):
            x = rng.integers(0, VOCABULARY, BATCH)
            y = (following[x] < rng.random((BATCH, 1))).sum(axis=1).clip(0, VOCABULARY - 1)
            total = 0.0
            for mine, theirs in zip(np.array_split(x, parts), np.array_split(y, parts), strict=True):
                loss = cross_entropy(model(Tensor(mine)), Tensor(theirs)) * (1 / parts)
                loss.backward()
                total += loss.item()
            if change is not None:
                change(step, model, optimizer)
            norm = float(np.sqrt(sum((p.grad.data.astype(np.float64) ** 2).sum() for p in (*large, *small))))
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=total, grad_norm=norm)
    return path


# Noise, and faults in it

LENGTHS = (20, 50, 100, 300, 1000)
SIZES = (1e-4, 0.003, 0.01, 0.03, 0.1, 0.3)
"""standard deviations of the difference; a loss may differ by 0.03, or by 1 %"""
CORRELATIONS = (0.0, 0.3, 0.6, 0.9, 0.97)
"""of neighbouring steps"""
ENDS = (0.05, 0.5, 2.0)
"""what the loss falls to from 5"""
FEWEST_INDEPENDENT = 5
"""steps times (1 − correlation); noise that never comes round is an offset to everybody"""


def noise(rng: np.random.Generator, steps: int, correlation: float) -> np.ndarray:
    """Return an autoregressive series of standard deviation 1."""
    shocks = rng.standard_normal(steps) * np.sqrt(1 - correlation**2)
    out = np.empty(steps)
    out[0] = rng.standard_normal()
    for step in range(1, steps):
        out[step] = correlation * out[step - 1] + shocks[step]
    return out


def falling(steps: int, end: float) -> np.ndarray:
    """Return a loss that falls from 5."""
    return end + (5 - end) * np.exp(-5 * np.arange(steps) / steps)


def noisy_pair(rng: np.random.Generator, index: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Return two runs that differ by noise alone, and what noise it is; every combination in turn."""
    every = [
        each
        for each in itertools.product(SIZES, CORRELATIONS, LENGTHS, ENDS)
        if each[2] * (1 - each[1]) >= FEWEST_INDEPENDENT
    ]
    size, correlation, steps, end = every[index * 37 % len(every)]
    curve = falling(steps, end)
    apart = size * noise(rng, steps, correlation)
    if index % 3 == 1:  # as large as the loss is
        apart = apart * curve / curve.mean()
    shared = 0.05 * rng.standard_normal(steps)  # from the batches, the same on both sides
    return (
        curve + shared,
        curve + shared + apart,
        f"{size}, correlation {correlation}, {steps} steps, to {end}, {index % 3 == 1}",
    )


def _from(steps: int, begins: int, value: float) -> np.ndarray:
    return np.where(np.arange(steps) >= begins, value, 0.0)


FAULTS: dict[str, Callable[[int, float], np.ndarray]] = {
    "offset": lambda steps, size: np.full(steps, size),
    "step change": lambda steps, size: _from(steps, steps * 2 // 5, size),
    "drift": lambda steps, size: size * np.linspace(0, 1, steps),
    "late drift": lambda steps, size: size * np.clip(np.linspace(-1, 1, steps), 0, None),
    "spike": lambda steps, size: np.where(np.arange(steps) == steps // 2, size, 0.0),
    "transient": lambda steps, size: size * np.exp(-20 * np.arange(steps) / steps),
}
"""what is added to B's loss, by number of steps and size"""


def verdict(folder: Path, a: np.ndarray, b: np.ndarray) -> CurveComparison:
    """Compare two losses."""
    return curves(write_csv(folder / "a.csv", loss=a), write_csv(folder / "b.csv", loss=b))
