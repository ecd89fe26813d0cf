"""The tables of the benchmark: figures of each pair, and what is not right."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.public_ports.running import Answer, Recall

HEADER = (
    "pair",
    "mode",
    "way",
    "right pair",
    "faults",
    "named",
    "undecided",
    "missed",
    "wrong name",
    "other",
    "true pairs found",
)
NAMED = ("exact",)


def rows(found: Iterable[Answer], recalls: Iterable[Recall]) -> list[list[str]]:
    """Return a line for each pair, mode and way, and a last one for each mode and way."""
    found = list(found)
    recalled = {(each.pair, each.mode): (each.found, each.true) for each in recalls}
    keys = list(dict.fromkeys((each.mode, each.way) for each in found))
    lines = []
    for mode, way in keys:
        here = [each for each in found if (each.mode, each.way) == (mode, way)]
        pairs = list(dict.fromkeys(each.pair for each in here))
        for pair in pairs:
            counts = recalled.get((pair, mode)) if way == "bare" else None
            lines.append(_row(pair, mode, way, [each for each in here if each.pair == pair], counts))
        sums = [recalled[pair, mode] for pair in pairs if (pair, mode) in recalled] if way == "bare" else []
        total = (sum(a for a, _ in sums), sum(b for _, b in sums)) if sums else None
        lines.append(_row("all", mode, way, here, total))
    return lines


def _row(name: str, mode: str, way: str, found: list[Answer], recall: tuple[int, int] | None) -> list[str]:
    right = [each.grade == "aligned" for each in found if not each.fault]
    grades = [each.grade for each in found if each.fault]
    counted = [
        sum(grade in NAMED for grade in grades),
        *(grades.count(x) for x in ("undecided", "missed", "wrong name")),
    ]
    other = len(grades) - sum(counted)
    share = "" if recall is None else f"{recall[0]} of {recall[1]}"
    return [name, mode, way, f"{sum(right)} of {len(right)}", str(len(grades)), *map(str, counted), str(other), share]


def misses(found: Iterable[Answer]) -> list[Answer]:
    """Return every answer that is not the right one."""
    return [each for each in found if each.grade not in (*NAMED, "aligned")]
