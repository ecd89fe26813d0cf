"""The benchmark's table: how many answers of each grade, by phase and by dtype, and every miss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from benchmarks.grading import GRADES, PHASES
from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.pairs.registry import PAIRS
from benchmarks.localisation.tools.suite import Answer, pair_of

GOOD = ("exact", "aligned")
HELD_OUT = tuple(f"held-out-{number}" for number in range(1, 6))
"""the sets of which nobody had seen an answer when they were scored"""


def rows(answers: Iterable[Answer], mode: str) -> list[list[str]]:
    """Return the lines of a mode's table: all faults, by phase, by dtype, by framework, and the clean pairs."""
    graded = [(pair_of(answer.pair), answer.grade) for answer in answers if answer.mode == mode]
    faulty = [(pair, grade) for pair, grade in graded if pair.truth]
    lines = [_line("all faults", faulty, lambda pair: True)]
    lines += [_line(f"  {phase}", faulty, lambda pair, phase=phase: pair.phase == phase) for phase in PHASES]
    lines += [_line("  a later step", faulty, lambda pair: pair.truth is not None and pair.truth.step > 0)]
    lines += [_line("  another structure", faulty, lambda pair: pair.mapping is not None)]
    for dtype in ("fp32", "autocast", "bf16", "fp16"):
        lines.append(_line(f"  {dtype}", faulty, lambda pair, dtype=dtype: pair.a.dtype == dtype))
    for framework in ("paddle", "mindspore"):
        lines.append(_line(f"  torch–{framework}", faulty, lambda pair, f=framework: pair.b.framework == f))
    lines += [_line(f"  {name}, faults", faulty, lambda pair, name=name: pair.set == name) for name in HELD_OUT]
    clean = [(pair, grade) for pair, grade in graded if not pair.truth]
    lines += [
        _line("all clean", clean, lambda pair: True),
        _line("  torch–paddle, torch–mindspore", clean, lambda pair: pair.b.framework != "torch"),
    ]
    lines += [_line(f"  {name}, clean", clean, lambda pair, name=name: pair.set == name) for name in HELD_OUT]
    return lines


def header() -> list[str]:
    """Return the names of the columns."""
    return ["pairs", "number", *GRADES]


def summary(answers: Iterable[Answer], mode: str) -> str:
    """Return a mode's figures in one line."""
    grades = [(pair_of(answer.pair).truth is not None, answer.grade) for answer in answers if answer.mode == mode]
    faults = [grade for is_faulty, grade in grades if is_faulty]
    alarms = [grade for is_faulty, grade in grades if not is_faulty]
    exact, near = faults.count("exact"), faults.count("exact") + faults.count("parent")
    shares = [f"{100 * number / max(len(faults), 1):.1f} %" for number in (exact, near)]
    return (
        f"{mode}: of {len(faults)} faults {exact} exact ({shares[0]}), {near} exact or parent ({shares[1]}); "
        f"of {len(alarms)} clean pairs {alarms.count('aligned')} aligned, {alarms.count('false alarm')} false alarms"
    )


def misses(answers: Iterable[Answer]) -> list[list[str]]:
    """Return every answer that is not the right one: pair, mode, grade, expected, said."""
    found = [answer for answer in answers if answer.grade not in GOOD]
    places = {name: place for place, name in enumerate(PAIRS)}
    found.sort(key=lambda answer: (places.get(answer.pair, len(places)), answer.pair, answer.mode))
    return [[x.pair, x.mode, x.grade, x.expected, x.said] for x in found]


def as_json(answers: Iterable[Answer]) -> dict[str, object]:
    """Return everything for a program to read."""
    answers = list(answers)
    modes = dict.fromkeys(answer.mode for answer in answers)
    return {
        "counts": {mode: dict(Counter(answer.grade for answer in answers if answer.mode == mode)) for mode in modes},
        "answers": [
            {
                "pair": answer.pair, "mode": answer.mode, "grade": answer.grade, "expected": answer.expected,
                "said": answer.said, "architecture": pair_of(answer.pair).a.architecture,
                "dtype": pair_of(answer.pair).a.dtype, "phase": pair_of(answer.pair).phase,
                "held_out": pair_of(answer.pair).held_out, "about": pair_of(answer.pair).about,
            }
            for answer in sorted(answers, key=lambda answer: (answer.pair, answer.mode))
        ],
    }  # fmt: skip


def _line(name: str, graded: list[tuple[Pair, str]], belongs: Callable[[Pair], bool]) -> list[str]:
    counts = Counter(grade for pair, grade in graded if belongs(pair))
    return [name, str(counts.total()), *(str(counts[grade]) if counts[grade] else "·" for grade in GRADES)]
