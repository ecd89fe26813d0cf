"""The new kinds of faults of the seventh set, one line each: what goes wrong inside a port that is built otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.ports.blocks import Angles
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import Fault, Plant, at, attribute

# Weights: of all parameters of a module, as a conversion packs them


def _packed(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    @torch.no_grad()
    def plant(module: nn.Module, size: float) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.copy_(change(parameter.clone(), size))

    return at(plant, default)


def _one_after_another(packed: Tensor, groups: float) -> Tensor:
    """Put queries, keys, values one after another where they should lie group by group."""
    parts = packed.unflatten(0, (int(groups), -1, 8))
    return torch.cat([part.flatten(0, 2) for part in parts.split([parts.shape[1] - 2, 1, 1], 1)])


def _keys_and_values(packed: Tensor, size: float) -> Tensor:
    query, key, value = packed.split([len(packed) - 2 * int(size), int(size), int(size)])
    return torch.cat([query, value, key])


def _queries_and_keys(packed: Tensor, size: float) -> Tensor:
    query, key, value = packed.chunk(3)
    return torch.cat([key, query, value])


def _halves_again(packed: Tensor, heads: float) -> Tensor:
    return packed.unflatten(0, (int(heads), -1, 2)).transpose(1, 2).flatten(0, 2)


def _channels_first(packed: Tensor, size: float) -> Tensor:
    return packed.unflatten(1, (-1, 3)).transpose(1, 2).flatten(1) if packed.dim() == 2 else packed


# Attention by PyTorch's function, and what a module's own code calls

_attend, _softmax, _gelu, _silu = F.scaled_dot_product_attention, F.softmax, F.gelu, F.silu


def _attention(wrong: Callable[..., Tensor], default: float = 0.0) -> Plant:
    """Return what lets one module call another function for PyTorch's attention: ``wrong(size, query, key, value, …)``."""

    def plant(module: nn.Module, size: float) -> None:
        surgery.with_global(
            module, "scaled_dot_product_attention", lambda *args, **options: wrong(size, *args, **options), F
        )

    return at(plant, default)


def _scaled(size: float, query: Tensor, *rest: Tensor, **options: Any) -> Tensor:
    return _attend(query, *rest, **options, scale=query.shape[-1] ** -0.5 * (1 + size))


def _unmasked(size: float, *args: Tensor, **options: Any) -> Tensor:
    return _attend(*args, **{**options, "attn_mask": None, "is_causal": False})


def _ahead(size: float, query: Tensor, *rest: Tensor, **options: Any) -> Tensor:
    seen = torch.ones(query.shape[-2], query.shape[-2], dtype=torch.bool).tril(1)
    return _attend(query, *rest, **{**options, "is_causal": False}, attn_mask=seen)


def _in_turn(size: float, query: Tensor, *shared: Tensor, **options: Any) -> Tensor:
    groups = query.shape[1] // shared[0].shape[1]
    return _attend(query, *(each.repeat(1, groups, 1, 1) for each in shared), is_causal=options["is_causal"])


def _dropped(size: float, *args: Tensor, **options: Any) -> Tensor:
    return _attend(*args, **options, dropout_p=size)


def _calls(name: str, wrong: Callable[..., Tensor]) -> Plant:
    """Return what lets a module's own code call another function for one of PyTorch's."""
    return at(lambda module, size: surgery.with_global(module, name, wrong, F))


def _narrow(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    return _softmax(x.bfloat16(), dim).to(dtype or x.dtype)


def _passes_nothing(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    return _softmax(x, dim, dtype=dtype).detach()


# Rotary positions: what a module's own code turns by


def _turns(wrong: Callable[[Tensor, Angles], Tensor]) -> Plant:
    return at(lambda module, size: surgery.with_global(module, "rotate", wrong))


def _by_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return (x * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)


def _by_neighbours(x: Tensor, angles: Angles) -> Tensor:
    cos, sin = (each.chunk(2, -1)[0].repeat_interleave(2, -1) for each in angles)
    return (x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin).to(x.dtype)


def _first_half(x: Tensor, angles: Angles) -> Tensor:
    turned, kept = x.chunk(2, -1)
    half = turned.shape[-1] // 2
    cos, sin = (torch.cat([each[..., :half]] * 2, -1) for each in angles)
    return torch.cat([_by_halves(turned, cos, sin), kept], -1)


def _complex(wrong: Callable[[Tensor], Tensor]) -> Plant:
    """Return what lets a module turn by other complex numbers."""

    def plant(module: nn.Module, size: float) -> None:
        surgery.around(module, lambda forward, x, turns: forward(x, wrong(turns)))

    return at(plant)


# A recurrence


def _anew(module: nn.Module, size: float) -> None:
    """Let a scan begin again in the middle of the sequence."""

    def forward(original: surgery.Forward, x: Tensor, step: Tensor, decay: Tensor, *ways: Tensor) -> Tensor:
        parts = zip(*(each.tensor_split(2, 1) for each in (x, step, *ways)), strict=True)
        return torch.cat([original(first, second, decay, *rest) for first, second, *rest in parts], 1)

    surgery.around(module, forward)


def _slower(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x, step, decay, *ways: forward(x, step, decay * (1 + size), *ways))


# A tied weight


def _copied(module: nn.Module, size: float) -> None:
    """Let the head have a copy of the embedding's weight from now on."""
    embedding = next(child for child in module.children() if isinstance(child, nn.Embedding))
    module.copy = embedding.weight.detach().clone()


_INIT, _FORWARD, _BACKWARD, _GRADIENT = ("init",), ("forward",), ("backward",), ("gradient",)

SEVENTH_FAULTS: dict[str, Fault] = {
    # init
    "ungrouped": Fault("queries, keys, values one after another where they should lie group by group", _INIT, _packed(_one_after_another, 2)),
    "kv_swapped": Fault("keys and values of a fused weight exchanged, size rows each", _INIT, _packed(_keys_and_values, 16)),
    "key_first": Fault("a fused weight in the order k, q, v", _INIT, _packed(_queries_and_keys)),
    "not_permuted": Fault("rows in the order that a rope of halves has, where the port turns neighbours", _INIT, _packed(_halves_again, 6)),
    "experts_moved": Fault("experts' weights moved by one", _INIT, _packed(lambda w, s: w.roll(1, 0))),
    "patch_columns": Fault("columns of patches with the channels first", _INIT, _packed(_channels_first)),
    # attention
    "core_scale": Fault("attention's scale × (1 + size)", _FORWARD, at(attribute("scale", lambda old, s: old * (1 + s)), 0.5)),
    "core_ahead": Fault("a causal mask that lets a token see the next one", _FORWARD, at(attribute("ahead", lambda old, s: 1))),
    "core_in_turn": Fault("shared keys repeated in turn instead of one after another", _FORWARD, at(attribute("in_turn", lambda old, s: True))),
    "core_uncapped": Fault("attention's scores are not capped", _FORWARD, at(attribute("cap", lambda old, s: 0.0))),
    "core_window": Fault("a window of size tokens", _FORWARD, at(attribute("window", lambda old, s: int(s)), 7)),
    "sdpa_scale": Fault("PyTorch's attention with a scale × (1 + size)", _FORWARD, _attention(_scaled, 0.5)),
    "sdpa_unmasked": Fault("PyTorch's attention without a mask", _FORWARD, _attention(_unmasked)),
    "sdpa_ahead": Fault("PyTorch's attention with a mask that lets a token see the next one", _FORWARD, _attention(_ahead)),
    "sdpa_in_turn": Fault("shared keys repeated in turn before PyTorch's attention", _FORWARD, _attention(_in_turn)),
    "sdpa_dropout": Fault("PyTorch's attention with dropout of size", _FORWARD, _attention(_dropped, 0.1)),
    # what a module's own code calls
    "softmax_narrow": Fault("a softmax in bf16 in a module's own code", _FORWARD, _calls("softmax", _narrow)),
    "silu_as_gelu": Fault("GELU for SiLU in a module's own code", _FORWARD, _calls("silu", lambda x: _gelu(x))),
    "gelu_as_tanh": Fault("GELU's tanh form in a module's own code", _FORWARD, _calls("gelu", lambda x: _gelu(x, approximate="tanh"))),
    "tanh_as_gelu": Fault("GELU for its tanh form in a module's own code", _FORWARD, _calls("gelu", lambda x, approximate: _gelu(x))),
    # rotary positions
    "turns_neighbours": Fault("rope turns neighbours instead of halves", _FORWARD, _turns(_by_neighbours)),
    "turns_back": Fault("rope turns the other way", _FORWARD, _turns(lambda x, angles: _by_halves(x, angles[0], -angles[1]))),
    "turns_partly": Fault("rope turns the first half of each head", _FORWARD, _turns(_first_half)),
    "turns_narrow": Fault("rope's sines and cosines in bf16", _FORWARD, _turns(lambda x, angles: _by_halves(x, *(each.bfloat16().to(x.dtype) for each in angles)))),
    "complex_back": Fault("rope's complex numbers conjugated", _FORWARD, _complex(torch.conj_physical)),
    "complex_late": Fault("rope's positions end one earlier: the last token has the first one's", _FORWARD, _complex(lambda turns: turns.roll(-1, 0))),
    "base": Fault("rope's theta set to size", _FORWARD, at(attribute("theta", lambda old, s: s), 1e4)),
    "first_position": Fault("positions that begin at one", _FORWARD, at(attribute("first", lambda old, s: 1))),
    "far": Fault("relative positions that end at a distance of size", _FORWARD, at(attribute("most", lambda old, s: int(s)), 12)),
    "one_way_bias": Fault("relative positions that do not tell before from behind", _FORWARD, at(attribute("both_ways", lambda old, s: False))),
    "causality": Fault("attention that is causal where it should not be, or the other way", _FORWARD, at(attribute("causal", lambda old, s: not old))),
    # recurrence
    "scan_anew": Fault("a scan that begins again in the middle of the sequence", _FORWARD, at(_anew)),
    "scan_decay": Fault("a scan's decay × (1 + size)", _FORWARD, at(_slower, 0.01)),
    "softplus_as_relu": Fault("ReLU for softplus in a module's own code", _FORWARD, _calls("softplus", F.relu)),
    "conv_ahead": Fault("a causal convolution that is cut one place late", _FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(-1, -1)))),
    # norms, experts, factors
    "offset_zero": Fault("a norm's weight without the one that is added to it", _FORWARD, at(attribute("offset", lambda old, s: 0.0))),
    "unnormalised": Fault("experts' weights that do not sum to one", _FORWARD, at(attribute("sums_to_one", lambda old, s: False))),
    "sigmoid_scores": Fault("experts' scores by sigmoid instead of softmax", _FORWARD, at(attribute("softmax_first", lambda old, s: False))),
    "one_expert": Fault("one expert for each token", _FORWARD, at(attribute("top", lambda old, s: 1))),
    "next_expert": Fault("tokens go to the expert behind the one chosen", _FORWARD, at(attribute("moved", lambda old, s: 1))),
    "factor": Fault("the embeddings' factor × (1 + size)", _FORWARD, at(attribute("factor", lambda old, s: old * (1 + s)), 1.0)),
    "logit_cap": Fault("the logits' cap set to size; 0 for none", _FORWARD, at(attribute("cap", lambda old, s: s), 0.0)),
    # backward and gradients
    "softmax_detached": Fault("nothing is passed back through a softmax in a module's own code", _BACKWARD, _calls("softmax", _passes_nothing)),
    "head_copied": Fault("a tied head that has a copy of the embedding's weight", _GRADIENT, at(_copied)),
}  # fmt: skip
