"""The benchmark's table: how many answers of each grade, by phase and by dtype, and every miss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from benchmarks.localisation.pairs import PHASES, Pair
from benchmarks.localisation.suite import GRADES, PAIRS, Answer, pair_of

GOOD = ("exact", "aligned")


def rows(answers: Iterable[Answer], mode: str) -> list[list[str]]:
    """Return the lines of a mode's table: all faults, by phase, by dtype, by half, and the clean pairs."""
    graded = [(pair_of(answer.pair), answer.grade) for answer in answers if answer.mode == mode]
    faulty = [(pair, grade) for pair, grade in graded if pair.truth]
    lines = [_line("all faults", faulty, lambda pair: True)]
    lines += [_line(f"  {phase}", faulty, lambda pair, phase=phase: pair.phase == phase) for phase in PHASES]
    lines += [_line("  a later step", faulty, lambda pair: pair.truth is not None and pair.truth.step > 0)]
    lines += [_line("  another structure", faulty, lambda pair: pair.mapping is not None)]
    for dtype in ("fp32", "autocast", "bf16", "fp16"):
        lines.append(_line(f"  {dtype}", faulty, lambda pair, dtype=dtype: pair.a.dtype == dtype))
    lines += [_line("  held out", faulty, lambda pair: pair.held_out)]
    clean = [(pair, grade) for pair, grade in graded if not pair.truth]
    lines += [_line("clean", clean, lambda pair: True), _line("  held out", clean, lambda pair: pair.held_out)]
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


def markdown(answers: Iterable[Answer], modes: Iterable[str]) -> str:
    """Return the page of the documentation; written by ``--markdown``, not by hand."""
    answers = list(answers)
    lines = [_INTRODUCTION]
    for mode in modes:
        lines += [f"## From {mode} dumps", "", *_page_table(header(), rows(answers, mode)), ""]
    lines += ["## Misses", "", *_page_table(["pair", "mode", "grade", "right answer", "answer"], misses(answers)), ""]
    lines += [f"* {summary(answers, mode)}" for mode in modes]
    return "\n".join([*lines, ""])


def _page_table(names: list[str], lines: list[list[str]]) -> list[str]:
    table = [names, ["---"] * len(names), *lines]
    return ["| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |" for cells in table]


_INTRODUCTION = """# Localisation

Written by `python -m benchmarks.localisation --markdown docs/localisation.md`. Small trainings of 19 models (transformers' Qwen2, Llama,
Mixtral, GPT-2, BERT, ViT, T5, Whisper and Mamba; hand-written ones) run twice: side B has one fault and, so that there is noise, other
kernels, another order of sums or another layout in memory; or only the latter. Each pair is recorded with values and with statistics only.

* `benchmarks/localisation/tuned.py` and `held_out.py` are the pairs, a line each; `faults.py` is what can be planted, a line each.
  The held-out half was written before any answer was looked at.
* `python -m benchmarks.localisation.brute_force` confirms the right answers without probe: side B runs with its fault and without, every
  call of a module is made again in both with the same arguments, and what differs bit by bit is where the fault is. It also
  prints how many times larger than the pair's own noise the fault is.
* `--random N` judges N clean pairs that are drawn: model, size, dtype, kernels, batch split, optimizer, clipping, steps, seed.
* `--share 0.1` takes a tenth, the same one each time; `--cache FOLDER` keeps the recordings for the next run.

The grades exclude each other. *exact*: the module, the phase and the step of the first divergence are right. *parent*: the module directly
around it, in the right phase and step. *top-3*: the second or third divergence is exact. *other phase*: the module in another phase
or step. *wrong name*: anything else that was named first. *missed*: aligned, though there is a fault.
"""


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
