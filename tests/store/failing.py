"""Letting the system calls of the writer fail, each in turn."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pytest

from probe.store.writing import system
from probe.store.writing.disk import Disk

CALLS = ("open", "close", "stat", "fstat", "ftruncate", "rename", "unlink", "pread", "pwrite", "pwritev", "overwrite")


@dataclass
class Failing:
    """A context in which the n-th call of a kind fails; of which calls there are it keeps a list.

    Parameters
    ----------
    call
        its name, empty: none fails, ``"any"``: each is counted
    number
        which one, from 0
    error
        its error number
    lasting
        from this call on all calls of the writer fail
    done
        how much of a call is done that fails: 0, 0.5 of what it writes, 1
    short
        the call does not fail: it writes a part
    """

    call: str = ""
    number: int = 0
    error: int = errno.ENOSPC
    lasting: bool = False
    done: float = 0
    short: bool = False
    made: list[tuple[str, int]] = field(default_factory=list)
    """name of each call, and how many commits had been completed"""
    fired: bool = False
    commits: int = 0
    counted: int = 0

    def __enter__(self) -> Failing:
        self.patch = pytest.MonkeyPatch()
        for name in CALLS:
            self.patch.setattr(system, name, self._replacement(name, getattr(system, name)))
        commit = Disk.commit

        def counted(disk: Disk) -> None:
            commit(disk)
            self.commits += 1

        self.patch.setattr(Disk, "commit", counted)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.patch.undo()

    def _fails(self, name: str) -> bool:
        self.made.append((name, self.commits))
        if self.fired:
            return self.lasting
        if self.call in (name, "any"):
            self.fired = self.counted == self.number
            self.counted += 1
        return self.fired

    def _replacement(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            partial = _PARTIAL.get(name)
            if not self._fails(name) or (self.short and partial in (None, _whole)):
                return real(*arguments)
            share = 0.5 if self.short else 1 if name == "close" else self.done
            found = partial(real, share, *arguments) if partial and share else 0
            if self.short:
                return found
            if name == "overwrite":
                ctypes.set_errno(self.error)
                return -1
            raise OSError(self.error, os.strerror(self.error))

        return call


def _some_of(size: int, share: float) -> int:
    return max(int(size * share), 1)


def _parts(real: Callable[..., int], share: float, descriptor: int, parts: list[memoryview], offset: int) -> int:
    data = b"".join(parts)
    return real(descriptor, [data[: _some_of(len(data), share)]], offset)


def _one(real: Callable[..., int], share: float, descriptor: int, data: memoryview, offset: int) -> int:
    return real(descriptor, data[: int(len(data) * share) // 4096 * 4096], offset)


def _some(real: Callable[..., int], share: float, descriptor: int, data: bytes, size: int, offset: int) -> int:
    return real(descriptor, data, _some_of(size, share), offset)


def _read(real: Callable[..., bytes], share: float, descriptor: int, size: int, offset: int) -> bytes:
    return real(descriptor, _some_of(size, share / 16), offset)


def _whole(real: Callable[..., Any], share: float, *arguments: Any) -> Any:
    return real(*arguments) if share == 1 else None


_PARTIAL: dict[str, Callable[..., Any]] = {
    "pwritev": _parts, "pwrite": _one, "overwrite": _some, "pread": _read, "ftruncate": _whole, "close": _whole,
}  # fmt: skip
