"""What a comparison has found of values, kept in a file: one that was interrupted goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, Self

from probe._version import __version__
from probe.comparison.distance.metrics import Metrics, Status
from probe.errors import ConfigError

_FIELDS = [field.name for field in fields(Metrics) if field.name not in ("status", "why")]


class Kept:
    """A file of JSON lines: which recordings, and behind that what was found of pairs of tensors.

    Parameters
    ----------
    path
        of the file; it is begun where there is none
    of
        what tells the recordings from others

    Raises
    ------
    ConfigError
        the file belongs to other recordings or another version of probe, or is none of these files
    """

    def __init__(self, path: str | Path, of: Mapping[str, object]) -> None:
        self._path = Path(path)
        self._head = {"probe": __version__, **json.loads(json.dumps(of, sort_keys=True))}
        self.found: dict[str, Metrics] = {}
        """what is known, by what tells the contents of two tensors and how they are compared"""
        self._file: IO[str] | None = None
        end = self._read() if self._path.exists() else 0
        try:
            self._file = self._path.open("r+" if end else "w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
        self._file.seek(end)
        self._file.truncate()
        if not end:
            self._write(self._head)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, found: Mapping[str, Metrics]) -> None:
        """Keep what was found; what has words to say is found again."""
        rows = [[name, _plain(each)] for name, each in found.items() if name and each.why is None]
        if rows:
            self._write(rows)

    def _write(self, line: object) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _read(self) -> int:
        """Read the file; return where its last whole line ends: a process that was killed leaves a part of one."""
        raw = self._path.read_bytes()
        end = raw.rfind(b"\n") + 1
        lines = raw[:end].splitlines()
        if not lines and not raw:
            return 0
        try:
            head, *rest = [json.loads(line) for line in lines]
            known = [(str(name), _metrics(each)) for rows in rest for name, each in rows]
        except (ValueError, TypeError, KeyError, IndexError, UnicodeDecodeError):
            raise ConfigError(f"{self._path} is no file that resume= has written; give another one") from None
        if head != self._head:
            differing = [key for key in self._head if not isinstance(head, dict) or head.get(key) != self._head[key]]
            raise ConfigError(
                f"{self._path} was begun by another comparison (other {', '.join(differing) or 'contents'}): give another file, or remove it"
            )
        self.found.update(known)
        return end


def _plain(metrics: Metrics) -> list[Any]:
    return [metrics.status.value, *(getattr(metrics, name) for name in _FIELDS)]


def _metrics(row: Sequence[Any]) -> Metrics:
    status, *values = row
    named = dict(zip(_FIELDS, values, strict=True))
    at = named["max_abs_at"]
    return Metrics(Status(status), **{**named, "max_abs_at": None if at is None else tuple(at)})
