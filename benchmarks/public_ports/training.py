"""One side's training: random weights, the other side's weights, the steps. What faults change stands in attributes."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.public_ports.pair import Batch, Pair, Side, expanded

DECAY = 0.1


class Training:
    """A model and AdamW, ready for `step`."""

    def __init__(self, side: Side, model: nn.Module, batch: Callable[[int], Batch], learning_rate: float) -> None:
        self.model, self.batch, self.loss = model, batch, side.loss
        self.loss_factor = 1.0
        self.before_update: list[Callable[[], Any]] = []
        """called between backward and the optimizer"""
        decayed = [p for p in model.parameters() if p.squeeze().dim() > 1]  # a layer scale [C, 1, 1] is none
        others = [p for p in model.parameters() if p.squeeze().dim() < 2]
        self.groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(self.groups, lr=learning_rate, betas=(0.9, 0.95), foreach=False)

    def module(self, path: str) -> Any:
        """Return the module of a path."""
        return self.model.get_submodule(path)

    def step(self, index: int) -> Tensor:
        """Train a step; returns its loss, detached."""
        torch.manual_seed(index)
        loss = self.loss(self.model, self.batch(index)) * self.loss_factor
        loss.backward()
        for change in self.before_update:
            change()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def state(self) -> dict[str, Any]:
        """Return copies of all parameters and buffers."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {name: tensor.detach().to_dense().clone() for name, tensor in named}

    def gradients(self) -> dict[str, Any]:
        """Return copies of all gradients that there are."""
        named = self.model.named_parameters()
        return {name: tensor.grad.clone() for name, tensor in named if tensor.grad is not None}

    def regroup(self, glob: str, **options: Any) -> None:
        """Give the parameters whose names match options of their own."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for group in list(self.optimizer.param_groups):
            chosen = [p for p in group["params"] if fnmatchcase(names[p], glob)]
            if chosen:
                group["params"] = [p for p in group["params"] if not fnmatchcase(names[p], glob)]
                self.optimizer.add_param_group({**group, "params": chosen, **options})


def training_of(pair: Pair, side: str, fault: str = "") -> Any:
    """Return the training of a side, ``"a"`` or ``"b"``; of B with a fault, or without."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model_a = pair.a.build()
    randomise(model_a)
    if side == "a":
        return Training(pair.a, model_a, pair.batch, pair.learning_rate)
    torch.manual_seed(1)
    model_b = pair.b.build()
    (pair.convert or _copied(pair))(model_a, model_b)
    training = (pair.training_b or Training)(pair.b, model_b, pair.batch, pair.learning_rate)
    if fault:
        pair.fault(fault).plant(training)
    return training


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Give every weight values of a size as training has them: biases of 0 and norms of 1 would hide mistakes."""
    generator = torch.Generator().manual_seed(7)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            noise = torch.randn(parameter.shape, generator=generator)
            if isinstance(module, nn.Embedding):
                parameter.copy_(0.5 * noise)
            elif name == "weight" and parameter.dim() > 1:
                parameter.copy_(0.8 * noise / (parameter.numel() / len(parameter)) ** 0.5)
            else:
                parameter.add_(0.1 * noise)


def _copied(pair: Pair) -> Callable[[nn.Module, nn.Module], None]:
    """Return what makes B's weights of A's."""

    @torch.no_grad()
    def convert(model_a: nn.Module, model_b: nn.Module) -> None:
        a, b = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (model_a, model_b))
        missing = {name for name, _ in model_b.named_parameters()}
        paths = [path for path, _ in model_a.named_modules()]
        relations = pair.relations(paths)
        wholes = [right for _, right in relations]
        for left, right in relations:
            for name, tensor in a.items():
                path, _, own = name.rpartition(".")
                target = f"{right}.{own}" if right else own
                if path == left and target in b and wholes.count(right) == 1 and b[target].shape == tensor.shape:
                    b[target].copy_(tensor)
                    missing.discard(target)
        for pattern, (make, *sources) in (pair.weights or {}).items():
            for target, source in expanded(pattern, " ".join(sources), b):
                b[target].copy_(make(*(a[name] for name in source.split())))
                missing.discard(target)
        if missing:
            raise ValueError(f"{pair.name}: nothing says how these parameters of B are made: {sorted(missing)}")

    return convert


# What the files of pairs share


def same(x: Tensor) -> Tensor:
    """Return a weight as it is."""
    return x


def stacked(*parts: Tensor) -> Tensor:
    """Return weights one after the other."""
    return torch.cat(parts)


def next_tokens(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the mean loss of the next tokens."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
