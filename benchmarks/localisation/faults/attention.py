"""Faults of the forward pass in attention: masks, scores, softmax, heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import FORWARD, Fault, Plant, at, attribute, called_function, config

# In the eager attention of transformers


def eager_attention(wrong: Callable[..., Tensor], **changed: Callable[[Any, float], Any]) -> Plant:
    """Return what makes one module attend wrongly: by its weights, or by changed ``mask``, ``scaling``, ``order``."""

    def plant(module: nn.Module, size: float) -> None:
        def attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
            scaling: float | None = None, **kwargs: Any,
        ) -> tuple[Tensor, Tensor]:  # fmt: skip
            found = {"mask": attention_mask, "scaling": scaling or query.shape[-1] ** -0.5, "order": _repeat_each}
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


def _repeat_each(x: Tensor, groups: int) -> Tensor:
    return x.repeat_interleave(groups, 1)


def _shifted_mask(mask: Tensor, size: float) -> Tensor:
    return torch.cat([mask[..., 1:, :], mask[..., -1:, :]], -2)


def _zero_mask(module: nn.Module, size: float) -> None:
    surgery.with_argument(module, "attention_mask", lambda mask: torch.zeros(1, 1, 1, 1, dtype=torch.float32))


def _rolled_heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (-1, 8)).roll(1, -2).flatten(-2)


def _softmax_plus_one(scores: Tensor) -> Tensor:
    return softmax(F.pad(scores, (0, 1)))[..., :-1]


def _bf16_softmax_weights(scores: Tensor) -> Tensor:
    return softmax(scores).bfloat16()


def _windowed(mask: Tensor | None, size: float) -> Tensor | None:
    """Hide what is `size` tokens or more before."""
    if mask is None:
        return None
    length = mask.shape[-1]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return mask.masked_fill(distance >= size, torch.finfo(mask.dtype).min)


def _mask_other_half(mask: Tensor, size: float) -> Tensor:
    """Hide the sequence's first half from its second, and the other way."""
    rows, columns = (torch.arange(mask.shape[place]) < mask.shape[place] // 2 for place in (-2, -1))
    return mask.masked_fill(rows[:, None] != columns, torch.finfo(mask.dtype).min)


def _mask_diagonal(mask: Tensor, size: float) -> Tensor:
    """Hide every token but the first from itself."""
    own = torch.eye(mask.shape[-2], mask.shape[-1], dtype=torch.bool)
    own[0] = False
    return mask.masked_fill(own, torch.finfo(mask.dtype).min)


# In PyTorch's attention and softmax, called by a module's own code

_attend, _softmax = F.scaled_dot_product_attention, F.softmax


def _replace_sdpa(wrong: Callable[..., Tensor], default: float = 0.0) -> Plant:
    """Return what lets one module call another function for PyTorch's attention: ``wrong(size, query, key, value, …)``."""

    def plant(module: nn.Module, size: float) -> None:
        surgery.with_global(
            module, "scaled_dot_product_attention", lambda *args, **options: wrong(size, *args, **options), F
        )

    return at(plant, default)


def _sdpa_scaled(size: float, query: Tensor, *rest: Tensor, **options: Any) -> Tensor:
    return _attend(query, *rest, **options, scale=query.shape[-1] ** -0.5 * (1 + size))


def _sdpa_unmasked(size: float, *args: Tensor, **options: Any) -> Tensor:
    return _attend(*args, **{**options, "attn_mask": None, "is_causal": False})


def _sdpa_looking_ahead(size: float, query: Tensor, *rest: Tensor, **options: Any) -> Tensor:
    seen = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).tril(1)
    return _attend(query, *rest, **{**options, "is_causal": False}, attn_mask=seen)


def _sdpa_with_keys_in_turn(size: float, query: Tensor, *shared: Tensor, **options: Any) -> Tensor:
    groups = query.shape[1] // shared[0].shape[1]
    return _attend(query, *(each.repeat(1, groups, 1, 1) for each in shared), is_causal=options["is_causal"])


def _sdpa_with_dropout(size: float, *args: Tensor, **options: Any) -> Tensor:
    return _attend(*args, **options, dropout_p=size)


def _softmax_in_bf16(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    return _softmax(x.bfloat16(), dim).to(dtype or x.dtype)


ATTENTION_FAULTS: dict[str, Fault] = {
    # modules of transformers
    "heads": Fault("attention heads in another order", FORWARD, at(lambda m, s: surgery.on_first(m, _rolled_heads))),
    "mask": Fault("no attention mask", FORWARD, at(_zero_mask)),
    "scaling": Fault("attention's scale × (1 + size)", FORWARD, at(attribute("scaling", lambda old, s: old * (1 + s)), 0.01)),
    "attention_dropout": Fault("attention's dropout left on", FORWARD, at(attribute("attention_dropout", lambda o, s: s), 0.1)),
    "position_terms": Fault("one of the relative terms is missing", FORWARD, at(attribute("pos_att_type", lambda old, s: old[1:]))),
    "window_shift": Fault("windows that are not shifted", FORWARD, at(attribute("shift_size", lambda old, s: 0))),
    "unclipped": Fault("queries, keys and values that are not cut off", FORWARD, at(config("clip_qkv", lambda old, s: None))),
    # eager attention
    "kv_order": Fault("shared keys repeated in turn instead of one after another", FORWARD, eager_attention(softmax, order=lambda old, s: lambda x, groups: x.repeat(1, groups, 1, 1))),
    "narrow_softmax": Fault("attention's softmax in bf16", FORWARD, eager_attention(lambda scores: F.softmax(scores.bfloat16(), dim=-1))),
    "mask_value": Fault("hidden scores lowered by 8 only", FORWARD, eager_attention(softmax, mask=lambda mask, s: mask.clamp_min(-8.0))),
    "lookahead": Fault("a causal mask one token late", FORWARD, eager_attention(softmax, mask=_shifted_mask)),
    "unscaled": Fault("attention's scores are not divided by the root of the width", FORWARD, eager_attention(softmax, scaling=lambda old, s: 1.0)),
    "softmax_axis": Fault("softmax over the queries", FORWARD, eager_attention(lambda scores: F.softmax(scores, dim=-2))),
    "no_sink": Fault("attention without its sink", FORWARD, eager_attention(softmax)),
    "softmax_one": Fault("a softmax with one more in its denominator", FORWARD, eager_attention(_softmax_plus_one)),
    "window": Fault("nothing that is size tokens before is seen", FORWARD, eager_attention(softmax, mask=_windowed)),
    "scaled_by_width": Fault("scores divided by the width instead of its root", FORWARD, eager_attention(softmax, scaling=lambda old, s: old**2)),
    "narrow_values": Fault("attention's weights in bf16", FORWARD, eager_attention(_bf16_softmax_weights)),
    "halves_apart": Fault("each half of a sequence attends to itself alone: keys of the other rank are missing", FORWARD, eager_attention(softmax, mask=_mask_other_half)),
    "not_itself": Fault("a causal mask that hides a token from itself", FORWARD, eager_attention(softmax, mask=_mask_diagonal)),
    # modules of ports
    "core_scale": Fault("attention's scale × (1 + size)", FORWARD, at(attribute("scale", lambda old, s: old * (1 + s)), 0.5)),
    "core_ahead": Fault("a causal mask that lets a token see the next one", FORWARD, at(attribute("ahead", lambda old, s: 1))),
    "core_in_turn": Fault("shared keys repeated in turn instead of one after another", FORWARD, at(attribute("in_turn", lambda old, s: True))),
    "core_uncapped": Fault("attention's scores are not capped", FORWARD, at(attribute("cap", lambda old, s: 0.0))),
    "core_window": Fault("a window of size tokens", FORWARD, at(attribute("window", lambda old, s: int(s)), 7)),
    "causality": Fault("attention that is causal where it should not be, or the other way", FORWARD, at(attribute("causal", lambda old, s: not old))),
    # functions of PyTorch
    "sdpa_scale": Fault("PyTorch's attention with a scale × (1 + size)", FORWARD, _replace_sdpa(_sdpa_scaled, 0.5)),
    "sdpa_unmasked": Fault("PyTorch's attention without a mask", FORWARD, _replace_sdpa(_sdpa_unmasked)),
    "sdpa_ahead": Fault("PyTorch's attention with a mask that lets a token see the next one", FORWARD, _replace_sdpa(_sdpa_looking_ahead)),
    "sdpa_in_turn": Fault("shared keys repeated in turn before PyTorch's attention", FORWARD, _replace_sdpa(_sdpa_with_keys_in_turn)),
    "sdpa_dropout": Fault("PyTorch's attention with dropout of size", FORWARD, _replace_sdpa(_sdpa_with_dropout, 0.1)),
    "softmax_narrow": Fault("a softmax in bf16 in a module's own code", FORWARD, called_function("softmax", _softmax_in_bf16)),
}  # fmt: skip
