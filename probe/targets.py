"""Which file this process records to, among the ranks of its job."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from probe.config import RecordConfig
from probe.errors import ExistsError, StoreError

Target = tuple[Path, bool, bool]
"""Which file a process records to; whether its name was made of the time, so that it gets a number where another run has begun in
the same second; whether nobody has named it or its folder, so that it is said"""


def place_in_the_world() -> tuple[int, int]:
    """Return (rank, world size) from torch.distributed or the launcher's variables."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)  # None while torch is being imported
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, size in (("RANK", "WORLD_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"), ("RANK_ID", "RANK_SIZE")):
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def target_of(
    path: str | os.PathLike[str] | None, rank: int, world_size: int, number: int = 1, folder: str = ""
) -> Target:
    """Return the file of a rank.

    Parameters
    ----------
    path
        a file, a folder (made if it ends in ``/``), or None for ``$PROBE_DUMP`` or a name that is made
    rank, world_size
        under several ranks ``a.h5`` becomes ``a.rank00003.h5``
    number
        how many recordings this process has begun, with this one: part of a name that ranks must agree on
    folder
        where it goes if neither ``path`` nor ``$PROBE_DUMP`` says it, made if it is not there; empty for the working directory

    Raises
    ------
    StoreError
        the folder can't be looked at
    """
    default = time.strftime("probe-%Y%m%d-%H%M%S.h5") if world_size == 1 else _name_for_all_ranks(number)
    given = os.environ.get("PROBE_DUMP") if path is None and not folder else path
    target = Path(given or folder or default)
    try:
        if (folder and not given) or os.fspath(given or "").endswith(os.sep):
            target.mkdir(parents=True, exist_ok=True)
        is_folder = target.is_dir()
    except OSError as error:
        raise StoreError(f"cannot create {target}: {error.strerror}; is the folder there and writable?") from None
    if is_folder:
        target = target / default
    if world_size > 1:
        target = target.with_name(f"{target.stem}.rank{rank:05d}{target.suffix or '.h5'}")
    return target, world_size == 1 and (is_folder or not given), not given


def overwrites(overwrite: bool | None) -> bool:
    """Return whether an earlier recording is to be replaced: as the option says, or ``$PROBE_OVERWRITE``."""
    return os.environ.get("PROBE_OVERWRITE", "") not in ("", "0") if overwrite is None else overwrite


def already_there(path: Path, option: str = "probe.start(..., overwrite=True)") -> ExistsError:
    """Return the error of a recording that would replace a file; ``option`` is how to ask for that."""
    return ExistsError(f"{path} exists; give another name, or replace it: {option} or PROBE_OVERWRITE=1")


def check(
    path: str | os.PathLike[str] | None = None,
    option: str = "overwrite=True",
    *,
    overwrite: bool | None = None,
    **options: Any,
) -> None:
    """Raise what `probe.start` would raise, as far as that is known without a model and before ranks are.

    Parameters
    ----------
    path, overwrite, options
        as `probe.start` takes them
    option
        how to ask for ``overwrite``

    Raises
    ------
    ConfigError
        an option makes no sense
    ExistsError
        the file is already there, and ``overwrite`` is off
    StoreError
        its folder isn't there
    """
    settings = RecordConfig.from_options(**options)
    rank, world_size = place_in_the_world()
    if path is None or not settings.wants_rank(rank):
        return
    target, _, _ = target_of(path, rank, world_size)
    if not target.parent.is_dir():
        raise StoreError(f"cannot create {target}: the folder {target.parent} isn't there")
    if target.exists() and not overwrites(overwrite):
        raise already_there(target, option)


def _name_for_all_ranks(number: int) -> str:
    """Return a default name from what all ranks know: the launcher's job, and how often recording has begun."""
    jobs = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")]
    job = next((job for job in jobs if job not in ("", "none")), "")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    parts = ["probe", job, "" if restart == "0" else f"restart{restart}", "" if number == 1 else str(number)]
    return re.sub(r"[^\w.-]", "_", "-".join(part for part in parts if part)) + ".h5"
