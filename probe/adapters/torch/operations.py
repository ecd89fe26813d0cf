"""The sketch and the device's hash in PyTorch's operations, on whatever device a tensor is."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from probe.numbers.axis_sums import squeezed, sums_of
from probe.numbers.sketch import CHUNK, VALUE_SEED, WIDTH, Axis

INTEGERS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
INTEGERS |= {torch.uint16, torch.uint32, torch.uint64}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CACHED_SIGNS = 1 << 18
_MASKS = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFF_FFFF, 8: -1}


def blocks(
    values: torch.Tensor, chunk: int = CHUNK, starts: tuple[int, ...] = ()
) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """Cut a tensor along its leading axes into blocks of at most ``chunk`` elements.

    Yields the block with all of its axes (leading ones of size 1 where cut) and the first index of each of them.
    """
    lead = len(starts)
    if values.numel() <= chunk or lead == values.ndim:
        yield values, starts + (0,) * (values.ndim - lead)
        return
    size = values.shape[lead]
    row = values.numel() // size
    rows = max(1, chunk // row)
    rows -= rows % WIDTH if rows > WIDTH else 0
    for start in range(0, size, rows):
        part = values.narrow(lead, start, min(rows, size - start))
        if part.numel() <= chunk:
            yield part, (*starts, start) + (0,) * (values.ndim - lead - 1)
        else:
            yield from blocks(part, chunk, (*starts, start))


def sketch_of(block: torch.Tensor, axes: tuple[Axis, ...], starts: tuple[int, ...]) -> torch.Tensor:
    """Return the sketch of a block that begins at the given indices of its axes.

    Signed by its axes, the block is folded axis by axis into 61 buckets, the longest axis first, and each
    further one is a cyclic convolution with the buckets so far.
    """
    if not axes:
        return torch.nn.functional.pad(block.reshape(1), (0, WIDTH - 1))
    if not block.numel():
        return torch.zeros(WIDTH, dtype=block.dtype, device=block.device)
    dims = sorted(range(len(axes)), key=lambda dim: block.shape[dim])
    folded = block.permute(dims)
    device = block.device
    last, *rest = [(axes[dim], starts[dim], block.shape[dim]) for dim in reversed(dims)]
    folded = _folded(folded, *last)
    folded = folded @ _placing(last[0], last[1], folded.shape[-1], device)
    for axis, start, size in rest:
        moved = _folded(folded.transpose(-1, -2), axis, start, size)
        gather = _shifts(axis, start, moved.shape[-1], device)
        width = moved.shape[-1]
        shifted = moved.transpose(-1, -2).gather(-1, gather.expand(*moved.shape[:-2], width, WIDTH))
        folded = shifted.sum(-2)
    return folded


def _folded(values: torch.Tensor, axis: Axis, start: int, size: int) -> torch.Tensor:
    """Sign the last axis, and add what is 61 apart: at most 61 columns are left."""
    signs = _all_signs(axis, start, size, values.device)
    if size <= WIDTH:
        return values * signs
    whole = size - size % WIDTH
    body = values[..., :whole].unflatten(-1, (-1, WIDTH)) * signs[:whole].view(-1, WIDTH)
    columns = body.sum(-2)
    if whole < size:
        columns[..., : size - whole] += values[..., whole:] * signs[whole:]
    return columns


def _all_signs(axis: Axis, start: int, size: int, device: torch.device) -> torch.Tensor:
    """Return signs of an axis, kept where they are few."""
    return (_signs if size <= _CACHED_SIGNS else _signs.__wrapped__)(axis, start, size, device)


@functools.lru_cache(maxsize=512)
def _signs(axis: Axis, start: int, size: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(axis.signs(start, start + size).copy()).to(device)


@functools.lru_cache(maxsize=512)
def _placing(axis: Axis, start: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return the 0/1 matrix that puts column r of a folded axis into its bucket."""
    matrix = np.zeros((columns, WIDTH))
    matrix[np.arange(columns), axis.buckets(start, start + columns)] = 1.0
    return torch.from_numpy(matrix).to(device)


@functools.lru_cache(maxsize=512)
def _shifts(axis: Axis, start: int, rows: int, device: torch.device) -> torch.Tensor:
    """Return for row r and bucket b the column (b − c·r) mod 61 that row r adds to bucket b."""
    shifts = (np.arange(WIDTH)[None, :] - axis.buckets(start, start + rows)[:, None]) % WIDTH
    return torch.from_numpy(shifts).to(device)


def _mix(z: torch.Tensor) -> torch.Tensor:
    """splitmix64 in int64 arithmetic, which wraps; shifts are made logical by masks."""
    z = z + _signed(0x9E3779B97F4A7C15)
    z = (z ^ ((z >> 30) & 0x3_FFFF_FFFF)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & 0x1F_FFFF_FFFF)) * _signed(0x94D049BB133111EB)
    return z ^ ((z >> 31) & 0x1_FFFF_FFFF)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def integer_signs(block: torch.Tensor) -> torch.Tensor:
    """Return the ±1 (float64) that stands for each integer's value in a sketch of integers."""
    odd = _mix(block.to(torch.int64) ^ VALUE_SEED) & 1
    return 1.0 - 2.0 * odd.to(torch.float64)


def weighted_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the hash ``wsum64`` of a tensor, (low, high) as int64, on its device."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    size = flat.element_size()
    sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), CHUNK):
        bits = flat[start : start + CHUNK].view(_WORDS[size]).to(torch.int64) & _MASKS[size]
        place = torch.arange(start, start + bits.numel(), dtype=torch.int64, device=flat.device) * 2
        sums += torch.stack([(bits * (_mix(place + family) | 1)).sum() for family in (0, 1)])
    return sums


def axis_sums(tensor: torch.Tensor, order: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Do what `probe.numbers.axis_sums.axis_sums` does where a tensor lives; its sums are brought to the CPU once."""
    if not tensor.is_floating_point():
        return ()
    turned = tensor.permute([*order, *range(len(order), tensor.ndim)])
    device = tensor.device
    return sums_of(
        turned.reshape(squeezed(turned.shape)),
        signs=lambda size, rank: _all_signs(Axis(size, rank), 0, size, device),
        widen=lambda block: block.to(torch.float64),
        zeros=lambda size: torch.zeros(size, dtype=torch.float64, device=device),
        fetched=_fetched,
    )


def _fetched(parts: list[torch.Tensor]) -> list[np.ndarray]:
    """Bring several vectors to the CPU at once, as float32."""
    joined = torch.cat(parts).to(torch.float32).cpu().numpy()
    return np.split(np.array(joined), np.cumsum([len(part) for part in parts])[:-1])
