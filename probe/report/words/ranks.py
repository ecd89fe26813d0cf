"""What is said of many ranks: their files, how tensors are divided, copies that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MOST = 8


def listed(ranks: Sequence[int]) -> str:
    """Name ranks: ``rank 3``, ``ranks 0, 1``."""
    more = f" … ({len(ranks)} ranks)" if len(ranks) > _MOST else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:_MOST]))}{more}"


def _copies(side: str, ranks: Sequence[int], others: Sequence[int], groups: Sequence[str], error: float) -> str:
    where = f" of one {' and '.join(groups)} group" if groups else ""
    size = f"relative difference {error:.1e}"
    if not others:
        return f"{side}: {listed(ranks)}{where} must hold the same and do not ({size}); nothing tells which is right"
    verbs = ("differs" if len(ranks) == 1 else "differ"), ("holds" if len(others) == 1 else "hold")
    return f"{side}: {listed(ranks)} {verbs[0]} from {listed(others)}{where}, which {verbs[1]} a copy of it ({size})"


def _of_weights(phase: str) -> str:
    if phase == "init":
        return "look at the seed and the checkpoint of each rank, and at the broadcast of initial weights"
    return "look at the reduction of this gradient over the ranks that hold a copy of the weight"


def _on_ranks(side: str, ranks: Sequence[int], of: int) -> str:
    only = f", not on the other {of - len(ranks)} that hold parts of it" if of > len(ranks) else ""
    return f"{side}: on {listed(ranks)}{only}"


def _missing(ranks: Sequence[int], world: int) -> str:
    return f"there is no file of {listed(ranks)} of {world}: give the folder or the prefix of all files, or record every rank"


def _unknown(side: str, tensors: Sequence[str], count: int, why: str) -> str:
    more = f" and {count - len(tensors)} more" if count > len(tensors) else ""
    reason = "nothing says how they are divided over ranks" if why == "dims-unknown" else why
    return f"{side}: not compared, because {reason}: {', '.join(tensors)}{more}; say it in the mapping, section dims"


def _parts(path: str, ranks: Sequence[int], why: str) -> str:
    return f"{path}: what {listed(ranks)} hold does not make one parameter: {why}"


def _layer(path: str, stage: int, said: int, expected: int, ranks: Sequence[int]) -> str:
    return (
        f"{path} of pipeline stage {stage} ({listed(ranks)}) says that it is layer {said}; after the layers of the stages before it, "
        f"{expected} is expected"
    )


def _settings(setting: str, value: object, ranks: Sequence[int], other: object, others: Sequence[int]) -> str:
    return f"{setting} of the optimizer is {value} on {listed(ranks)}, and {other} on {listed(others)}"


WORDS: dict[str, str | Callable[..., str]] = {
    "copies-differ": _copies,
    "copies-of-weights": _of_weights,
    "copies-of-tensors": (
        "look at the collective at the end of this module (all-reduce, reduce-scatter, gather), and at what only some ranks add"
    ),
    "on-ranks": _on_ranks,
    "parts-of-ranks": (
        "{side}: what its ranks hold is put one behind the other; where each holds a share of every part (q, k, v; gate, up), say so in the "
        "mapping, section dims"
    ),
    "ranks-missing": _missing,
    "groups-contradict": "{what}",
    "of-set-of-files": "{side}: {what}",
    "dims-unknown": _unknown,
    "parts-do-not-fit": _parts,
    "layer-number-of-stage": _layer,
    "optimizer-of-ranks": _settings,
    "dims-match-nothing": "dims {key!r} of the mapping say nothing: {what}",
}
