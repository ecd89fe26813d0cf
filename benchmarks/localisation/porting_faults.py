"""More faults, one line each: what goes wrong when a model is ported. Attention's are planted where it is eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import (
    Fault,
    Plant,
    at,
    attribute,
    before_update,
    change_weight,
    function,
    given,
    hyper,
    knob,
)  # fmt: skip
from benchmarks.localisation.tools.training import Run

# Weights


@torch.no_grad()
def _forget_bias(module: nn.LSTM, size: float) -> None:
    module.bias_ih_l0.chunk(4)[1].add_(size)


def _by_kind(weight: Tensor, heads: float) -> Tensor:
    return weight.unflatten(0, (int(heads), 3, -1)).transpose(0, 1).flatten(0, 2)


# Attention


def attention(wrong: Callable[..., Tensor], **changed: Callable[[Any, float], Any]) -> Plant:
    """Return what makes one module attend wrongly: by its weights, or by changed ``mask``, ``scaling``, ``order``."""

    def plant(module: nn.Module, size: float) -> None:
        def attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
            scaling: float | None = None, **kwargs: Any,
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            found = {"mask": attention_mask, "scaling": scaling or query.shape[-1] ** -0.5, "order": _one_after_another}
            found |= {name: change(found[name], size) for name, change in changed.items()}
            groups = query.shape[1] // key.shape[1]
            key, value = (found["order"](each, groups) for each in (key, value))
            scores = query @ key.transpose(2, 3) * found["scaling"]
            weights = wrong(scores if found["mask"] is None else scores + found["mask"]).to(value.dtype)
            return (weights @ value).transpose(1, 2).contiguous(), weights

        surgery.with_global(module, "eager_attention_forward", attend)

    return at(plant)


def softmax(scores: Tensor) -> Tensor:
    """Return the weights of scores, in fp32."""
    return F.softmax(scores, dim=-1, dtype=torch.float32)


def _one_after_another(x: Tensor, groups: int) -> Tensor:
    return x.repeat_interleave(groups, 1)


def _ahead(mask: Tensor, size: float) -> Tensor:
    return torch.cat([mask[..., 1:, :], mask[..., -1:, :]], -2)


def rotation(wrong: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[nn.Module, float], None]:
    """Return what turns queries and keys wrongly, in one module."""
    return lambda module, size: surgery.with_global(module, "apply_rotary_pos_emb", wrong)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        half = cos.shape[-1] // 2
        cos, sin = (each[..., :half].repeat_interleave(2, -1) for each in (cos, sin))
        other = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    else:
        left, right = x.chunk(2, -1)
        other = torch.cat([-right, left], -1)
    return (x * cos[:, None] + other * sin[:, None]).to(x.dtype)


def _interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
    return _turned(q, cos, sin, True), _turned(k, cos, sin, True)


def _queries_only(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
    return _turned(q, cos, sin, False), k


def _alibi(module: nn.Module, size: float) -> None:
    build = module.build_alibi_tensor
    module.build_alibi_tensor = lambda *args, **kwargs: build(*args, **kwargs) * (1 + size)


# Norms


def normalised(
    module: nn.Module, x: Tensor, *, centred: bool, outside: bool = False, less: int = 0, detached: bool = False
) -> Tensor:
    """Return a LayerNorm or RMSNorm by hand; ``less`` is taken off the number that the variance is divided by."""
    eps = next(getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name))
    wide = x.float()
    mean = wide.mean(-1, keepdim=True) * centred
    squares = (wide - mean).square().sum(-1, keepdim=True) / (x.shape[-1] - less)
    width = squares.sqrt() + eps if outside else (squares + eps).sqrt()
    if detached:
        mean, width = mean.detach(), width.detach()
    found = module.weight * ((wide - mean) / width).to(x.dtype)
    bias = getattr(module, "bias", None)
    return found if bias is None else found + bias


def is_centred(module: nn.Module) -> bool:
    """Tell whether a norm takes the mean off."""
    return "LayerNorm" in type(module).__name__


def _norm(**options: Any) -> Callable[[nn.Module, float], None]:
    """Return what computes a norm by hand and wrongly; ``other``: LayerNorm for RMSNorm, and the other way."""
    other = options.pop("other", False)

    def plant(module: nn.Module, size: float) -> None:
        centred = is_centred(module) != other
        surgery.around(module, lambda forward, x: normalised(module, x, centred=centred, **options))

    return plant


def _statistics_detached(module: nn.Module, size: float) -> None:
    def frozen(x: Tensor) -> Tensor:
        return normalised(module, x, centred=is_centred(module), detached=True)

    surgery.around(module, lambda forward, x: forward(x.detach()) + surgery.PassedBack.apply(x, frozen))


def _biased(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        before = module.running_var.clone()
        found = original(x)
        number = x.numel() // x.shape[1]
        kept = before * (1 - module.momentum)
        module.running_var = kept + (module.running_var - kept) * (number - 1) / number
        return found

    surgery.around(module, forward)


# Other modules


def _padded_right(module: nn.Conv2d, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), module.weight, module.bias, module.stride, groups=module.groups)

    surgery.around(module, forward)


def _forward_looking(module: nn.Conv1d, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        return F.conv1d(F.pad(x, (0, module.dilation[0])), module.weight, module.bias, dilation=module.dilation)

    surgery.around(module, forward)


def _reset_first(module: nn.GRU, size: float) -> None:
    """Let the reset gate act before the matrix product, as some frameworks have it."""

    def forward(original: surgery.Forward, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, outputs = x.new_zeros(x.shape[0], module.hidden_size), []
        weights, biases = module.weight_hh_l0.chunk(3), module.bias_hh_l0.chunk(3)
        for parts in F.linear(x, module.weight_ih_l0, module.bias_ih_l0).unbind(1):
            reset, update, new = parts.chunk(3, -1)
            reset = torch.sigmoid(reset + F.linear(hidden, weights[0], biases[0]))
            update = torch.sigmoid(update + F.linear(hidden, weights[1], biases[1]))
            new = torch.tanh(new + F.linear(reset * hidden, weights[2], biases[2]))
            hidden = update * hidden + (1 - update) * new
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden[None]

    surgery.around(module, forward)


def _corners(module: nn.Module, size: float) -> None:
    resize = F.interpolate
    surgery.with_global(module, "interpolate", lambda *a, **k: resize(*a, **{**k, "align_corners": True}), F)


def _columns_first(x: Tensor) -> Tensor:
    side = math.isqrt(x.shape[1])
    return x.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2)


def _ids_moved(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, ids: forward(ids + int(size)))


# Loss


def loss_by(wrong: Callable[[Run, Callable[..., Tensor], Tensor, Tensor, int], Tensor]) -> Plant:
    """Return what takes the loss by another function of the run, the right loss and its arguments."""

    def plant(run: Run, planted: Planted) -> None:
        right = run.loss
        run.loss = lambda output, target, count: wrong(run, right, output, target, count)

    return plant


def _once_more(target: Tensor, size: float) -> Tensor:
    return torch.cat([target[:, 1:], torch.full_like(target[:, :1], -100)], 1)


# Backward and gradients


def _residual_detached(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = original(x, *args, **kwargs)
        if isinstance(found, tuple):
            return (surgery.TakenBack.apply(found[0], x), *found[1:])
        return surgery.TakenBack.apply(found, x)

    surgery.around(module, forward)


def _untied(module: nn.Module, size: float) -> None:
    copy = module.weight.detach().clone()
    surgery.with_weight(module, lambda weight: copy)


def _in_bf16(module: nn.Module, size: float) -> None:
    module.weight.register_hook(lambda gradient: gradient.bfloat16().to(gradient.dtype))


def _micro_missed(run: Run, planted: Planted) -> None:
    def forget(parameter: Tensor, counts: list[int]) -> None:
        counts[0] += 1
        if counts[0] % run.setup.micros:
            parameter.grad = None

    for parameter in run.model.get_submodule(planted.path).parameters():
        counts = [0]
        parameter.register_post_accumulate_grad_hook(lambda p, counts=counts: forget(p, counts))


# Clipping and the optimizer


def _clip_each(run: Run, planted: Planted) -> None:
    most = run.setup.clip
    run.setup = replace(run.setup, clip=0.0)
    run.before_update.append(lambda: [nn.utils.clip_grad_norm_([parameter], most) for parameter in run.names])


def _clip_scaled(run: Run, planted: Planted) -> None:
    most, update = run.setup.clip, run.update
    run.setup = replace(run.setup, clip=0.0)

    def clipped(index: int) -> None:
        nn.utils.clip_grad_norm_(list(run.names), most)
        update(index)

    run.update = clipped


def _eps_inside(run: Run, planted: Planted) -> None:
    run.optimizers = [surgery.EpsInside(optimizer.param_groups) for optimizer in run.optimizers]


def _narrow_moments(run: Run, planted: Planted) -> None:
    def narrow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            for name in {"exp_avg", "exp_avg_sq", "momentum_buffer"} & set(state):
                state[name].copy_(state[name].bfloat16())

    for optimizer in run.optimizers:
        optimizer.register_step_post_hook(narrow)


_INIT, _FORWARD, _LOSS, _BACKWARD, _GRADIENT, _UPDATE = (
    ("init",), ("forward",), ("loss",), ("backward",), ("gradient",), ("update",),
)  # fmt: skip
_USED = ("update", "gradient")

PORTING_FAULTS: dict[str, Fault] = {
    # init
    "qkv_order": Fault("a fused weight in the order q, k, v that is read head by head", _INIT, at(lambda m, s: change_weight(m, lambda w: _by_kind(w, s)), 4)),
    "halves": Fault("a fused weight's halves the other way round", _INIT, at(lambda m, s: change_weight(m, lambda w: w.roll(len(w) // 2, 0)))),
    "kernel_flipped": Fault("a kernel turned round: a convolution for a correlation", _INIT, at(lambda m, s: change_weight(m, lambda w: w.flip(list(range(2, w.dim())))))),
    "in_out": Fault("a kernel whose inputs and outputs are exchanged", _INIT, at(lambda m, s: change_weight(m, lambda w: w.transpose(0, 1)))),
    "norm_offset": Fault("a norm's weight that was stored as its distance from one", _INIT, at(lambda m, s: change_weight(m, lambda w: w - 1))),
    "forget_bias": Fault("size added to an LSTM's forget gate", _INIT, at(_forget_bias, 1.0)),
    "relative_index": Fault("relative positions with the wrong sign", ("init", "forward"), at(lambda m, s: m.relative_position_index.copy_(m.relative_position_index.flip(0).clone()))),
    # inputs
    "bgr": Fault("colours in the order blue, green, red", _FORWARD, given(lambda x, s: x.flip(1)), True),
    "mask_inverted": Fault("a mask in which true means hidden", _FORWARD, given(lambda x, s: 1 - x), True),
    "unshifted": Fault("the decoder is given what it is to predict", _FORWARD, given(lambda x, s: x.roll(-1, 1)), True),
    "off_by_one": Fault("a number that begins at one instead of zero", _FORWARD, given(lambda x, s: x + 1), True),
    "one_way": Fault("edges in one direction only", _FORWARD, given(lambda x, s: x.triu()), True),
    # attention
    "kv_order": Fault("shared keys repeated in turn instead of one after another", _FORWARD, attention(softmax, order=lambda old, s: lambda x, groups: x.repeat(1, groups, 1, 1))),
    "narrow_softmax": Fault("attention's softmax in bf16", _FORWARD, attention(lambda scores: F.softmax(scores.bfloat16(), dim=-1))),
    "mask_value": Fault("hidden scores lowered by 8 only", _FORWARD, attention(softmax, mask=lambda mask, s: mask.clamp_min(-8.0))),
    "lookahead": Fault("a causal mask one token late", _FORWARD, attention(softmax, mask=_ahead)),
    "unscaled": Fault("attention's scores are not divided by the root of the width", _FORWARD, attention(softmax, scaling=lambda old, s: 1.0)),
    "softmax_axis": Fault("softmax over the queries", _FORWARD, attention(lambda scores: F.softmax(scores, dim=-2))),
    "no_sink": Fault("attention without its sink", _FORWARD, attention(softmax)),
    "rope_interleaved": Fault("rope turns neighbours instead of halves", _FORWARD, at(rotation(_interleaved))),
    "rope_queries": Fault("rope turns the queries only", _FORWARD, at(rotation(_queries_only))),
    "alibi": Fault("alibi's slopes × (1 + size)", _FORWARD, at(_alibi, 1.0)),
    "position_terms": Fault("one of the relative terms is missing", _FORWARD, at(attribute("pos_att_type", lambda old, s: old[1:]))),
    "window_shift": Fault("windows that are not shifted", _FORWARD, at(attribute("shift_size", lambda old, s: 0))),
    # norms
    "eps_outside": Fault("eps outside the root", _FORWARD, at(_norm(outside=True))),
    "other_norm": Fault("RMSNorm for LayerNorm, or the other way", _FORWARD, at(_norm(other=True))),
    "unbiased": Fault("a norm that divides by n - 1", _FORWARD, at(_norm(less=1))),
    "biased": Fault("running variance without the correction of its bias", ("forward", "update"), at(_biased)),
    "identity": Fault("a module that does nothing", _FORWARD, at(function(lambda x: x.clone()))),
    # embeddings
    "unscaled_embedding": Fault("an embedding without its scale", _FORWARD, at(attribute("embed_scale", lambda old, s: 1.0))),
    "offset": Fault("positions without their offset", _FORWARD, at(attribute("offset", lambda old, s: int(s)))),
    "ids_moved": Fault("ids + size before the table is read", _FORWARD, at(_ids_moved, -1)),
    "sin_cos": Fault("cosines before sines", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(x.shape[-1] // 2, -1)))),
    "frequency_shift": Fault("a time embedding's frequencies divided by one less", _FORWARD, at(attribute("shift", lambda old, s: 1))),
    # experts
    "router_norm": Fault("experts' weights that sum to one, or do not", _FORWARD, at(attribute("norm_topk_prob", lambda old, s: not old))),
    "routed_scale": Fault("experts' weights without their factor", _FORWARD, at(attribute("routed_scaling_factor", lambda old, s: 1.0))),
    "swiglu_alpha": Fault("the experts' gate with a plain sigmoid", _FORWARD, at(attribute("alpha", lambda old, s: 1.0))),
    # convolutions, pictures, graphs, recurrence, contrast
    "pad_right": Fault("padding at the right and below only, as 'same' has it", _FORWARD, at(_padded_right)),
    "circular": Fault("padding that goes round", _FORWARD, at(attribute("padding_mode", lambda old, s: "circular"))),
    "undilated": Fault("a convolution without its dilation", _FORWARD, at(attribute("dilation", lambda old, s: (1,)))),
    "forward_looking": Fault("a causal convolution that is padded at the other end", _FORWARD, at(_forward_looking)),
    "align_corners": Fault("upsampling that aligns corners", _FORWARD, at(attribute("align_corners", lambda old, s: True))),
    "corners": Fault("interpolation in a module's own code that aligns corners", _FORWARD, at(_corners)),
    "patch_order": Fault("patches by columns instead of rows", _FORWARD, at(lambda m, s: surgery.on_output(m, _columns_first))),
    "softmax_dim": Fault("Softmax over another axis", _FORWARD, at(attribute("dim", lambda old, s: -2))),
    "self_loops": Fault("a graph without self-loops", _FORWARD, at(attribute("self_loops", lambda old, s: False))),
    "reset_first": Fault("GRU's reset gate before the matrix product", _FORWARD, at(_reset_first)),
    "log_scale": Fault("a scale that is used as its logarithm", _FORWARD, at(lambda m, s: surgery.around(m, lambda forward, x: x * m.scale))),
    "logit_scale": Fault("the logits' factor × (1 + size)", _FORWARD, at(attribute("logit_scale", lambda old, s: old * (1 + s)), 1.0)),
    # loss
    "labels_twice": Fault("labels that are moved twice", _LOSS, given(_once_more), True),
    "token_ignored": Fault("a token that is wrongly ignored", _LOSS, knob(ignored=int), True),
    "micro_mean": Fault("the mean of micro-batches' means", _LOSS, loss_by(lambda run, right, output, target, count: right(output, target, run.count(target) * run.setup.micros)), True),
    "no_auxiliary": Fault("the experts' auxiliary loss is left out", _LOSS, knob(auxiliary=lambda s: 0.0), True),
    "narrow_loss": Fault("a loss that was averaged in bf16", _LOSS, loss_by(lambda run, right, *args: right(*args).bfloat16().float()), True),
    # backward
    "statistics_detached": Fault("a norm's backward that takes its statistics for constants", _BACKWARD, at(_statistics_detached)),
    "residual_detached": Fault("nothing is passed back through the residual", _BACKWARD, at(_residual_detached)),
    "narrow_gradient": Fault("the input's gradient is passed on in bf16", _BACKWARD, at(lambda m, s: surgery.on_first(m, surgery.RoundedGradient.apply))),
    # gradients
    "padding_learns": Fault("padding's row of an embedding gets a gradient", _GRADIENT, at(attribute("padding_idx", lambda old, s: None))),
    "by_frequency": Fault("an embedding's gradient divided by how often a token occurs", _GRADIENT, at(attribute("scale_grad_by_freq", lambda old, s: True))),
    "untied": Fault("a tied weight that was copied instead", _GRADIENT, at(_untied)),
    "reduced_narrow": Fault("a weight's gradient is reduced in bf16", _GRADIENT, at(_in_bf16)),
    "micro_missed": Fault("a module's gradient is that of the last micro-batch only", _GRADIENT, _micro_missed),
    # between backward and the optimizer
    "clip_each": Fault("every parameter's gradient is clipped by itself", _USED, _clip_each, True),
    "clip_scaled": Fault("gradients are clipped before the loss scale is taken off", _USED, _clip_scaled, True),
    "norms_lost": Fault("gradients of one dimension are zero when the optimizer uses them", _USED, before_update(lambda run, planted: [p.grad.zero_() for p in run.names if p.grad is not None and p.dim() < 2]), True, True),
    # the optimizer
    "eps_inside": Fault("Adam's eps under the root", _UPDATE, _eps_inside, True),
    "decay_unscaled": Fault("weight decay that is not multiplied by the learning rate", _UPDATE, hyper(1000, weight_decay=lambda old, s: old * s), True, True),
    "decay_all": Fault("norms and biases decay as well", _UPDATE, hyper(0.1, weight_decay=lambda old, s: s), True, True),
    "narrow_moments": Fault("the optimizer's moments are kept in bf16", _UPDATE, _narrow_moments, True),
}  # fmt: skip
