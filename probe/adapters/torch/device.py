"""Statistics of tensors by PyTorch's operations; on an accelerator without waiting for it, and fetched together.

Nothing here asks a device for a value before `settle`: which elements are finite decides no branch there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from probe.adapters.torch.operations import INTEGERS, blocks, integer_signs, sketch_of, weighted_sums
from probe.numbers.sketch import CHUNK, WIDTH, axes_of
from probe.numbers.statistics import finish, update_hash
from probe.records import HashKind, TensorStats

_CHUNK = 16 * CHUNK
"""elements that are turned to float64 at a time on an accelerator: fewer and longer kernels than on a CPU, some 100 MiB of temporaries"""
_SUMS = 8


class Pending(NamedTuple):
    """Statistics that the device is still computing."""

    numbers: torch.Tensor
    """float64, shape (8 + 61 + 2·hashes,): sums and counts, sketch, halves of hashes as they lie in memory"""
    count: int
    """elements of the tensor"""
    hash_kind: HashKind
    is_update: bool = False
    """the hashes are those of the tensor before and of the one after"""


def measure_on_device(
    tensor: torch.Tensor,
    order: Sequence[int],
    hash_kind: HashKind,
    hashed: Sequence[torch.Tensor] = (),
    may_ask: bool = False,
) -> Pending:
    """Begin to compute `probe.numbers.statistics.measure`; the rest as in `probe.adapters.torch.statistics.measure`.

    ``hashed`` are the tensors before and after, of whose difference ``tensor`` is; otherwise it is hashed itself.
    With ``may_ask`` values may be looked at, to pass over what is finite once: nobody waits for a CPU.
    """
    values = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    axes = axes_of(tuple(values.shape), tuple(order))
    sketched = torch.zeros(WIDTH, dtype=torch.float64, device=values.device)
    sums = []
    for block, starts in blocks(values.squeeze(), CHUNK if may_ask else _CHUNK):
        part = block.to(torch.float64)
        sums.append(_sums(part.reshape(-1), may_ask))
        clean = integer_signs(block) if values.dtype in INTEGERS else part.nan_to_num(0, 0, 0)
        sketched += sketch_of(clean, axes, starts)
    together = torch.stack(sums)
    parts = [together[:, 0].amin()[None], together[:, 1].amax()[None], together[:, 2:].sum(0), sketched]
    if hash_kind is not HashKind.NONE:
        parts += [weighted_sums(each).view(torch.float64) for each in hashed or (tensor,)]
    return Pending(torch.cat(parts), values.numel(), hash_kind, bool(hashed))


def _sums(part: torch.Tensor, may_ask: bool) -> torch.Tensor:
    """Return (min, max, sum, sum of squares) of what is finite, (NaN, +Inf, −Inf, zeros), all as float64."""
    if not part.numel():
        return torch.tensor([torch.inf, -torch.inf] + [0.0] * 6, dtype=torch.float64, device=part.device)
    low, high = torch.aminmax(part)
    counts = [torch.zeros((), dtype=torch.int64, device=part.device)] * 3
    if not may_ask or not (low.isfinite() and high.isfinite()):  # NaN is the least and the largest
        low, high = (part.nan_to_num(end, end, end) for end in (torch.inf, -torch.inf))
        low, high = low.amin(), high.amax()
        counts = [each.count_nonzero() for each in (part.isnan(), part == torch.inf, part == -torch.inf)]
        part = part.nan_to_num(0, 0, 0)
        counts.append((part == 0).count_nonzero() - sum(counts))
    else:
        counts.append(part.numel() - part.count_nonzero())
    return torch.stack([low, high, part.sum(), torch.dot(part, part), *(each.to(torch.float64) for each in counts)])


def settle(pending: Sequence[Pending]) -> list[TensorStats]:
    """Wait for the devices, fetch all results in one transfer from each, and return the statistics."""
    devices: dict[torch.device, list[int]] = {}
    for index, each in enumerate(pending):
        devices.setdefault(each.numbers.device, []).append(index)
    settled: dict[int, TensorStats] = {}
    for indices in devices.values():
        fetched = torch.cat([pending[index].numbers for index in indices]).cpu()
        rows = fetched.split([pending[index].numbers.numel() for index in indices])
        settled.update((index, _finished(pending[index], row)) for index, row in zip(indices, rows, strict=True))
    return [settled[index] for index in range(len(pending))]


def _finished(pending: Pending, row: torch.Tensor) -> TensorStats:
    words = [word % (1 << 64) for word in row[_SUMS + WIDTH :].contiguous().view(torch.int64).tolist()]
    sums, sketched = row[:_SUMS].tolist(), row[_SUMS : _SUMS + WIDTH].numpy()
    hashes = words[2:] + words[:2] if pending.is_update else words
    return statistics_of(sums, sketched, hashes, pending.count, pending.hash_kind, pending.is_update)


def statistics_of(
    sums: Sequence[float], sketched: np.ndarray, words: Sequence[int], count: int, kind: HashKind, is_update: bool
) -> TensorStats:
    """Return the statistics that a device's numbers stand for.

    ``sums`` are min, max, sum, sum of squares, and numbers of NaN, +Inf, −Inf and zeros; ``words`` the halves of the
    hash, low and high, of an update those of the tensor after and of the one before; ``count`` the elements of the
    tensor.
    """
    low, high, total, squares, *counts = sums
    nan, posinf, neginf, zeros = map(int, counts)
    halves = (words[0], words[1]) if words and not is_update else (0, 0)
    finite = count - nan - posinf - neginf
    stats = finish(finite, low, high, total, squares, (nan, posinf, neginf, zeros), (*halves, kind), sketched)
    return update_hash(stats, (words[0], words[1]), (words[2], words[3]), kind) if is_update else stats
