"""A training of a torch model that faults and clean changes can take apart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .spec import HERE, Side

Batch = dict[str, Any]
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
CAST = {"autocast": torch.bfloat16, "autocast16": torch.float16}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of most trainings here."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.05)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Momentum and decay."""
    wanted = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(wanted, lr=0.05, momentum=0.9, weight_decay=1e-4)


@dataclass(eq=False)
class Training:
    """A model, its batches (for each step a list of micro-batches) and how a step is done."""

    model: nn.Module
    predict: Callable[[Any, Batch], Any]
    criterion: Callable[[Any, Batch], torch.Tensor]
    batches: list[list[Batch]]
    optimize: Callable[[nn.Module], Any] = adamw
    schedule: Callable[[Any], Any] | None = None
    clip: float | None = None
    cast: torch.dtype | None = None
    scaler: Any = None
    zero: bool = True
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    before_step: list[Callable[[int], None]] = field(default_factory=list)
    after_backward: list[Callable[[int], None]] = field(default_factory=list)
    after_step: list[Callable[[int], None]] = field(default_factory=list)
    backward: Callable[[torch.Tensor], None] = torch.Tensor.backward
    watch: Callable[[str], None] = lambda event: None
    others: list[nn.Module] = field(default_factory=list)
    here: str = ""
    _optimizer: Any = None
    _schedule: Any = None

    @property
    def optimizer(self) -> Any:
        """Made when it is first asked for, so that changes of the model come before."""
        if self._optimizer is None:
            self._optimizer = self.optimize(self.model)
            self._schedule = self.schedule(self._optimizer) if self.schedule else None
        return self._optimizer

    def at(self, path: str) -> Any:
        """The module at a path; `HERE` is that of the fault which is being planted."""
        return self.model.get_submodule(self.here if path == HERE else path)

    def as_dtype(self, dtype: str) -> None:
        """Use another precision."""
        if dtype in HALF:
            for module in (self.model, *self.others):
                module.to(HALF[dtype])
            self.batches = [[_half(batch, HALF[dtype]) for batch in step] for step in self.batches]
        elif dtype in CAST:
            self.cast = CAST[dtype]
            if dtype == "autocast16":
                self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        elif dtype == "float64":
            self.model.double()
            self.batches = [[_half(batch, torch.float64) for batch in step] for step in self.batches]

    def loss(self, batch: Batch) -> torch.Tensor:
        """Forward and loss of one micro-batch."""
        cast = torch.autocast("cpu", dtype=self.cast) if self.cast else contextlib.nullcontext()
        with self.context(), cast:
            return self.criterion(self.predict(self.model, batch), batch)

    def step(self, number: int) -> torch.Tensor:
        """One optimizer step; returns its loss."""
        for act in self.before_step:
            act(number)
        optimizer = self.optimizer
        if self.zero:
            optimizer.zero_grad()
        micros, total = self.batches[number], None
        for batch in micros:
            loss = self.loss(batch)
            self.watch("loss")
            share = loss / len(micros) if len(micros) > 1 else loss
            self.backward(self.scaler.scale(share) if self.scaler else share)
            total = share.detach() if total is None else total + share.detach()
        self.watch("gradient")
        if self.scaler:
            self.scaler.unscale_(optimizer)
        for act in self.after_backward:
            act(number)
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self.model.parameters()), self.clip)
        if self.scaler:
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        for act in self.after_step:
            act(number)
        return total


def training_of(side: Side) -> Training:
    """The training of a side, ready to run."""
    torch.set_num_threads(1)
    torch.manual_seed(side.model.seed)
    build = side.model.port if side.side == "b" and side.model.port else side.model.build
    training = build()
    if side.dtype != "float32":
        training.as_dtype(side.dtype)
    for change in side.changes:
        change(training)
    return training


def _half(batch: Batch, dtype: torch.dtype) -> Batch:
    return {k: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in batch.items()}


def lively(model: nn.Module, seed: int = 3) -> nn.Module:
    """Give a fresh model weights as trained ones are: of unit gain, norms near 1, biases not 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            else:
                parameter.add_(0.1 * noise)
    return model


def generator(name: str) -> torch.Generator:
    """Random numbers for the data of a model, the same on both sides."""
    return torch.Generator().manual_seed(sum(ord(letter) * (i + 1) for i, letter in enumerate(name)))


def batches(make: Callable[[torch.Generator], Batch], name: str, steps: int = 3) -> list[list[Batch]]:
    """One micro-batch for each step."""
    numbers = generator(name)
    return [[make(numbers)] for _ in range(steps)]


def ids(g: torch.Generator, *shape: int, below: int) -> torch.Tensor:
    """Token ids."""
    return torch.randint(0, below, shape, generator=g)


def normal(g: torch.Generator, *shape: int) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=g)


def uniform(g: torch.Generator, *shape: int) -> torch.Tensor:
    """Numbers from 0 to 1."""
    return torch.rand(*shape, generator=g)


def call(**names: str) -> Callable[[Any, Batch], Any]:
    """Call the model with some entries of the batch: `call(x="images")`."""
    return lambda model, batch: model(**{argument: batch[name] for argument, name in names.items()})


def give(*names: str) -> Callable[[Any, Batch], Any]:
    """Call the model with some entries of the batch, by position."""
    return lambda model, batch: model(*(batch[name] for name in names))


def token_loss(logits: Any, batch: Batch) -> torch.Tensor:
    """Cross entropy over the last axis."""
    logits = getattr(logits, "logits", logits)
    return nn.functional.cross_entropy(logits.float().flatten(0, -2), batch["labels"].flatten())


def next_token_loss(logits: Any, batch: Batch) -> torch.Tensor:
    """Cross entropy of the next token."""
    logits = getattr(logits, "logits", logits)
    return nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch["labels"][:, 1:].flatten())


def squared(output: Any, batch: Batch) -> torch.Tensor:
    """Mean squared error."""
    return nn.functional.mse_loss(output.float(), batch["target"].float())


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Compute with another number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
