"""The page on all situations: a row for each kind, and below the table what fell and what was said."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from benchmarks.trainings.judging import Outcome

_HEAD = """\
# Trainings over ranks, in others' loops, compiled and in place

Written by `python -m benchmarks.trainings --markdown docs/evidence/distributed.md`, which prints each situation, with torch {torch} on {system};
those of transformers, accelerate and Lightning run where these are installed. Each situation is trained in processes of its own, five times
from the same seeds: twice without probe, with `task="statistics"`, with `task="tensor"`, and with another eps in one norm. Two ranks run over gloo.

A situation holds if

* losses, gradients with their strides, weights, buffers, the optimizer's state and all random generators are bitwise those without probe;
* every process group counts as many collectives as without probe;
* behind `probe.stop()` there is no hook, thread or open file of probe's;
* two recordings without the fault are `ALIGNED`, or `UNDECIDED` if compiled code hides the modules;
* the planted fault is named: in compiled code by `DIVERGED`, on the other ranks of a pipeline by what they were given.

Not shown: GPUs and their collectives, more than two ranks, other versions.

{summary}

| situations | number | hold | do not run here | ranks | two equal runs |
|---|---|---|---|---|---|
"""


def page(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the page as Markdown."""
    ran = [ranks for ranks in outcomes.values() if not any(each.failed for each in ranks)]
    held = sum(all(each.holds for each in ranks) for ranks in ran)
    summary = f"{len(outcomes)} situations, of which {len(outcomes) - len(ran)} do not run here without probe either; {held} of {len(ran)} hold."
    head = _HEAD.format(torch=torch.__version__, system=platform.system(), summary=summary)
    return head + "\n".join(_rows(outcomes)) + "\n" + _said(outcomes) + _fell(outcomes)


def _kinds(names: Iterable[str]) -> dict[str, list[str]]:
    """Group situations by what their names begin with."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.split("[,:]", name)[0], []).append(name)
    return kinds


def _rows(outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    """Return a line for each kind of situations."""
    for kind, names in _kinds(outcomes).items():
        ran = [outcomes[name] for name in names if not any(each.failed for each in outcomes[name])]
        held = sum(all(each.holds for each in ranks) for ranks in ran)
        ranks = " or ".join(map(str, sorted({len(outcomes[name]) for name in names})))
        equal = Counter(next((each.clean for each in ranks if each.clean), "–") for ranks in ran)
        said = ", ".join(f"{number} {word}" for word, number in sorted(equal.items()))
        yield f"| {kind} | {len(names)} | {held} | {len(names) - len(ran) or '–'} | {ranks} | {said} |"


def _said(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """List what recordings say of what they do not hold."""
    notes: dict[str, list[str]] = {}
    other = [name for name, ranks in outcomes.items() if any(each.repeats for each in ranks)]
    for name, ranks in outcomes.items():
        for text in dict.fromkeys(text for each in ranks for text in each.notes):
            notes.setdefault(text, []).append(name)
    lines = [f"* {text}: {_shares(names, outcomes)}" for text, names in notes.items()]
    repeats = f"\nTwo trainings without probe are not the same: {_shares(other, outcomes)}.\n" if other else ""
    return repeats + "\n## What the recordings say that they do not hold\n\n" + "\n".join(lines) + "\n"


def _shares(names: Sequence[str], outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    every = _kinds(outcomes)
    return ", ".join(f"{kind} ({len(some)} of {len(every[kind])})" for kind, some in _kinds(names).items())


def _fell(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    lines = []
    for name, ranks in outcomes.items():
        why = next((each.failed for each in ranks if each.failed), "")
        if why:
            lines.append(f"* {name}: without probe `{why.splitlines()[0][:160]}`")
        for rank, each in enumerate(ranks):
            if not each.failed and not each.holds:
                facts = {"fell": each.fell, "same": each.same, "collectives": each.collectives, "left": each.left, "equal": each.clean,
                         "fault": "" if each.right else f"{each.verdict} {each.place}"}  # fmt: skip
                lines.append(f"* {name}, rank {rank}: { ({key: value for key, value in facts.items() if value}) }")
    return "\n## What does not run here, or does not hold\n\n" + ("\n".join(lines) or "Nothing.") + "\n"
