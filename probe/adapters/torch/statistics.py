"""`probe.numbers.statistics.measure` for PyTorch tensors.

On the CPU by the compiled loop of `probe.numbers.kernel`, or, where that could not be built, by PyTorch's operations, in chunks,
in float64; on CUDA devices by the kernel of `probe.adapters.torch.cuda`; on others, and without triton, by `probe.adapters.torch.device`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
import xxhash

from probe.adapters.torch.cuda.launching import Row
from probe.adapters.torch.cuda.measuring import LAUNCHER
from probe.adapters.torch.device import Pending, measure_on_device
from probe.adapters.torch.device import settle as settle_operations
from probe.adapters.torch.operations import weighted_sums
from probe.adapters.torch.sharded import PLAIN, last_byte, plainly
from probe.numbers import kernel
from probe.numbers.packed import pack
from probe.numbers.statistics import update_hash
from probe.records import HashKind

_WITHOUT_FLOAT64 = ("mps", "npu")
"""devices whose tensors are copied to the CPU to be measured"""
_XXH3 = HashKind.XXH3_128
_FLOATS = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
SHARES_THREADS = kernel.share(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
"""whether the compiled loop computes in PyTorch's own threads"""
_KINDS = {getattr(torch, name): kind for name, kind in kernel.KINDS.items()}


def measure(
    tensor: torch.Tensor, order: Sequence[int] = (), hash_kind: HashKind | None = None, known: bytes | None = None
) -> bytes | Pending | Row:
    """Return all statistics of a tensor, see `probe.numbers.statistics.measure`, packed.

    The hash is xxh3_128 for tensors on the CPU, and the position-weighted sum elsewhere, unless it is named. What is
    computed on another device is pending until `settle`.
    """
    tensor = measurable(tensor.detach())
    if tensor.is_cpu and hash_kind in (None, HashKind.XXH3_128):
        plain = tensor.resolve_conj().resolve_neg()
        stats = measure_in_place(torch.view_as_real(plain) if plain.is_complex() else plain, order, known)
        if stats is not None:
            return stats
    if hash_kind is None:
        hash_kind = HashKind.XXH3_128 if tensor.is_cpu else HashKind.WSUM64
    if not tensor.is_cpu and hash_kind is not HashKind.XXH3_128:
        return LAUNCHER.measure(tensor, order, hash_kind) or measure_on_device(tensor, order, hash_kind)
    return _measure_by_operations(tensor, order, hash_kind)


def settle(pending: Sequence[Pending | Row]) -> list[bytes]:
    """Wait for the devices, fetch what is pending in one transfer from each of their streams, and return the statistics, packed."""
    rows = iter(LAUNCHER.settle([each for each in pending if isinstance(each, Row)]))
    others = iter(settle_operations([each for each in pending if not isinstance(each, Row)]))
    return [pack(next(rows if isinstance(each, Row) else others)) for each in pending]


def measurable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor where there is float64: itself, or a copy on the CPU."""
    return tensor.cpu() if tensor.device.type in _WITHOUT_FLOAT64 else tensor


def measure_in_place(
    tensor: torch.Tensor, order: Sequence[int], known: bytes | None = None, hash_kind: HashKind = _XXH3
) -> bytes | None:
    """Let the compiled loop pass over a tensor as it lies in memory; None if that cannot be done.

    No operation of PyTorch runs, so it does not matter in which mode the user's program is.
    """
    kind = _KINDS.get(tensor.dtype)
    if kind is None or not _lies_plain(tensor):
        return None
    strides = _strides(tensor)
    return kernel.measure(tensor.data_ptr(), tensor.nbytes, kind, tensor.shape, tuple(order), hash_kind, known, strides)


def measure_update(
    after: torch.Tensor, before: torch.Tensor, order: Sequence[int]
) -> tuple[str, bytes | Pending | Row, bytes | None]:
    """Return what `probe.adapters.base.Adapter.measure_update` does."""
    after, before = measurable(after.detach()), measurable(before.detach())
    wide = torch.complex128 if after.is_complex() else torch.float64
    name = str(wide).removeprefix("torch.")
    if not after.is_cpu:
        alike = after.dtype == before.dtype and after.shape == before.shape and after.dtype in _FLOATS
        row = LAUNCHER.measure(after, order, HashKind.WSUM64, before) if alike else None
        if row is not None:
            return name, row, None
        return name, measure_on_device(after.to(wide) - before.to(wide), order, HashKind.WSUM64, (before, after)), None
    found = measure_update_in_place(after, before, order)
    if found is not None:
        return name, *found
    difference = after.to(wide) - before.to(wide)
    (stats,) = settle_operations([measure_on_device(difference, order, HashKind.NONE, may_ask=True)])
    return name, pack(update_hash(stats, _hash(after, _XXH3), _hash(before, _XXH3), _XXH3)), None


def measure_update_in_place(
    after: torch.Tensor, before: torch.Tensor, order: Sequence[int]
) -> tuple[bytes, bytes] | None:
    """Let the compiled loop pass over both as they lie in memory; None if that cannot be done. No operation of PyTorch runs."""
    kind = _KINDS.get(after.dtype)
    is_alike = after.dtype == before.dtype and after.shape == before.shape and after.dtype in _FLOATS
    if kind is None or not is_alike or not _lies_plain(after) or not _lies_plain(before):
        return None
    return kernel.measure_update(
        after.data_ptr(), before.data_ptr(), after.nbytes, kind, after.shape, tuple(order), _strides(after),
        _strides(before),
    )  # fmt: skip


def _strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return what the compiled loop is told of how a tensor lies: nothing, where it lies in C order."""
    return None if tensor.is_contiguous() else tensor.stride()


def _lies_plain(tensor: torch.Tensor) -> bool:
    """Return True if the compiled loop can read a tensor: on the CPU, its memory not freed."""
    return (
        kernel.AVAILABLE
        and type(tensor) in PLAIN
        and tensor.is_cpu
        and not tensor.is_neg()
        and last_byte(tensor) <= tensor.untyped_storage().nbytes()
    )


def _measure_by_operations(tensor: torch.Tensor, order: Sequence[int], hash_kind: HashKind) -> bytes:
    (stats,) = settle_operations([measure_on_device(tensor, order, HashKind.NONE, may_ask=tensor.is_cpu)])
    low, high = _hash(tensor, hash_kind)
    return pack(stats._replace(hash_lo=low, hash_hi=high, hash_kind=hash_kind))


def _hash(tensor: torch.Tensor, kind: HashKind) -> tuple[int, int]:
    if kind is HashKind.NONE:
        return 0, 0
    if kind is HashKind.WSUM64:
        low, high = (word % (1 << 64) for word in weighted_sums(tensor).tolist())
        return low, high
    if not tensor.is_conj() and tensor.is_contiguous() and _lies_plain(tensor):
        return kernel.digest(tensor.data_ptr(), tensor.nbytes)
    flat = plainly(tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).cpu())
    nbytes = flat.numel() * flat.itemsize  # read past numpy: a storage that it saw keeps its size
    digest = xxhash.xxh3_128_intdigest((ctypes.c_ubyte * nbytes).from_address(flat.data_ptr()) if nbytes else b"")
    return digest & 0xFFFF_FFFF_FFFF_FFFF, digest >> 64
