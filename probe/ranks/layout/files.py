"""The files of one run's ranks: found by a prefix, a folder or a glob, and held against each other."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from probe.errors import StoreError
from probe.records import RunInfo
from probe.store.places import matching, place_of

RANK = re.compile(r"(?P<prefix>.*)\.rank(?P<rank>\d+)(?P<suffix>\.[^.]*)?")
"""of a rank's file, which `probe.start` names so"""
_SHOWN = 5
_APART = 3600
"""seconds between the starts of two ranks of one run, at most"""


def files_of(given: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the recordings that a path stands for: a file, or one of each rank, in the order of ranks.

    The path is a file; the name that `probe.start` was given (``a.h5`` or ``a``, where there are ``a.rank00000.h5``
    …); a folder with the files of one run; or a glob. Raises StoreError where there is no such file, or there are
    files of several runs.
    """
    path = place_of(given)
    if path.is_file():
        return (path,)
    if path.is_dir():
        return _in_folder(path)
    if glob.has_magic(str(path)):
        found = matching(str(path))
        if not found:
            raise StoreError(f"no file matches {path}")
        return _of_one_prefix(path, found)
    return _of_one_prefix(path, _with_prefix(path)) or (path,)


def has_ranks(given: str | Path) -> bool:
    """Return True if a path stands for the files of several ranks."""
    path = place_of(given)
    if path.is_file():
        return False
    if path.is_dir():
        return any(RANK.fullmatch(each.name) for each in path.iterdir())
    return bool(glob.has_magic(str(given)) and matching(str(given))) or bool(_with_prefix(path))


def _with_prefix(path: Path) -> list[Path]:
    """Return the files of ranks whose name before ``.rank`` is this one, with or without its suffix."""
    if not path.parent.is_dir():
        return []
    found = []
    for each in path.parent.glob(f"{glob.escape(path.stem)}*.rank*"):
        told = RANK.fullmatch(each.name)
        is_meant = told is not None and (
            told["prefix"] == path.name or (told["prefix"], told["suffix"] or "") == (path.stem, path.suffix)
        )
        if is_meant and each.is_file():
            found.append(each)
    return found


def _in_folder(path: Path) -> tuple[Path, ...]:
    found = [each for each in path.iterdir() if RANK.fullmatch(each.name) and each.is_file()]
    if found:
        return _of_one_prefix(path, found)
    single = sorted(path.glob("*.h5"))
    if len(single) == 1:
        return (single[0],)
    names = ", ".join(each.name for each in single[:_SHOWN])
    more = f"; it has {names}{' …' if len(single) > _SHOWN else ''}" if single else ""
    raise StoreError(f"{path} is a folder with no files of ranks (a.rank00000.h5 …){more}; give the recording in it")


def _of_one_prefix(given: Path, found: Sequence[Path]) -> tuple[Path, ...]:
    """Return files in the order of their ranks."""
    told = {each: RANK.fullmatch(each.name) for each in found}
    prefixes = sorted({match["prefix"] if match else each.name for each, match in told.items()})
    if len(prefixes) > 1:
        raise StoreError(
            f"{given} stands for the files of several runs: {', '.join(prefixes[:_SHOWN])}{' …' if len(prefixes) > _SHOWN else ''}; give "
            "the prefix of one"
        )
    return tuple(sorted(found, key=lambda each: (int(match["rank"]) if (match := told[each]) else 0, each.name)))


def missing_ranks(infos: Iterable[RunInfo]) -> tuple[int, ...]:
    """Return the ranks that recorded, by what one of them says, and of which there is no file."""
    known = list(infos)
    world = max((info.world_size for info in known), default=1)
    chosen = known[0].config.get("ranks") if known else None
    wanted = set(range(world)) if not isinstance(chosen, list) else {rank for rank in chosen if rank < world}
    return tuple(sorted(wanted - {info.rank for info in known}))


def require_one_run(paths: Sequence[Path], infos: Sequence[RunInfo]) -> None:
    """Raise StoreError where files are not those of one run's ranks; name the one that is not.

    Ranks of a run have no number in common: what they record of the launch, their framework and their count of ranks must be the same.
    """
    first, seen = infos[0], {}
    for path, info in zip(paths, infos, strict=True):
        if info.rank in seen:
            raise StoreError(
                f"{path.name} and {seen[info.rank].name} are both of rank {info.rank}: they are of two runs"
            )
        seen[info.rank] = path
        for what, mine, other in (
            ("has", f"{info.world_size} ranks", f"{first.world_size} ranks"),
            ("is of", f"{info.framework} {info.framework_version}", f"{first.framework} {first.framework_version}"),
            ("is of the launch", str(info.parallel.get("launch", "")), str(first.parallel.get("launch", ""))),
        ):
            if mine != other:
                raise StoreError(f"{path.name} is of another run than {paths[0].name}: it {what} {mine}, that {other}")
        if not first.parallel.get("launch") and _seconds_between(first.created, info.created) > _APART:
            raise StoreError(
                f"{path.name} is of another run than {paths[0].name}: it was begun at {info.created}, that at {first.created}"
            )


def _seconds_between(one: str, other: str) -> float:
    try:
        return abs((datetime.fromisoformat(one) - datetime.fromisoformat(other)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
