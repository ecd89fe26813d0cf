"""One side's training: the model with what its setup asks for, the loss, the optimizer, the faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.batches import Batch
from benchmarks.localisation.models.building import batch, build
from benchmarks.localisation.models.registry import ARCHITECTURES
from benchmarks.localisation.pairs.pair import Setup

LR = {"adamw": 1e-3, "sgd": 0.05}
DECAY = 0.1
IGNORED = -100


class Run:
    """A model and its optimizer, ready for `step`. What faults change stands in attributes."""

    def __init__(self, setup: Setup, faults: Mapping[str, Any]) -> None:
        torch.set_num_threads(setup.threads)
        self.setup, self.faults = setup, faults
        self.architecture = ARCHITECTURES[setup.architecture]
        self.model = build(setup)
        _legitimate(self.model, setup)
        self.shift, self.ignored, self.smoothing, self.reduction = self.architecture.shifted, IGNORED, 0.0, "mean"
        self.auxiliary = self.architecture.auxiliary
        self.loss_factor = 1.0
        """by which the loss is multiplied"""
        self.backward_factor = setup.loss_scale
        """by which the loss is multiplied for backward only"""
        self.kept_micros: slice = slice(None)
        """those of the micro-batches whose gradients are not thrown away"""
        self.clears = True
        self.before_update: list[Callable[[], None]] = []
        self.schedule: Callable[[int], float] = lambda step: 1.0
        self.given: list[Callable[[Batch], Batch]] = []
        """change what the model is given"""
        self.names = {parameter: name for name, parameter in self.model.named_parameters()}
        self.optimizers = [self._optimizer(model) for model in self.parts]

    @property
    def parts(self) -> list[nn.Module]:
        """The models that are trained, each with an optimizer of its own."""
        return [self.model]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """All groups of parameters."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self, index: int) -> Tensor:
        """Train a step; returns its loss, detached."""
        self.begin(index)
        loss = self.backward(index)
        self.update(index)
        return loss

    def begin(self, index: int) -> None:
        """Plant the faults that begin with this step, and seed."""
        for planted in self.setup.planted:
            if planted.step == index:
                self.faults[planted.fault].plant(self, planted)
        torch.manual_seed(index)

    def batch(self, index: int) -> Batch:
        """Return what the step is given."""
        given = batch(self.setup, index)
        for change in self.given:
            given = change(given)
        return given

    def backward(self, index: int) -> Tensor:
        """Run forward and backward of all micro-batches."""
        given = self.batch(index)
        target = given.pop("target")
        total = torch.zeros(())
        count = self.count(target)
        targets = target.chunk(self.setup.micros)
        for number, wanted in enumerate(targets):
            part = {key: value.chunk(self.setup.micros)[number] for key, value in given.items()}
            with torch.autocast("cpu", torch.bfloat16, enabled=self.setup.dtype == "autocast"):
                found = self.model(**part)
            loss = self.loss(found if isinstance(found, Tensor) else found.logits, wanted, count)
            if self.auxiliary:
                loss = loss + self.auxiliary * found.aux_loss / len(targets)
            (loss * self.backward_factor).backward()
            if number not in range(len(targets))[self.kept_micros]:
                self.clear()
            total += loss.detach()
        return total

    def loss(self, output: Tensor, target: Tensor, count: int) -> Tensor:
        """Return the part of the mean loss that a micro-batch has; the whole step has ``count`` targets."""
        if target.is_floating_point():
            total = F.mse_loss(output.float(), target.float(), reduction="sum")
        else:
            if self.shift:
                output, target = output[:, :-1], target[:, 1:]
            output = output.float().flatten(0, -2)
            total = F.cross_entropy(
                output, target.flatten(), ignore_index=self.ignored, label_smoothing=self.smoothing, reduction="sum"
            )
        return total * self.loss_factor / (count if self.reduction == "mean" else 1)

    def count(self, target: Tensor) -> int:
        """Return how many targets there are in a step."""
        if target.is_floating_point():
            return target.numel()
        target = target[:, 1:] if self.shift else target
        return int((target != self.ignored).sum())

    def update(self, index: int) -> None:
        """Let the optimizers change the parameters, and clear the gradients."""
        if self.setup.loss_scale != 1:
            for parameter in self.names:
                if parameter.grad is not None:
                    parameter.grad /= self.setup.loss_scale
        if self.setup.clip:
            nn.utils.clip_grad_norm_(list(self.names), self.setup.clip)
        for change in self.before_update:
            change()
        for optimizer in self.optimizers:
            self._update(optimizer, index)
        if self.clears:
            self.clear()

    def clear(self) -> None:
        """Throw all gradients away."""
        for parameter in self.names:
            parameter.grad = None

    def regroup(self, glob: str, **hyper: Any) -> None:
        """Give the parameters whose names match hyper-parameters of their own."""
        for optimizer in self.optimizers:
            for group in list(optimizer.param_groups):
                chosen = [p for p in group["params"] if fnmatchcase(self.names[p], glob)]
                if chosen:
                    group["params"] = [p for p in group["params"] if not fnmatchcase(self.names[p], glob)]
                    optimizer.add_param_group({**group, "params": chosen, **hyper})
                    optimizer.param_groups[:] = [each for each in optimizer.param_groups if each["params"]]

    def _update(self, optimizer: torch.optim.Optimizer, index: int) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * self.schedule(index)
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        parameters = list(model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        rate = LR[self.setup.optimizer]
        kernels = {"foreach": False, "fused": self.setup.fused and self.setup.dtype == "fp32"}
        if self.setup.optimizer == "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=0.9, **kernels)
        eps = 1e-4 if "fp16" in (self.setup.dtype, self.setup.rounded_to) else 1e-8  # 1e-8 is 0 in fp16
        return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=eps, **kernels)


class Game(Run):
    """A generator against a discriminator, which learns first; each has its optimizer."""

    @property
    def parts(self) -> list[nn.Module]:
        """The models that are trained, each with an optimizer of its own."""
        return list(self.model)

    def backward(self, index: int) -> Tensor:
        """Run both halves of a step up to the generator's gradients."""
        given = self.batch(index)
        generator, discriminator = self.model
        with torch.autocast("cpu", torch.bfloat16, enabled=self.setup.dtype == "autocast"):
            fake = generator(given["noise"])
            scores = discriminator(given["real"]), discriminator(fake.detach())
        first = (self._wants(scores[0], 1.0) + self._wants(scores[1], 0.0)) * self.loss_factor
        (first * self.backward_factor).backward()
        for change in self.before_update:
            change()
        self._update(self.optimizers[1], index)
        discriminator.requires_grad_(False)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.setup.dtype == "autocast"):
            score = discriminator(fake)
        second = self._wants(score, 1.0)
        second.backward()
        discriminator.requires_grad_(True)
        return (first + second).detach()

    def update(self, index: int) -> None:
        """Let the generator's optimizer change it, and clear the gradients."""
        self._update(self.optimizers[0], index)
        if self.clears:
            self.clear()

    def _wants(self, score: Tensor, value: float) -> Tensor:
        wanted = torch.full_like(score, value - self.smoothing * (2 * value - 1)).float()
        return F.binary_cross_entropy_with_logits(score.float(), wanted)


def _legitimate(model: nn.Module, setup: Setup) -> None:
    """Compute the same in another way, where the setup asks for it."""
    for module in model.modules():
        is_linear = type(module).forward is nn.Linear.forward  # a router is one too, and returns something else
        if is_linear and setup.split > 1 and module.in_features % setup.split == 0:
            module.forward = _split(module, setup.split)
        elif setup.doubled and (is_linear or isinstance(module, (nn.Conv2d, nn.ConvTranspose2d))):
            module.forward = _doubled(module)
        elif setup.fused and (isinstance(module, nn.LayerNorm) or "activation" in type(module).__module__):
            module.forward = _fused(module)


def _split(linear: nn.Linear, parts: int) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        pairs = zip(x.chunk(parts, -1), linear.weight.chunk(parts, 1), strict=True)
        total = sum(F.linear(each, weight) for each, weight in pairs)
        return total if linear.bias is None else total + linear.bias.to(total.dtype)

    return forward


def _doubled(module: nn.Module) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        weight = module.weight.double()
        bias = None if module.bias is None else module.bias.double()
        if isinstance(module, nn.Linear):
            found = F.linear(x.double(), weight, bias)
        elif isinstance(module, nn.Conv2d):
            found = F.conv2d(x.double(), weight, bias, module.stride, module.padding, module.dilation, module.groups)
        else:
            found = F.conv_transpose2d(x.double(), weight, bias, module.stride, module.padding)
        return found.to(x.dtype)

    return forward


def _fused(module: nn.Module) -> Callable[[Tensor], Tensor]:
    forward = module.forward

    def wide(x: Tensor) -> Tensor:
        if not isinstance(module, nn.LayerNorm):
            return forward(x.double()).to(x.dtype)
        weight, bias = (None if each is None else each.double() for each in (module.weight, module.bias))
        return F.layer_norm(x.double(), module.normalized_shape, weight, bias, module.eps).to(x.dtype)

    return wide
