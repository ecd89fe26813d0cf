"""Faults of the initial weights, as a conversion makes them."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools.planting import BUFFER, INIT, Fault, Plant, at, change_weight
from benchmarks.localisation.tools.run import Run


def _change_weight(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    return at(lambda module, size: change_weight(module, lambda weight: change(weight, size)), default)


def _change_parameters(change: Callable[[Tensor, float], Tensor], default: float = 0.0) -> Plant:
    @torch.no_grad()
    def plant(module: nn.Module, size: float) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.copy_(change(parameter.clone(), size))

    return at(plant, default)


# Orders of rows and columns


def _regrouped_by_head(weight: Tensor, heads: float) -> Tensor:
    return weight.unflatten(0, (int(heads), 3, -1)).transpose(0, 1).flatten(0, 2)


def _query_value_key(weight: Tensor, size: float) -> Tensor:
    query, key, value = weight.chunk(3)
    return torch.cat([query, value, key])


def _interleaved_rows(weight: Tensor, heads: float) -> Tensor:
    return weight.unflatten(0, (int(heads), 2, -1)).transpose(1, 2).flatten(0, 2)


def _channels_last_columns(weight: Tensor, channels: float) -> Tensor:
    return weight.unflatten(1, (int(channels), -1)).transpose(1, 2).flatten(1)


def _zero_row(weight: Tensor, row: float) -> Tensor:
    return weight.index_fill(0, torch.tensor([int(row)]), 0.0)


def _swapped_parts(weight: Tensor, number: float) -> Tensor:
    parts = weight.chunk(int(number))
    return torch.cat([parts[place ^ 1] for place in range(len(parts))])


def _head_width_first(weight: Tensor, heads: float) -> Tensor:
    return weight.unflatten(0, (int(heads), -1)).transpose(0, 1).flatten(0, 1)


def _interleaved_halves(weight: Tensor, size: float) -> Tensor:
    return weight.unflatten(-2, (2, -1)).transpose(-3, -2).flatten(-3, -2)


def _ungrouped(packed: Tensor, groups: float) -> Tensor:
    """Put queries, keys, values one after another where they should lie group by group."""
    parts = packed.unflatten(0, (int(groups), -1, 8))
    return torch.cat([part.flatten(0, 2) for part in parts.split([parts.shape[1] - 2, 1, 1], 1)])


def _swap_keys_and_values(packed: Tensor, size: float) -> Tensor:
    query, key, value = packed.split([len(packed) - 2 * int(size), int(size), int(size)])
    return torch.cat([query, value, key])


def _key_query_value(packed: Tensor, size: float) -> Tensor:
    query, key, value = packed.chunk(3)
    return torch.cat([key, query, value])


def _deinterleaved_rows(packed: Tensor, heads: float) -> Tensor:
    return packed.unflatten(0, (int(heads), -1, 2)).transpose(1, 2).flatten(0, 2)


def _channels_first_columns(packed: Tensor, size: float) -> Tensor:
    return packed.unflatten(1, (-1, 3)).transpose(1, 2).flatten(1) if packed.dim() == 2 else packed


# Values


def _shift_element(module: nn.Module, size: float) -> None:
    def change(weight: Tensor) -> Tensor:
        weight.view(-1)[weight.numel() // 3] += size * weight.float().std()
        return weight

    change_weight(module, change)


@torch.no_grad()
def _reorder_gates(module: nn.LSTM, size: float) -> None:
    for parameter in module.parameters():
        parameter.copy_(torch.cat([parameter.chunk(4)[place] for place in (0, 2, 1, 3)]))


@torch.no_grad()
def _change_bias(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    module.bias.copy_(change(module.bias.clone()))


@torch.no_grad()
def _add_to_forget_gate(module: nn.LSTM, size: float) -> None:
    module.bias_ih_l0.chunk(4)[1].add_(size)


def _swap_statistics(module: nn.Module, size: float) -> None:
    mean, variance = module.running_mean.clone(), module.running_var.clone()
    module.running_mean.copy_(variance)
    module.running_var.copy_(mean)


def _redrawn(weight: Tensor, spread: float) -> Tensor:
    return spread * torch.randn(weight.shape, generator=torch.Generator().manual_seed(11)).to(weight.dtype)


def _quantized(weight: Tensor, size: float) -> Tensor:
    rows = weight.flatten(1)
    scale = rows.abs().amax(1, keepdim=True) / 127
    return ((rows / scale).round() * scale).reshape(weight.shape)


@torch.no_grad()
def _load_next_layer(run: Run, planted: Planted) -> None:
    """Load a module with what the same module of the next layer has."""
    other = re.sub(r"\.(\d+)\.", lambda number: f".{int(number[1]) + 1}.", planted.path, count=1)
    module, source = (run.model.get_submodule(path) for path in (planted.path, other))
    for parameter, right in zip(module.parameters(), source.parameters(), strict=True):
        parameter.copy_(right)


WEIGHT_FAULTS: dict[str, Fault] = {
    # values
    "weight": Fault("a weight × (1 + size)", INIT, at(lambda m, s: change_weight(m, lambda w: w * (1 + s)), 0.01)),
    "element": Fault("one element of a weight off by size standard deviations", INIT, at(_shift_element, 1.0)),
    "bias": Fault("a bias of zeros", INIT, at(lambda m, s: _change_bias(m, torch.zeros_like))),
    "bias_shift": Fault("a bias + size", INIT, at(lambda m, s: _change_bias(m, lambda b: b + s), 0.01)),
    "norm_offset": Fault("a norm's weight that was stored as its distance from one", INIT, at(lambda m, s: change_weight(m, lambda w: w - 1))),
    "forget_bias": Fault("size added to an LSTM's forget gate", INIT, at(_add_to_forget_gate, 1.0)),
    "row_lost": Fault("one row of a table is zero", INIT, _change_weight(_zero_row, 1)),
    "saved_narrow": Fault("a weight that was saved in bf16", INIT, _change_weight(lambda w, s: w.bfloat16().to(w.dtype))),
    "not_loaded": Fault("a weight that no file had: as it was drawn, with a spread of size", INIT, _change_weight(_redrawn, 0.02)),
    "in_bytes": Fault("a weight that went through 8 bits for each row", INIT, _change_weight(_quantized)),
    "next_layer": Fault("a module loaded with the next layer's weights", INIT, _load_next_layer),
    "statistics_swapped": Fault("running mean and variance exchanged", BUFFER, at(_swap_statistics)),
    "relative_index": Fault("relative positions with the wrong sign", BUFFER, at(lambda m, s: m.relative_position_index.copy_(m.relative_position_index.flip(0).clone()))),
    # orders of rows and columns
    "transposed": Fault("a square weight left transposed", INIT, at(lambda m, s: change_weight(m, lambda w: w.T))),
    "rows": Fault("a weight's rows moved by one", INIT, at(lambda m, s: change_weight(m, lambda w: w.roll(1, 0)))),
    "gates": Fault("LSTM gates in the order i, g, f, o", INIT, at(_reorder_gates)),
    "qkv_order": Fault("a fused weight in the order q, k, v that is read head by head", INIT, at(lambda m, s: change_weight(m, lambda w: _regrouped_by_head(w, s)), 4)),
    "halves": Fault("a fused weight's halves the other way round", INIT, at(lambda m, s: change_weight(m, lambda w: w.roll(len(w) // 2, 0)))),
    "kernel_flipped": Fault("a kernel turned round: a convolution for a correlation", INIT, at(lambda m, s: change_weight(m, lambda w: w.flip(list(range(2, w.dim())))))),
    "in_out": Fault("a kernel whose inputs and outputs are exchanged", INIT, at(lambda m, s: change_weight(m, lambda w: w.transpose(0, 1)))),
    "reshaped": Fault("a weight that was reshaped where it should have been transposed", INIT, _change_weight(lambda w, s: w.T.reshape(w.shape))),
    "value_first": Fault("a fused weight in the order q, v, k", INIT, _change_weight(_query_value_key)),
    "rope_rows": Fault("rows in the order that a rope of neighbours has", INIT, _change_weight(_interleaved_rows, 4)),
    "flatten_order": Fault("columns in the order of pictures whose channels come last", INIT, _change_weight(_channels_last_columns, 16)),
    "scale_shift": Fault("the parts of a fused weight exchanged two by two", INIT, _change_weight(_swapped_parts, 6)),
    "columns_exchanged": Fault("a weight whose columns were put together in the other order of two ranks", INIT, _change_weight(lambda w, s: w.roll(w.shape[1] // 2, 1))),
    "width_first": Fault("a weight's rows with the heads' width before the heads", INIT, _change_weight(_head_width_first, 4)),
    "halves_in_turns": Fault("gate and up row by row in turns instead of one after the other", INIT, _change_weight(_interleaved_halves)),
    # packed weights of ports
    "ungrouped": Fault("queries, keys, values one after another where they should lie group by group", INIT, _change_parameters(_ungrouped, 2)),
    "kv_swapped": Fault("keys and values of a fused weight exchanged, size rows each", INIT, _change_parameters(_swap_keys_and_values, 16)),
    "key_first": Fault("a fused weight in the order k, q, v", INIT, _change_parameters(_key_query_value)),
    "not_permuted": Fault("rows in the order that a rope of halves has, where the port turns neighbours", INIT, _change_parameters(_deinterleaved_rows, 6)),
    "experts_moved": Fault("experts' weights moved by one", INIT, _change_parameters(lambda w, s: w.roll(1, 0))),
    "patch_columns": Fault("columns of patches with the channels first", INIT, _change_parameters(_channels_first_columns)),
}  # fmt: skip
