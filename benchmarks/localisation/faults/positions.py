"""Faults of the forward pass in positions: rotary, relative, learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.localisation.models.ports.blocks import Angles
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import CONSTANT, FORWARD, Fault, Plant, at, attribute

# Rotary embeddings of transformers


def _replace_rotary_embedding(wrong: Callable[..., tuple[Tensor, Tensor]]) -> Callable[[nn.Module, float], None]:
    """Return what turns queries and keys wrongly, in one module."""
    return lambda module, size: surgery.with_global(module, "apply_rotary_pos_emb", wrong)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        half = cos.shape[-1] // 2
        cos, sin = (each[..., :half].repeat_interleave(2, -1) for each in (cos, sin))
        other = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    else:
        left, right = x.chunk(2, -1)
        other = torch.cat([-right, left], -1)
    return (x * cos[:, None] + other * sin[:, None]).to(x.dtype)


def _rotate_neighbours(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any
) -> tuple[Tensor, Tensor]:
    return _rotate(q, cos, sin, True), _rotate(k, cos, sin, True)


def _rotate_queries(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
    return _rotate(q, cos, sin, False), k


def _rotate_first_half(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    cos, sin = (each[:, None, :, : half // 2].repeat(1, 1, 1, 2) for each in (cos, sin))
    left, right = x[..., :half].chunk(2, -1)
    turned = x[..., :half] * cos + torch.cat([-right, left], -1) * sin
    return torch.cat([turned, x[..., half:]], -1).to(x.dtype)


def _rotate_partially(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **more: Any) -> tuple[Tensor, Tensor]:
    return _rotate_first_half(q, cos, sin), _rotate_first_half(k, cos, sin)


def _round_angles(module: nn.Module, size: float) -> None:
    surgery.with_argument(module, "position_embeddings", lambda pair: tuple(x.bfloat16().to(x.dtype) for x in pair))


def _change_angles(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[[nn.Module, float], None]:
    return lambda module, size: surgery.with_argument(module, "position_embeddings", lambda pair: change(*pair))


def _set_theta(module: nn.Module, size: float) -> None:
    width = 2 * module.inv_freq.numel()
    module.inv_freq.copy_(size ** (-torch.arange(0, width, 2) / width))


# Rotary embeddings of ports


def _replace_rotate(wrong: Callable[[Tensor, Angles], Tensor]) -> Plant:
    return at(lambda module, size: surgery.with_global(module, "rotate", wrong))


def _by_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return (x * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)


def _by_neighbours(x: Tensor, angles: Angles) -> Tensor:
    cos, sin = (each.chunk(2, -1)[0].repeat_interleave(2, -1) for each in angles)
    return (x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin).to(x.dtype)


def _by_first_half(x: Tensor, angles: Angles) -> Tensor:
    turned, kept = x.chunk(2, -1)
    half = turned.shape[-1] // 2
    cos, sin = (torch.cat([each[..., :half]] * 2, -1) for each in angles)
    return torch.cat([_by_halves(turned, cos, sin), kept], -1)


def _change_turns(wrong: Callable[[Tensor], Tensor]) -> Plant:
    """Return what lets a module turn by other complex numbers."""

    def plant(module: nn.Module, size: float) -> None:
        surgery.around(module, lambda forward, x, turns: forward(x, wrong(turns)))

    return at(plant)


# Other positions


def _scale_alibi(module: nn.Module, size: float) -> None:
    build = module.build_alibi_tensor
    module.build_alibi_tensor = lambda *args, **kwargs: build(*args, **kwargs) * (1 + size)


def _shift_ids(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, ids: forward(ids + int(size)))


POSITION_FAULTS: dict[str, Fault] = {
    # rotary
    "theta": Fault("rope's theta", CONSTANT, at(_set_theta, 5e5)),
    "rope_shift": Fault("rope's angles one position late", FORWARD, at(_change_angles(lambda c, s: (c.roll(1, -2), s.roll(1, -2))))),
    "rope_sign": Fault("rope turned the other way", FORWARD, at(_change_angles(lambda c, s: (c, -s)))),
    "rope_interleaved": Fault("rope turns neighbours instead of halves", FORWARD, at(_replace_rotary_embedding(_rotate_neighbours))),
    "rope_queries": Fault("rope turns the queries only", FORWARD, at(_replace_rotary_embedding(_rotate_queries))),
    "rope_half": Fault("rope turns the first half of each head only", FORWARD, at(_replace_rotary_embedding(_rotate_partially))),
    "rope_narrow": Fault("rope's sines and cosines in bf16", FORWARD, at(_round_angles)),
    "rope_interpolated": Fault("rope's positions divided by size", CONSTANT, at(lambda m, s: m.inv_freq.div_(s), 2.0)),
    "rope_everywhere": Fault("rope where the layer should have none, or the other way", FORWARD, at(attribute("use_rope", lambda old, s: not old))),
    # rotary, in ports
    "turns_neighbours": Fault("rope turns neighbours instead of halves", FORWARD, _replace_rotate(_by_neighbours)),
    "turns_back": Fault("rope turns the other way", FORWARD, _replace_rotate(lambda x, angles: _by_halves(x, angles[0], -angles[1]))),
    "turns_partly": Fault("rope turns the first half of each head", FORWARD, _replace_rotate(_by_first_half)),
    "turns_narrow": Fault("rope's sines and cosines in bf16", FORWARD, _replace_rotate(lambda x, angles: _by_halves(x, *(each.bfloat16().to(x.dtype) for each in angles)))),
    "complex_back": Fault("rope's complex numbers conjugated", FORWARD, _change_turns(torch.conj_physical)),
    "complex_late": Fault("rope's positions end one earlier: the last token has the first one's", FORWARD, _change_turns(lambda turns: turns.roll(-1, 0))),
    "base": Fault("rope's theta set to size", FORWARD, at(attribute("theta", lambda old, s: s), 1e4)),
    # others
    "positions": Fault("positions moved by one", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(1, -2)))),
    "alibi": Fault("alibi's slopes × (1 + size)", FORWARD, at(_scale_alibi, 1.0)),
    "offset": Fault("positions without their offset", FORWARD, at(attribute("offset", lambda old, s: int(s)))),
    "ids_moved": Fault("ids + size before the table is read", FORWARD, at(_shift_ids, -1)),
    "sin_cos": Fault("cosines before sines", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(x.shape[-1] // 2, -1)))),
    "frequency_shift": Fault("a time embedding's frequencies divided by one less", FORWARD, at(attribute("shift", lambda old, s: 1))),
    "bucket_distance": Fault("relative positions that end at a distance of size", FORWARD, at(attribute("relative_attention_max_distance", lambda old, s: int(s)), 128)),
    "first_position": Fault("positions that begin at one", FORWARD, at(attribute("first", lambda old, s: 1))),
    "far": Fault("relative positions that end at a distance of size", FORWARD, at(attribute("most", lambda old, s: int(s)), 12)),
    "one_way_bias": Fault("relative positions that do not tell before from behind", FORWARD, at(attribute("both_ways", lambda old, s: False))),
}  # fmt: skip
