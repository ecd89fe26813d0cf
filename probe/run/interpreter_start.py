"""The file by which python looks at ``PROBE_RECORD`` when it starts: one line in the environment's site-packages, put there on request."""

from __future__ import annotations

import os
import site
import sysconfig
from pathlib import Path

from probe.errors import StoreError

NAME = "probe-record.pth"
LINE = "import os; os.environ.get('PROBE_RECORD') and __import__('probe.run.activation', fromlist=['_']).from_environment()\n"
"""what python's ``site`` runs; without the variable it is a look into a dict"""


def _folders() -> list[Path]:
    """Return where the file may be: in the environment, or in the user's folder where that can't be written."""
    users = [Path(site.getusersitepackages())] if site.ENABLE_USER_SITE else []
    return [Path(sysconfig.get_path("purelib")), *users]


def is_installed() -> bool:
    """Return True if python looks at the variable when it starts."""
    return any((folder / NAME).exists() for folder in _folders())


def install() -> str:
    """Put the file into this Python environment; return what was done.

    Raises
    ------
    StoreError
        no folder can be written
    """
    refused: OSError | None = None
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / NAME).write_text(LINE, encoding="utf-8")
        except OSError as error:
            refused = refused or error
            continue
        return f"{folder / NAME} is written: PROBE_RECORD=a.h5 now records programs of this Python environment; --remove-hook undoes it"
    raise StoreError(
        f"cannot write {_folders()[0] / NAME}: {refused.strerror if refused else 'no folder'}; make a virtual environment"
    )


def remove() -> str:
    """Take the file away; return what was done.

    Raises
    ------
    StoreError
        it can't be removed
    """
    found = [folder / NAME for folder in _folders() if (folder / NAME).exists()]
    for path in found:
        try:
            os.remove(path)
        except OSError as error:
            raise StoreError(f"cannot remove {path}: {error.strerror}") from None
    return f"{' and '.join(map(str, found))} is removed" if found else f"there is no {NAME} in this Python environment"
