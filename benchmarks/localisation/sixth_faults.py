"""The new kinds of faults of the sixth set, one line each: weights, inputs, forward. From the loss on in `sixth_later_faults`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.porting_faults import attention, softmax
from benchmarks.localisation.sixth_later_faults import SIXTH_LATER_FAULTS
from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import Fault, Plant, at, attribute, change_weight, function, given
from benchmarks.localisation.tools.training import Run

# Weights


def _weight(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    return at(lambda module, size: change_weight(module, lambda weight: change(weight, size)), default)


def _width_first(weight: Tensor, heads: float) -> Tensor:
    return weight.unflatten(0, (int(heads), -1)).transpose(0, 1).flatten(0, 1)


def _halves_in_turns(weight: Tensor, size: float) -> Tensor:
    return weight.unflatten(-2, (2, -1)).transpose(-3, -2).flatten(-3, -2)


def _drawn(weight: Tensor, spread: float) -> Tensor:
    return spread * torch.randn(weight.shape, generator=torch.Generator().manual_seed(11)).to(weight.dtype)


def _in_bytes(weight: Tensor, size: float) -> Tensor:
    rows = weight.flatten(1)
    scale = rows.abs().amax(1, keepdim=True) / 127
    return ((rows / scale).round() * scale).reshape(weight.shape)


@torch.no_grad()
def _of_next_layer(run: Run, planted: Planted) -> None:
    """Load a module with what the same module of the next layer has."""
    other = re.sub(r"\.(\d+)\.", lambda number: f".{int(number[1]) + 1}.", planted.path, count=1)
    module, source = (run.model.get_submodule(path) for path in (planted.path, other))
    for parameter, right in zip(module.parameters(), source.parameters(), strict=True):
        parameter.copy_(right)


# What the model is given


def _of_step_before(run: Run, planted: Planted) -> None:
    right = run.batch
    run.batch = lambda index: right(max(0, index - 1))


def _repeated(x: Tensor, size: float) -> Tensor:
    return torch.cat([x[: len(x) // 2]] * 2)


# Attention and layers


def _halves_apart(mask: Tensor, size: float) -> Tensor:
    """Hide the sequence's first half from its second, and the other way."""
    rows, columns = (torch.arange(mask.shape[place]) < mask.shape[place] // 2 for place in (-2, -1))
    return mask.masked_fill(rows[:, None] != columns, torch.finfo(mask.dtype).min)


def _not_itself(mask: Tensor, size: float) -> Tensor:
    """Hide every token but the first from itself."""
    own = torch.eye(mask.shape[-2], mask.shape[-1], dtype=torch.bool)
    own[0] = False
    return mask.masked_fill(own, torch.finfo(mask.dtype).min)


def _own_config(name: str, value: Callable[[Any, float], Any]) -> Callable[[nn.Module, float], None]:
    """Return what changes an entry of the configuration of one module alone."""

    def change(module: nn.Module, size: float) -> None:
        module.config = copy.copy(module.config)
        setattr(module.config, name, value(getattr(module.config, name), size))

    return change


def _skipped(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x, *args, **kwargs: x.clone())


def _run_twice(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x, *a, **k: forward(forward(x, *a, **k), *a, **k))


def _state_lost(module: nn.GRU, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> tuple[Tensor, Tensor]:
        (before, _), (after, state) = (original(part) for part in x.tensor_split(2, 1))
        return torch.cat([before, after], 1), state

    surgery.around(module, forward)


# Sums over ranks


def _first_part(module: nn.Linear, size: float) -> None:
    kept = torch.arange(module.in_features) < module.in_features // 2
    surgery.on_first(module, lambda x: x * kept)


def _bias_twice(module: nn.Module, size: float) -> None:
    surgery.on_output(module, lambda x: x + module.bias)


def _narrow_sum(module: nn.Linear, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        pairs = zip(x.chunk(2, -1), module.weight.chunk(2, 1), strict=True)
        total = sum(F.linear(each, weight).bfloat16() for each, weight in pairs).to(x.dtype)
        return total if module.bias is None else total + module.bias

    surgery.around(module, forward)


def _half_table(module: nn.Embedding, size: float) -> None:
    kept = module.num_embeddings // 2
    surgery.around(module, lambda forward, ids: forward(ids) * (ids < kept)[..., None])


# Norms and experts


def _over_tokens(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        wide = x.float()
        found = (wide - wide.mean(1, keepdim=True)) * (wide.var(1, keepdim=True, correction=0) + module.eps).rsqrt()
        return (found * module.weight + module.bias).to(x.dtype)

    surgery.around(module, forward)


def _by_half_batches(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x: torch.cat([forward(part) for part in x.tensor_split(2)]))


_INIT, _FORWARD = ("init",), ("forward",)

SIXTH_FAULTS: dict[str, Fault] = {
    # init
    "columns_exchanged": Fault("a weight whose columns were put together in the other order of two ranks", _INIT, _weight(lambda w, s: w.roll(w.shape[1] // 2, 1))),
    "width_first": Fault("a weight's rows with the heads' width before the heads", _INIT, _weight(_width_first, 4)),
    "saved_narrow": Fault("a weight that was saved in bf16", _INIT, _weight(lambda w, s: w.bfloat16().to(w.dtype))),
    "next_layer": Fault("a module loaded with the next layer's weights", _INIT, _of_next_layer),
    "halves_in_turns": Fault("gate and up row by row in turns instead of one after the other", _INIT, _weight(_halves_in_turns)),
    "not_loaded": Fault("a weight that no file had: as it was drawn, with a spread of size", _INIT, _weight(_drawn, 0.02)),
    "in_bytes": Fault("a weight that went through 8 bits for each row", _INIT, _weight(_in_bytes)),
    # inputs
    "padding_side": Fault("a padding mask for padding at the other end", _FORWARD, given(lambda x, s: x.flip(1)), True),
    "repeated_half": Fault("the batch's second half is its first again: both ranks load the same", _FORWARD, given(_repeated), True),
    "batch_before": Fault("the batch of the step before once more", _FORWARD, _of_step_before, True),
    "one_type": Fault("both texts of a pair as if they were the first", _FORWARD, given(lambda x, s: torch.zeros_like(x)), True),
    "unknown": Fault("tokens from size on as the unknown one", _FORWARD, given(lambda x, s: x.masked_fill(x >= s, 3), 90), True),
    "narrow_input": Fault("an input that went through bf16", _FORWARD, given(lambda x, s: x.bfloat16().to(x.dtype)), True),
    "corners_swapped": Fault("boxes as y, x instead of x, y", _FORWARD, given(lambda x, s: x[..., [1, 0, 3, 2]]), True),
    # forward
    "halves_apart": Fault("each half of a sequence attends to itself alone: keys of the other rank are missing", _FORWARD, attention(softmax, mask=_halves_apart)),
    "not_itself": Fault("a causal mask that hides a token from itself", _FORWARD, attention(softmax, mask=_not_itself)),
    "unclipped": Fault("queries, keys and values that are not cut off", _FORWARD, at(_own_config("clip_qkv", lambda old, s: None))),
    "soft_cap": Fault("the logits' cap × (1 + size)", _FORWARD, at(_own_config("final_logit_softcapping", lambda old, s: old * (1 + s)), 14.0)),
    "layer_skipped": Fault("a layer that is left out between two stages", _FORWARD, at(_skipped)),
    "layer_twice": Fault("a layer that both stages run", _FORWARD, at(_run_twice)),
    "state_lost": Fault("a recurrence that begins anew in the middle of the sequence", _FORWARD, at(_state_lost)),
    "step_limit": Fault("time steps that end at size", _FORWARD, at(attribute("time_step_limit", lambda old, s: (old[0], s)), 0.05)),
    "first_part": Fault("a sum over half of the inputs: that of the other rank is missing", _FORWARD, at(_first_part)),
    "bias_twice": Fault("a bias that both ranks add", _FORWARD, at(_bias_twice)),
    "narrow_sum": Fault("the parts of a sum over ranks in bf16", _FORWARD, at(_narrow_sum)),
    "half_table": Fault("tokens of the other rank's half of a table are zero", _FORWARD, at(_half_table)),
    "over_tokens": Fault("a norm over the tokens instead of the channels", _FORWARD, at(_over_tokens)),
    "half_batches": Fault("batch normalisation of each half of the batch by itself: ranks are not synchronised", _FORWARD, at(_by_half_batches)),
    "capacity": Fault("experts that take size tokens of a sequence and no more", _FORWARD, at(attribute("expert_capacity", lambda old, s: int(s)), 2)),
    "padding_pooled": Fault("a mean over the tokens that counts padding", _FORWARD, at(attribute("counts_padding", lambda old, s: True))),
    "hard_tanh": Fault("Hardtanh for Tanh", _FORWARD, at(function(F.hardtanh))),
    **SIXTH_LATER_FAULTS,
}  # fmt: skip
