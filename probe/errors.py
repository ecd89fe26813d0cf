"""Everything that probe raises or warns about.

ProbeError
├── RecordingError        (also RuntimeError)   recording cannot begin or go on
├── ConfigError           (also ValueError)     an option that makes no sense
├── StoreError            (also OSError)        a file cannot be written or read
│   ├── FormatError                             not a probe file, damaged, or of a newer version
│   └── ExistsError       (also FileExistsError)
├── MappingError          (also ValueError)     a layer mapping that cannot be used
├── ConversionError       (also ValueError)     weights that cannot be read, converted or written
└── NotRecordedError      (also KeyError)       asked for something that the file does not hold

ProbeWarning (UserWarning): said once about what could not be recorded or compared.
"""

from __future__ import annotations

import sys
import warnings

_NOT_THE_USERS = {"probe", "torch", "paddle", "mindspore", "contextlib"}
"""packages that stand between the user's line and what is said about it"""


class ProbeError(Exception):
    """Base of every error that probe raises."""

    def __str__(self) -> str:
        return self.args[0] if self.args else type(self).__name__

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback: the message says what to do."""
        return [f"{type(self).__name__}: {self}"]


class RecordingError(ProbeError, RuntimeError):
    """Recording cannot begin or cannot go on."""


class ConfigError(ProbeError, ValueError):
    """An option has a value that probe cannot use."""


class StoreError(ProbeError, OSError):
    """A recording cannot be written or read."""


class FormatError(StoreError):
    """The file is not a probe recording, is damaged, or is of a newer version."""


class ExistsError(StoreError, FileExistsError):
    """The file to be written is already there."""


class MappingError(ProbeError, ValueError):
    """A layer mapping is not valid or cannot be applied."""


class ConversionError(ProbeError, ValueError):
    """Weights cannot be read, converted or written."""


class NotRecordedError(ProbeError, KeyError):
    """What was asked for is not in the recording."""


class ProbeWarning(UserWarning):
    """Something could not be recorded or compared; it is said once."""


def warn(text: str) -> None:
    """Say something as a `ProbeWarning`, at the line of the user's program that led to it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    warnings.warn(f"probe: {text}", ProbeWarning, stacklevel=level)
