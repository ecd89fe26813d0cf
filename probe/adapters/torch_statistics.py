"""`probe.statistics.measure` for PyTorch tensors.

On the CPU by the compiled loop of `probe.kernel`; elsewhere, and where that could not be built, by PyTorch's
operations on the tensor's device, in chunks, in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import xxhash

from probe import kernel
from probe.records import HashKind, TensorStats
from probe.sketch import CHUNK, VALUE_SEED, WIDTH, Axis, axes_of
from probe.statistics import finish, update_hash

_INTEGER_KINDS = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_INTEGER_KINDS |= {torch.uint16, torch.uint32, torch.uint64}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""types that are what they seem: a subclass may have its values elsewhere"""
_FLOATS = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
_KINDS = {getattr(torch, name): kind for name, kind in kernel.KINDS.items()}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MASKS = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFF_FFFF, 8: -1}


_KNOWN_SIZE = 4096
"""bytes from which on a tensor's statistics are remembered by its hash: equal bytes are passed over once"""
_KNOWN_LIMIT = 4096

_known: dict[tuple[object, ...], TensorStats] = {}


def measure(tensor: torch.Tensor, order: Sequence[int] = (), hash_kind: HashKind | None = None) -> TensorStats:
    """Return all statistics of a tensor, see `probe.statistics.measure`.

    The hash is xxh3_128 for tensors on the CPU, and the position-weighted sum elsewhere, unless it is named.
    """
    tensor = tensor.detach()
    if hash_kind in (None, HashKind.XXH3_128):
        plain = tensor.resolve_conj().resolve_neg().contiguous()
        stats = measure_in_place(torch.view_as_real(plain) if plain.is_complex() else plain, order)
        if stats is not None:
            return stats
    if hash_kind is None:
        hash_kind = HashKind.XXH3_128 if tensor.device.type == "cpu" else HashKind.WSUM64
    return _measure_by_operations(tensor, order, hash_kind)


def measure_in_place(tensor: torch.Tensor, order: Sequence[int]) -> TensorStats | None:
    """Let the compiled loop pass over a tensor as it lies in memory; None if that cannot be done.

    No operation of PyTorch runs, so it does not matter in which mode the user's program is.
    """
    kind = _KINDS.get(tensor.dtype)
    if kind is None or not _lies_plain(tensor):
        return None
    order, digest = tuple(order), kernel.digest(tensor.data_ptr(), tensor.nbytes)
    if tensor.nbytes < _KNOWN_SIZE:
        return _passed_over(tensor, kind, order, digest)
    key = (digest, kind, tensor.shape, order)
    stats = _known.get(key)
    if stats is None:
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        stats = _known[key] = _passed_over(tensor, kind, order, digest)
    return stats


def measure_update(after: torch.Tensor, before: torch.Tensor, order: Sequence[int]) -> tuple[str, TensorStats]:
    """Return the dtype of after − before and its statistics, see `probe.statistics.measure_update`."""
    after, before = after.detach(), before.detach()
    kind = HashKind.XXH3_128 if after.device.type == "cpu" else HashKind.WSUM64
    hashes = _hash(after, kind), _hash(before, kind)
    wide = torch.complex128 if after.is_complex() else torch.float64
    if after.device.type in ("mps", "npu"):
        wide = torch.complex64 if after.is_complex() else torch.float32
    if after.dtype in _FLOATS and after.dtype == before.dtype and _lies_plain(after) and _lies_plain(before):
        loop = _KINDS[after.dtype]
        stats = kernel.stats(
            after.data_ptr(), loop, after.shape, tuple(order), bytes(16), HashKind.NONE, before.data_ptr()
        )
    else:
        stats = _measure_by_operations(after.to(wide) - before.to(wide), order, HashKind.NONE)
    return str(wide).removeprefix("torch."), update_hash(stats, *hashes, kind)


def _lies_plain(tensor: torch.Tensor) -> bool:
    """Tell whether the compiled loop can read a tensor: on the CPU, in C order, its memory not freed."""
    return (
        kernel.AVAILABLE
        and type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and (tensor.data_ptr() != 0 or tensor.numel() == 0)
    )


def _passed_over(tensor: torch.Tensor, kind: int, order: tuple[int, ...], digest: bytes) -> TensorStats:
    return kernel.stats(tensor.data_ptr(), kind, tensor.shape, order, digest, HashKind.XXH3_128)


def _measure_by_operations(tensor: torch.Tensor, order: Sequence[int], hash_kind: HashKind) -> TensorStats:
    values = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    integer = values.dtype in _INTEGER_KINDS
    axes = axes_of(tuple(values.shape), tuple(order))
    total = _Sums()
    result = torch.zeros(WIDTH, dtype=torch.float64, device=values.device)
    for block, starts in _blocks(values.squeeze()):
        part = block.to(torch.float64)
        clean = total.add(part)
        if integer:
            clean = _integer_signs(block)
        result += _sketch(clean, axes, starts)
    low, high = _hash(tensor, hash_kind)
    return finish(
        *total.numbers(), (total.nan, total.posinf, total.neginf, total.zeros), (low, high, hash_kind),
        result.cpu().numpy(),
    )  # fmt: skip


def _halves(digest: int) -> tuple[int, int]:
    return digest & 0xFFFF_FFFF_FFFF_FFFF, digest >> 64


class _Sums:
    """Running sums over chunks; small tensors stay on the device until `numbers`."""

    def __init__(self) -> None:
        self.nan = self.posinf = self.neginf = self.zeros = 0
        self._count = 0
        self._low, self._high, self._total, self._squares = np.inf, -np.inf, 0.0, 0.0

    def add(self, part: torch.Tensor) -> torch.Tensor:
        """Add a chunk (float64); return it with its non-finite elements set to zero."""
        if not part.numel():
            return part
        flat = part.reshape(-1)
        low, high = torch.aminmax(flat)
        sums = torch.stack([low, high, flat.sum(), torch.dot(flat, flat), flat.count_nonzero().to(flat.dtype)])
        values = sums.tolist()
        count = flat.numel()
        if not np.isfinite(values[:2]).all():
            part, values, count = self._without_nonfinite(part)
        if count:
            self._low, self._high = min(self._low, values[0]), max(self._high, values[1])
            self._total += values[2]
            self._squares += values[3]
            self.zeros += int(count - values[4])
        self._count += count
        return part

    def _without_nonfinite(self, part: torch.Tensor) -> tuple[torch.Tensor, list[float], int]:
        self.nan += int(part.isnan().sum())
        self.posinf += int((part == np.inf).sum())
        self.neginf += int((part == -np.inf).sum())
        finite = part.isfinite()
        only = part[finite]
        clean = torch.where(finite, part, torch.zeros((), dtype=part.dtype, device=part.device))
        if not only.numel():
            return clean, [], 0
        values = [only.min(), only.max(), only.sum(), only.square().sum(), only.count_nonzero()]
        return clean, [float(value) for value in values], only.numel()

    def numbers(self) -> tuple[int, float, float, float, float]:
        """Return (count, min, max, sum, sum of squares) over the finite elements."""
        return self._count, self._low, self._high, self._total, self._squares


def _blocks(values: torch.Tensor, starts: tuple[int, ...] = ()) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """Cut a tensor along its leading axes into blocks of at most CHUNK elements.

    Yields the block with all of its axes (leading ones of size 1 where cut) and the first index of each of them.
    """
    lead = len(starts)
    if values.numel() <= CHUNK or lead == values.ndim:
        yield values, starts + (0,) * (values.ndim - lead)
        return
    size = values.shape[lead]
    row = values.numel() // size
    rows = max(1, CHUNK // row)
    rows -= rows % WIDTH if rows > WIDTH else 0
    for start in range(0, size, rows):
        part = values.narrow(lead, start, min(rows, size - start))
        if part.numel() <= CHUNK:
            yield part, (*starts, start) + (0,) * (values.ndim - lead - 1)
        else:
            yield from _blocks(part, (*starts, start))


def _sketch(block: torch.Tensor, axes: tuple[Axis, ...], starts: tuple[int, ...]) -> torch.Tensor:
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
    signs = _signs(axis, start, size, values.device)
    if size <= WIDTH:
        return values * signs
    whole = size - size % WIDTH
    body = values[..., :whole].unflatten(-1, (-1, WIDTH)) * signs[:whole].view(-1, WIDTH)
    columns = body.sum(-2)
    if whole < size:
        columns[..., : size - whole] += values[..., whole:] * signs[whole:]
    return columns


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


def _integer_signs(block: torch.Tensor) -> torch.Tensor:
    odd = _mix(block.to(torch.int64) ^ VALUE_SEED) & 1
    return 1.0 - 2.0 * odd.to(torch.float64)


def _hash(tensor: torch.Tensor, kind: HashKind) -> tuple[int, int]:
    if kind is HashKind.NONE:
        return 0, 0
    if kind is HashKind.XXH3_128 and not tensor.is_conj() and _lies_plain(tensor):
        return _halves(int.from_bytes(kernel.digest(tensor.data_ptr(), tensor.nbytes), "big"))
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if kind is HashKind.XXH3_128:
        data = flat.cpu().view(torch.uint8).numpy().data if flat.numel() else b""
        return _halves(xxhash.xxh3_128_intdigest(data))
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    size = flat.element_size()
    sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for start in range(0, flat.numel(), CHUNK):
        bits = flat[start : start + CHUNK].view(_WORDS[size]).to(torch.int64) & _MASKS[size]
        place = torch.arange(start, start + bits.numel(), dtype=torch.int64, device=flat.device) * 2
        sums += torch.stack([(bits * (_mix(place + family) | 1)).sum() for family in (0, 1)])
    low, high = (word % (1 << 64) for word in sums.tolist())
    return low, high
