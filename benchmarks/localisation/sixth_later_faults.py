"""The new kinds of faults of the sixth set from the loss on, one line each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.porting_faults import attention, is_centred, loss_by
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import Fault, Plant, at, before_update, given, hyper, knob
from benchmarks.localisation.tools.training import Run

# Loss


def _size(planted: Planted, default: float) -> float:
    return default if planted.size is None else planted.size


def _by_output(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    """Return what changes the model's output before the loss is taken."""

    def plant(run: Run, planted: Planted) -> None:
        size = _size(planted, default)
        loss_by(lambda run, right, output, target, count: right(change(output, size), target, count))(run, planted)

    return plant


def _absolute(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    return F.l1_loss(output.float(), target.float(), reduction="sum") / count


def _by_rows(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    return right(output, target, len(target) * run.setup.micros)


def _binary(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    wanted = F.one_hot(target, output.shape[-1]).float()
    return F.binary_cross_entropy_with_logits(output.float(), wanted, reduction="sum") / count


def _weighted(run: Run, planted: Planted) -> None:
    size = _size(planted, 1.0)

    def loss(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
        weights = torch.ones(output.shape[-1])
        weights[: len(weights) // 2] += size
        return F.cross_entropy(output.float(), target, weight=weights, reduction="sum") / count

    loss_by(loss)(run, planted)


def _without_first(target: Tensor, size: float) -> Tensor:
    target = target.clone()
    target[:, : int(size)] = -100
    return target


# Backward


class _Unsummed(torch.autograd.Function):
    """A softmax whose backward leaves out the sum over all weights."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        found = F.softmax(scores, dim=-1, dtype=torch.float32)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        return gradient * found


def _turned_again(module: nn.Module, size: float) -> None:
    """Let rope turn what is passed back by the same angle instead of the opposite one."""
    right = sys.modules[type(module).__module__].apply_rotary_pos_emb

    def turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
        found = right(q.detach(), k.detach(), cos, sin, *rest, **more)
        return (
            surgery.Derived.apply(found[0], q, lambda x: right(x, x, cos, -sin, *rest, **more)[0]),
            surgery.Derived.apply(found[1], k, lambda x: right(x, x, cos, -sin, *rest, **more)[1]),
        )

    surgery.with_global(module, "apply_rotary_pos_emb", turn)


def _passing_back(wrong: Callable[[nn.Module, surgery.Forward, Tensor], Tensor]) -> Callable[[nn.Module, float], None]:
    """Return what lets a module pass back the derivative of another function of its first argument."""

    def plant(module: nn.Module, size: float) -> None:
        def forward(original: surgery.Forward, x: Tensor) -> Any:
            found = original(x.detach())
            first = found[0] if isinstance(found, tuple) else found
            derived = surgery.Derived.apply(first, x, lambda each: wrong(module, original, each))
            return (derived, *found[1:]) if isinstance(found, tuple) else derived

        surgery.around(module, forward)

    return plant


def _truncated(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    first, second = x.tensor_split(2, 1)
    before, state = forward(first)
    return torch.cat([before, forward(second, state.detach())[0]], 1)


def _mean_kept(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    """Return a norm that takes the mean for a constant."""
    wide = x.float()
    centred = wide - wide.mean(-1, keepdim=True).detach() * is_centred(module)
    eps = next(getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name))
    found = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (found * module.weight.detach()).to(x.dtype)


def _not_turned(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    weight = module.weight.detach().flip(2, 3)
    return F.conv2d(x, weight, None, module.stride, module.padding, module.dilation, module.groups)


def _narrow_weight(module: nn.Module, forward: surgery.Forward, x: Tensor) -> Tensor:
    weight = module.weight.detach()
    return F.linear(x, weight.bfloat16().to(weight.dtype))


def _scores_detached(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, *args: Any, **kwargs: Any) -> Any:
        return tuple(each.detach() for each in original(*args, **kwargs))

    surgery.around(module, forward)


# Gradients


def _hook(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    """Return what changes the gradient of a module's weight, or of the first of its own parameters."""

    def plant(module: nn.Module, size: float) -> None:
        parameter = getattr(module, "weight", None)
        parameter = next(module.parameters(recurse=False)) if parameter is None else parameter
        parameter.register_hook(lambda gradient: change(gradient, size))

    return at(plant, default)


def _without_second(gradient: Tensor, size: float) -> Tensor:
    first, second, third = gradient.chunk(3)
    return torch.cat([first, torch.zeros_like(second), third])


def _in_eight_bits(gradient: Tensor, size: float) -> Tensor:
    scale = gradient.abs().max().clamp_min(1e-30) / torch.finfo(torch.float8_e5m2).max
    return (gradient / scale).to(torch.float8_e5m2).to(gradient.dtype) * scale


def _half_of_batch(module: nn.Linear, size: float) -> None:
    """Let the first half of the samples give a weight its gradient; what is passed back stays right."""

    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        weight = module.weight
        module._parameters["weight"] = weight.detach()
        try:
            found = original(x)
        finally:
            module._parameters["weight"] = weight
        kept = torch.arange(len(x)).lt(len(x) // 2).reshape(-1, *[1] * (x.dim() - 1))
        part = F.linear(x.detach() * kept, weight).to(found.dtype)
        return found + (part - part.detach())

    surgery.around(module, forward)


# Clipping and scaling


def _gradients(run: Run) -> list[Tensor]:
    return [parameter.grad for parameter in run.names if parameter.grad is not None]


def _clipped_by(norm: Callable[[Run, float], Tensor], default: float = 0.0) -> Plant:
    """Return what clips all gradients by another norm."""

    def plant(run: Run, planted: Planted) -> None:
        most, size = run.setup.clip, _size(planted, default)
        run.setup = replace(run.setup, clip=0.0)

        def clip() -> None:
            factor = (most / (norm(run, size) + 1e-6)).clamp_max(1.0)
            for gradient in _gradients(run):
                gradient.mul_(factor)

        run.before_update.append(clip)

    return plant


def _norm_of_half(run: Run, size: float) -> Tensor:
    gradients = _gradients(run)
    return torch.stack([gradient.float().norm() for gradient in gradients[: len(gradients) // 2]]).norm()


def _counted_often(run: Run, size: float) -> Tensor:
    squares = [g.float().square().sum() * (size if g.dim() < 2 else 1) for g in _gradients(run)]
    return torch.stack(squares).sum().sqrt()


def _divided(run: Run, by: float) -> None:
    for gradient in _gradients(run):
        gradient.div_(by)


def _through_bf16(run: Run, planted: Planted) -> None:
    for gradient in _gradients(run):
        gradient.copy_(gradient.bfloat16())


# The optimizer


class _HalfCorrected(surgery.ByHand):
    """AdamW that corrects the bias of the first moment only."""

    def quotient(self, state: dict[str, Tensor], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return the two parts of what the learning rate is multiplied with."""
        return state["exp_avg"] / (1 - group["betas"][0] ** state["step"]), state["exp_avg_sq"].sqrt() + group["eps"]


def _half_corrected(run: Run, planted: Planted) -> None:
    run.optimizers = [_HalfCorrected(optimizer.param_groups) for optimizer in run.optimizers]


def _groups_swapped(run: Run, planted: Planted) -> None:
    for optimizer in run.optimizers:
        decays = [group["weight_decay"] for group in optimizer.param_groups]
        for group, decay in zip(optimizer.param_groups, reversed(decays), strict=True):
            group["weight_decay"] = decay


def _stepped(times: int) -> Plant:
    """Return what lets the optimizer make another number of steps."""

    def plant(run: Run, planted: Planted) -> None:
        for optimizer in run.optimizers:
            step = optimizer.step
            optimizer.step = lambda step=step: [step() for _ in range(times)]

    return plant


def _around_update(change: Callable[[Tensor, Tensor], Tensor]) -> Plant:
    """Return what changes parameters from their values before and after the update; those of a module, or all."""

    def plant(run: Run, planted: Planted) -> None:
        chosen, update = list(run.model.get_submodule(planted.path).parameters()), run.update

        @torch.no_grad()
        def changed(index: int) -> None:
            before = [parameter.clone() for parameter in chosen]
            update(index)
            for old, parameter in zip(before, chosen, strict=True):
                parameter.copy_(change(old, parameter))

        run.update = changed

    return plant


def _half_kept(old: Tensor, new: Tensor) -> Tensor:
    half = len(new) // 2
    return torch.cat([new[:half], old[half:]])


def _stale(run: Run, planted: Planted) -> None:
    """Let every later update begin with the weights as they were first."""
    first, update = [parameter.detach().clone() for parameter in run.names], run.update

    @torch.no_grad()
    def changed(index: int) -> None:
        for parameter, kept in zip(run.names, first, strict=True):
            parameter.copy_(kept)
        update(index)

    run.update = changed


def _states(change: Callable[[dict[str, Tensor]], None]) -> Plant:
    """Return what changes the optimizer's states, of a module's parameters or of all, as the step begins."""

    def plant(run: Run, planted: Planted) -> None:
        for parameter in run.model.get_submodule(planted.path).parameters():
            for optimizer in run.optimizers:
                if parameter in optimizer.state:
                    change(optimizer.state[parameter])

    return plant


def _rolled(state: dict[str, Tensor]) -> None:
    for name in ("exp_avg", "exp_avg_sq"):
        state[name].copy_(state[name].roll(len(state[name]) // 2, 0))


def _narrow_variance(run: Run, planted: Planted) -> None:
    def narrow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].half())

    for optimizer in run.optimizers:
        optimizer.register_step_post_hook(narrow)


class _Beside(torch.optim.SGD):
    """SGD whose weight decay does not go through the momentum."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update the parameters."""
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
            group["weight_decay"] = 0.0
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


def _decayed_beside(run: Run, planted: Planted) -> None:
    run.optimizers = [_Beside(optimizer.param_groups, foreach=False) for optimizer in run.optimizers]


_LOSS, _BACKWARD, _GRADIENT, _UPDATE = ("loss",), ("backward",), ("gradient",), ("update",)
_USED = ("update", "gradient")

SIXTH_LATER_FAULTS: dict[str, Fault] = {
    # loss
    "softmax_twice": Fault("the loss takes probabilities for logits", _LOSS, _by_output(lambda x, s: x.float().softmax(-1)), True),
    "narrow_logits": Fault("logits in bf16 before the loss", _LOSS, _by_output(lambda x, s: x.bfloat16()), True),
    "padded_vocabulary": Fault("size classes of padding with logits of zero in the loss", _LOSS, _by_output(lambda x, s: F.pad(x, (0, int(s))), 8), True),
    "absolute": Fault("the absolute error for the squared one", _LOSS, loss_by(_absolute), True),
    "by_rows": Fault("the loss divided by the number of samples instead of elements", _LOSS, loss_by(_by_rows), True),
    "binary": Fault("a yes or no for each class instead of one class", _LOSS, loss_by(_binary), True),
    "weighted": Fault("the first half of the classes weighs 1 + size", _LOSS, _weighted, True),
    "first_ignored": Fault("the first size targets of each sample are ignored", _LOSS, given(_without_first, 4), True),
    "auxiliary_factor": Fault("the experts' auxiliary loss × size", _LOSS, knob(0.2, auxiliary=lambda s: s), True),
    # backward
    "unsummed": Fault("a softmax's backward without the sum over all weights", _BACKWARD, attention(_Unsummed.apply)),
    "turned_again": Fault("rope turns gradients by the same angle instead of the opposite one", _BACKWARD, at(_turned_again)),
    "truncated": Fault("nothing is passed back through the state in the middle of a sequence", _BACKWARD, at(_passing_back(_truncated))),
    "mean_kept": Fault("LayerNorm's backward without the mean's term", _BACKWARD, at(_passing_back(_mean_kept))),
    "not_turned": Fault("a convolution's backward with the kernel turned round", _BACKWARD, at(_passing_back(_not_turned))),
    "narrow_weight": Fault("the input's gradient from a weight in bf16", _BACKWARD, at(_passing_back(_narrow_weight))),
    "mean_passed": Fault("a maximum that passes back to all alike", _BACKWARD, at(_passing_back(lambda m, f, x: F.adaptive_avg_pool1d(x, 1)))),
    "scores_detached": Fault("nothing is passed back through the experts' scores", _BACKWARD, at(_scores_detached)),
    # gradients
    "half_of_batch": Fault("a weight's gradient is that of one half of the batch: not reduced over ranks", _GRADIENT, at(_half_of_batch)),
    "flushed": Fault("elements of a weight's gradient below size of its largest are zero", _GRADIENT, _hook(lambda g, s: g * (g.abs() >= s * g.abs().max()), 0.01)),
    "keys_lost": Fault("the middle third of a fused weight gets no gradient", _GRADIENT, _hook(_without_second)),
    "eight_bits": Fault("a weight's gradient in 8 bits", _GRADIENT, _hook(_in_eight_bits)),
    "shards_exchanged": Fault("the halves of a weight's gradient exchanged", _GRADIENT, _hook(lambda g, s: g.roll(len(g) // 2, 0))),
    # between backward and the optimizer
    "clip_local": Fault("clipping by the norm of half of the gradients: that of the other rank is missing", _USED, _clipped_by(_norm_of_half), True),
    "clip_counted": Fault("clipping by a norm in which what all of size ranks have counts as often", _USED, _clipped_by(_counted_often, 8), True),
    "unscaled_twice": Fault("the loss scale is taken off twice", _USED, before_update(lambda run, p: _divided(run, run.setup.loss_scale)), True),
    "averaged_again": Fault("gradients are divided by size: averaged over ranks again", _USED, before_update(lambda run, p: _divided(run, _size(p, 2.0))), True),
    "used_narrow": Fault("the optimizer is given gradients in bf16", _USED, before_update(_through_bf16), True),
    # the optimizer
    "decay_sign": Fault("weight decay with the wrong sign", _UPDATE, hyper(0, weight_decay=lambda old, s: -old), True, True),
    "groups_swapped": Fault("norms and biases decay, and the other weights do not", _UPDATE, _groups_swapped, True),
    "half_corrected": Fault("Adam corrects the bias of its first moment only", _UPDATE, _half_corrected, True),
    "stepped_twice": Fault("the optimizer makes two steps at once", _UPDATE, _stepped(2), True),
    "step_skipped": Fault("the optimizer makes no step", _UPDATE, _stepped(0), True),
    "half_updated": Fault("the second half of a module's rows is not updated: not gathered", _UPDATE, _around_update(_half_kept)),
    "narrow_update": Fault("what weights change by is rounded to bf16", _UPDATE, _around_update(lambda old, new: old + (new - old).bfloat16().to(new.dtype)), True),
    "stale": Fault("updates begin with an old copy of the weights", _UPDATE, _stale, True),
    "count_lost": Fault("Adam counts its steps from zero again", _UPDATE, _states(lambda state: state["step"].zero_()), True),
    "variance_lost": Fault("Adam's second moments are zero again", _UPDATE, _states(lambda state: state["exp_avg_sq"].zero_()), True),
    "moments_exchanged": Fault("the halves of a module's moments exchanged", _UPDATE, _states(_rolled)),
    "narrow_variance": Fault("Adam's second moments are kept in fp16", _UPDATE, _narrow_variance, True),
    "decay_beside": Fault("SGD's weight decay beside the momentum instead of in it", _UPDATE, _decayed_beside, True, True),
}  # fmt: skip
