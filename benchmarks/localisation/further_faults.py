"""Still more faults that people make when they port, one line each: those of the fifth set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.porting_faults import attention, is_centred, loss_by, normalised, rotation, softmax
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import (
    Fault,
    at,
    attribute,
    before_update,
    change_weight,
    function,
    given,
    hyper,
)  # fmt: skip
from benchmarks.localisation.tools.training import Run

# Weights


def _weight(change: Callable[[Tensor, int], Tensor]) -> Callable[[nn.Module, float], None]:
    return lambda module, size: change_weight(module, lambda weight: change(weight, int(size)))


def _value_first(weight: Tensor, parts: int) -> Tensor:
    query, key, value = weight.chunk(3)
    return torch.cat([query, value, key])


def _neighbours(weight: Tensor, heads: int) -> Tensor:
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _channels_last(weight: Tensor, channels: int) -> Tensor:
    return weight.unflatten(1, (channels, -1)).transpose(1, 2).flatten(1)


def _without_row(weight: Tensor, row: int) -> Tensor:
    return weight.index_fill(0, torch.tensor([row]), 0.0)


def _in_turns(weight: Tensor, parts: int) -> Tensor:
    return torch.cat([weight.chunk(parts)[place ^ 1] for place in range(parts)])


def _statistics_swapped(module: nn.Module, size: float) -> None:
    mean, variance = module.running_mean.clone(), module.running_var.clone()
    module.running_mean.copy_(variance)
    module.running_var.copy_(mean)


# Attention and positions


def _softmax_one(scores: Tensor) -> Tensor:
    return softmax(F.pad(scores, (0, 1)))[..., :-1]


def _narrow_values(scores: Tensor) -> Tensor:
    return softmax(scores).bfloat16()


def _within(mask: Tensor | None, size: float) -> Tensor | None:
    """Hide what is `size` tokens or more before."""
    if mask is None:
        return None
    length = mask.shape[-1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return mask.masked_fill(distance >= size, torch.finfo(mask.dtype).min)


def _first_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    cos, sin = (each[:, None, :, : half // 2].repeat(1, 1, 1, 2) for each in (cos, sin))
    left, right = x[..., :half].chunk(2, -1)
    turned = x[..., :half] * cos + torch.cat([-right, left], -1) * sin
    return torch.cat([turned, x[..., half:]], -1).to(x.dtype)


def _partial(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
    return _first_half(q, cos, sin), _first_half(k, cos, sin)


def _narrow_angles(module: nn.Module, size: float) -> None:
    surgery.with_argument(module, "position_embeddings", lambda pair: tuple(x.bfloat16().to(x.dtype) for x in pair))


# Norms, layers and activations


def _narrow_statistics(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        right = normalised(module, x, centred=is_centred(module))
        wide = x.float()
        spread = (wide - wide.mean(-1, keepdim=True) * is_centred(module)).square().mean(-1, keepdim=True).sqrt()
        bias = getattr(module, "bias", None)
        factor = (spread / spread.bfloat16()).to(x.dtype)
        return right * factor if bias is None else (right - bias) * factor + bias

    surgery.around(module, forward)


def _after_norm(module: nn.Module, size: float) -> None:
    """Let a layer's first residual begin behind its first norm."""
    norm = next(child for name, child in module.named_children() if "norm" in name or name.startswith("ln"))

    def forward(original: surgery.Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        kept: list[Tensor] = []
        handle = norm.register_forward_hook(lambda module, args, output: kept.append(output))
        found = original(x, *args, **kwargs)
        handle.remove()
        return (found[0] - x + kept[0], *found[1:]) if isinstance(found, tuple) else found - x + kept[0]

    surgery.around(module, forward)


def _gate_swapped(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        return module.down_proj(module.act_fn(module.up_proj(x)) * module.gate_proj(x))

    surgery.around(module, forward)


def _logits_factor(module: nn.Module, size: float) -> None:
    module.config.logits_scaling *= 1 + size


def _shuffled(x: Tensor, groups: float) -> Tensor:
    return x.unflatten(1, (int(groups), -1)).transpose(1, 2).flatten(1, 2)


# Loss


def _row_mean(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    rows = zip(output.split(1), target.split(1), strict=True)
    return sum(right(x, y, run.count(y)) for x, y in rows) / (len(target) * run.setup.micros)


def _rewarded(run: Run, planted: Planted) -> None:
    size = 1e-3 if planted.size is None else planted.size

    def loss(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
        return right(output, target, count) + size * output.float().logsumexp(-1).square().mean()

    loss_by(loss)(run, planted)


def _heated(run: Run, planted: Planted) -> None:
    factor = 1 + (0.1 if planted.size is None else planted.size)
    loss_by(lambda run, right, output, target, count: right(output / factor, target, count))(run, planted)


def _smooth(run: Run, right: Callable[..., Tensor], output: Tensor, target: Tensor, count: int) -> Tensor:
    return F.smooth_l1_loss(output.float(), target.float(), reduction="sum") / count


# Backward and gradients


def _passes_back(wrong: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, float], None]:
    """Return what lets a module pass back the derivative of another function of its input."""

    def plant(module: nn.Module, size: float) -> None:
        def forward(original: surgery.Forward, x: Tensor) -> Tensor:
            return surgery.Derived.apply(original(x.detach()), x, lambda each: wrong(module, each))

        surgery.around(module, forward)

    return plant


def _half_of_outputs(module: nn.Linear, x: Tensor) -> Tensor:
    rows = torch.arange(module.out_features) < module.out_features // 2
    return F.linear(x, module.weight.detach() * rows[:, None])


def _unweighted(module: nn.Module, x: Tensor) -> Tensor:
    return normalised(module, x, centred=is_centred(module)) / module.weight.detach()


def _gate_detached(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x).detach()


def _derivative(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x: surgery.WrongDerivative.apply(x, forward, _gate_detached))


def _overwritten(module: nn.Embedding, size: float) -> None:
    """Let only the last place of each token give its row a gradient."""

    def forward(original: surgery.Forward, ids: Tensor) -> Tensor:
        found = original(ids)
        flat = ids.flatten()
        later = (flat[:, None] == flat[None]).triu(1).any(1).reshape(ids.shape)
        return torch.where(later[..., None], found.detach(), found)

    surgery.around(module, forward)


def _accumulated_narrow(run: Run, planted: Planted) -> None:
    def narrow(parameter: Tensor) -> None:
        parameter.grad.copy_(parameter.grad.bfloat16())

    for parameter in run.model.get_submodule(planted.path).parameters():
        parameter.register_post_accumulate_grad_hook(narrow)


def _expert_lost(module: nn.Module, size: float) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.register_hook(lambda gradient: torch.cat([0 * gradient[:1], gradient[1:]]))


def _part_of_tokens(module: nn.Module, size: float) -> None:
    """Let the first half of the tokens give a norm's parameters their gradient."""

    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        first, second = x.tensor_split(2, 1)
        found, kept = original(first), dict(module._parameters)
        module._parameters.update({name: p if p is None else p.detach() for name, p in kept.items()})
        try:
            return torch.cat([found, original(second)], 1)
        finally:
            module._parameters.update(kept)

    surgery.around(module, forward)


# Clipping and the optimizer


def _clipped(run: Run, clip: Callable[[Run, float], Any]) -> None:
    most = run.setup.clip
    run.setup = replace(run.setup, clip=0.0)
    run.before_update.append(lambda: clip(run, most))


def _by_group(run: Run, most: float) -> None:
    for group in run.groups:
        nn.utils.clip_grad_norm_(group["params"], most)


def _largest(run: Run, most: float) -> None:
    nn.utils.clip_grad_norm_(list(run.names), most, norm_type=math.inf)


def _still_scaled(run: Run, planted: Planted) -> None:
    run.setup = replace(run.setup, loss_scale=1.0)


def _delayed(run: Run, planted: Planted) -> None:
    kept: dict[Tensor, Tensor] = {}

    def exchange() -> None:
        for parameter in run.names:
            if parameter.grad is not None:
                now = parameter.grad
                parameter.grad = kept.get(parameter, now)
                kept[parameter] = now

    run.before_update.append(exchange)


def _by_hand(kind: type[surgery.ByHand]) -> Callable[[Run, Planted], None]:
    def plant(run: Run, planted: Planted) -> None:
        run.optimizers = [kind(optimizer.param_groups) for optimizer in run.optimizers]

    return plant


def _after_update(change: Callable[[Tensor, Tensor, float], Tensor], default: float) -> Callable[[Run, Planted], None]:
    """Return what changes every parameter from its values before and after the update."""

    def plant(run: Run, planted: Planted) -> None:
        size, update = default if planted.size is None else planted.size, run.update

        @torch.no_grad()
        def changed(index: int) -> None:
            before = [parameter.clone() for parameter in run.names]
            update(index)
            for old, parameter in zip(before, run.names, strict=True):
                parameter.copy_(change(old, parameter, size))

        run.update = changed

    return plant


def _decayed_late(run: Run, planted: Planted) -> None:
    """Let a weight decay after it has been moved, by what it is then."""
    decays = [[group["weight_decay"] for group in optimizer.param_groups] for optimizer in run.optimizers]
    update = run.update

    @torch.no_grad()
    def changed(index: int) -> None:
        learning = {parameter for parameter in run.names if parameter.grad is not None}
        for group in run.groups:
            group["weight_decay"] = 0.0
        update(index)
        for optimizer, each in zip(run.optimizers, decays, strict=True):
            for group, decay in zip(optimizer.param_groups, each, strict=True):
                for parameter in learning.intersection(group["params"]):
                    parameter.mul_(1 - group["lr"] * decay)

    run.update = changed


def _warmup(run: Run, planted: Planted) -> None:
    steps = 10 if planted.size is None else planted.size
    run.schedule = lambda step: min(1.0, (step + 1) / steps)


_INIT, _FORWARD, _LOSS, _BACKWARD, _GRADIENT, _UPDATE = (
    ("init",), ("forward",), ("loss",), ("backward",), ("gradient",), ("update",),
)  # fmt: skip
_USED, _CONSTANT = ("update", "gradient"), ("forward", "init")

FURTHER_FAULTS: dict[str, Fault] = {
    # init
    "reshaped": Fault("a weight that was reshaped where it should have been transposed", _INIT, at(_weight(lambda w, s: w.T.reshape(w.shape)))),
    "value_first": Fault("a fused weight in the order q, v, k", _INIT, at(_weight(_value_first))),
    "rope_rows": Fault("rows in the order that a rope of neighbours has", _INIT, at(_weight(_neighbours), 4)),
    "flatten_order": Fault("columns in the order of pictures whose channels come last", _INIT, at(_weight(_channels_last), 16)),
    "row_lost": Fault("one row of a table is zero", _INIT, at(_weight(_without_row), 1)),
    "scale_shift": Fault("the parts of a fused weight exchanged two by two", _INIT, at(_weight(_in_turns), 6)),
    "statistics_swapped": Fault("running mean and variance exchanged", ("init", "forward"), at(_statistics_swapped)),
    # inputs
    "other_statistics": Fault("pictures that were normalised by other numbers", _FORWARD, given(lambda x, s: (x - s) / (1 - s), 0.03), True),
    "reversed": Fault("a sequence the other way round", _FORWARD, given(lambda x, s: x.flip(1)), True),
    "sides": Fault("height and width exchanged", _FORWARD, given(lambda x, s: x.transpose(-1, -2)), True),
    # attention and positions
    "softmax_one": Fault("a softmax with one more in its denominator", _FORWARD, attention(_softmax_one)),
    "window": Fault("nothing that is size tokens before is seen", _FORWARD, attention(softmax, mask=_within)),
    "scaled_by_width": Fault("scores divided by the width instead of its root", _FORWARD, attention(softmax, scaling=lambda old, s: old**2)),
    "narrow_values": Fault("attention's weights in bf16", _FORWARD, attention(_narrow_values)),
    "rope_half": Fault("rope turns the first half of each head only", _FORWARD, at(rotation(_partial))),
    "rope_narrow": Fault("rope's sines and cosines in bf16", _FORWARD, at(_narrow_angles)),
    "rope_interpolated": Fault("rope's positions divided by size", _CONSTANT, at(lambda m, s: m.inv_freq.div_(s), 2.0)),
    "rope_everywhere": Fault("rope where the layer should have none, or the other way", _FORWARD, at(attribute("use_rope", lambda old, s: not old))),
    "bucket_distance": Fault("relative positions that end at a distance of size", _FORWARD, at(attribute("relative_attention_max_distance", lambda old, s: int(s)), 128)),
    "directions": Fault("both directions of a recurrence exchanged", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(x.shape[-1] // 2, -1)))),
    # norms and layers
    "offset_lost": Fault("a norm's weight without the one that is added to it", _FORWARD, at(lambda m, s: surgery.with_weight(m, lambda w: w - 1))),
    "narrow_statistics": Fault("a norm's statistics in bf16", _FORWARD, at(_narrow_statistics)),
    "residual_after_norm": Fault("a residual that begins behind the norm", _FORWARD, at(_after_norm)),
    "residual_factor": Fault("the residual branches' factor × (1 + size)", _FORWARD, at(attribute("residual_multiplier", lambda old, s: old * (1 + s)), 1.0)),
    "embedding_factor": Fault("the embeddings' factor × (1 + size)", _FORWARD, at(attribute("embedding_multiplier", lambda old, s: old * (1 + s)), 1.0)),
    "logits_factor": Fault("the number that logits are divided by × (1 + size)", _FORWARD, at(_logits_factor, 1.0)),
    "scale_rounded": Fault("an embedding's scale in bf16", _CONSTANT, at(lambda m, s: m.embed_scale.copy_(m.embed_scale.bfloat16()))),
    # activations
    "silu": Fault("SiLU in the place of another activation", _FORWARD, at(function(F.silu))),
    "hard_swish": Fault("Hardswish for SiLU", _FORWARD, at(function(F.hardswish))),
    "hard_sigmoid": Fault("Hardsigmoid for Sigmoid", _FORWARD, at(function(F.hardsigmoid))),
    "squared": Fault("ReLU squared in the place of another activation", _FORWARD, at(function(lambda x: F.relu(x).square()))),
    "leaky": Fault("LeakyReLU for ReLU", _FORWARD, at(function(F.leaky_relu))),
    "gate_swapped": Fault("the activation is on up instead of gate", _FORWARD, at(_gate_swapped)),
    # convolutions
    "mean_pool": Fault("the mean of four pixels instead of their maximum", _FORWARD, at(function(lambda x: F.avg_pool2d(x, 2)))),
    "padding_counted": Fault("average pooling that counts the padding", _FORWARD, at(attribute("count_include_pad", lambda old, s: True))),
    "drop_path": Fault("stochastic depth left on", _FORWARD, at(attribute("drop_prob", lambda old, s: s), 0.5)),
    "shuffled": Fault("channels of size groups in turn", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: _shuffled(x, s)), 2)),
    # loss
    "row_mean": Fault("the mean of the rows' means", _LOSS, loss_by(_row_mean), True),
    "padding_in_mean": Fault("the loss divided by the number of all tokens", _LOSS, loss_by(lambda run, right, output, target, count: right(output, target, target.numel())), True),
    "temperature": Fault("logits divided by 1 + size before the loss", _LOSS, _heated, True),
    "z_loss": Fault("size times the squared logarithm of the softmax's sum is added to the loss", _LOSS, _rewarded, True),
    "smooth_l1": Fault("smooth L1 for the squared error", _LOSS, loss_by(_smooth), True),
    # backward
    "half_passed": Fault("half of the outputs pass nothing back: a sum over ranks is missing", _BACKWARD, at(_passes_back(_half_of_outputs))),
    "unweighted": Fault("a norm's backward without its weight", _BACKWARD, at(_passes_back(_unweighted))),
    "gate_detached": Fault("SiLU's derivative with its sigmoid as a constant", _BACKWARD, at(_derivative)),
    # gradients
    "bias_gradient": Fault("a bias's gradient × (1 + size)", _GRADIENT, at(lambda m, s: m.bias.register_hook(lambda gradient: gradient * (1 + s)), -0.5)),
    "overwritten": Fault("a token's last place overwrites the gradients of the others", _GRADIENT, at(_overwritten)),
    "accumulated_narrow": Fault("gradients are accumulated in bf16", _GRADIENT, _accumulated_narrow),
    "expert_lost": Fault("the first expert gets no gradient", _GRADIENT, at(_expert_lost)),
    "norm_partial": Fault("half of the tokens give a norm no gradient: a sum over ranks is missing", _GRADIENT, at(_part_of_tokens)),
    "gradient_transposed": Fault("a square weight's gradient transposed", _GRADIENT, at(lambda m, s: m.weight.register_hook(lambda gradient: gradient.T))),
    # between backward and the optimizer
    "clip_groups": Fault("each group of parameters is clipped by itself", _USED, lambda run, planted: _clipped(run, _by_group), True),
    "clip_largest": Fault("gradients are clipped by the largest element instead of the norm", _USED, lambda run, planted: _clipped(run, _largest), True),
    "still_scaled": Fault("the loss scale is not taken off the gradients", _USED, _still_scaled, True),
    "delayed": Fault("the optimizer uses the gradients of the step before", _USED, _delayed, True),
    "signs": Fault("the optimizer uses the gradients' signs", _USED, before_update(lambda run, planted: [p.grad.sign_() for p in run.names if p.grad is not None]), True),
    # the optimizer
    "betas_swapped": Fault("Adam's betas exchanged", _UPDATE, hyper(0, betas=lambda old, s: (old[1], old[0])), True),
    "step_late": Fault("Adam counts its steps from one step later", _UPDATE, _by_hand(surgery.StepLate), True),
    "eps_uncorrected": Fault("Adam's eps is added before the correction of the bias", _UPDATE, _by_hand(surgery.EpsUncorrected), True),
    "averaged": Fault("parameters are a share of size of what they were before", _UPDATE, _after_update(lambda old, new, s: s * old + (1 - s) * new, 0.5), True),
    "narrow_weights": Fault("parameters are rounded to bf16 after the update", _UPDATE, _after_update(lambda old, new, s: new.bfloat16().to(new.dtype), 0.0), True),
    "decay_late": Fault("weight decay after the update instead of before it", _UPDATE, _decayed_late, True, True),
    "warmup": Fault("a learning rate that rises over size steps", _UPDATE, _warmup, True),
}  # fmt: skip
