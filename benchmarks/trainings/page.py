"""The page on all situations: a row each, and below the table what fell and what was said."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence

import torch

from benchmarks.trainings.judging import Outcome

_HEAD = """\
# Trainings over ranks, in others' loops, compiled and in place

Written by `python -m benchmarks.trainings --markdown docs/evidence/distributed.md` with torch {torch} on {system}; situations of transformers, accelerate
and Lightning are among them where these are installed. Each situation is trained in processes of its own, five times from the same seeds: twice
without probe, with `task="statistics"`, with `task="tensor"`, and with a fault (another eps in one norm). Situations of two ranks run over gloo.

* **same**: losses, gradients with their strides, weights, buffers, the optimizer's state and the states of all random generators are bitwise those of the
  training without probe.
* **collectives**: probe issues none: the counts of every process group are those of the training without probe.
* **left**: behind `probe.stop()` there is no hook, thread or open file of probe's.
* **equal**: the answer for the two recordings without the fault, of every rank. **fault**: whether the place where the fault was planted is named; where
  modules inside of compiled code are not recorded, whether the answer is `DIVERGED`; on the other ranks of a pipeline, what they were given.

{summary}

| situation | ranks | repeats itself | same | collectives | left | records | equal | fault |
|---|---|---|---|---|---|---|---|---|
"""


def page(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the page as Markdown."""
    rows = [_row(name, ranks) for name, ranks in outcomes.items()]
    ran = [ranks for ranks in outcomes.values() if not any(each.failed for each in ranks)]
    held = sum(all(each.holds for each in ranks) for ranks in ran)
    summary = f"{len(outcomes)} situations, of which {len(outcomes) - len(ran)} do not run here without probe either; {held} of {len(ran)} hold."
    head = _HEAD.format(torch=torch.__version__, system=platform.system(), summary=summary)
    return head + "\n".join(rows) + "\n" + _said(outcomes) + _fell(outcomes)


def _row(name: str, ranks: Sequence[Outcome]) -> str:
    failed = next((each.failed for each in ranks if each.failed), "")
    if failed:
        return f"| {name} | {len(ranks)} | does not run here | | | | | | |"
    repeats = "no" if any(each.repeats for each in ranks) else "yes"
    records = " + ".join(f"{sum(each.roles.values()):,}" for each in ranks if each.steps)
    cells = [
        repeats, _yes(not (each.same or each.fell) for each in ranks), _yes(not each.collectives for each in ranks) if len(ranks) > 1 else "–",
        _yes(not each.left for each in ranks), records, _all(each.clean for each in ranks), _all(_fault(each) for each in ranks),
    ]  # fmt: skip
    return f"| {name} | {len(ranks)} | " + " | ".join(cells) + " |"


def _yes(held: object) -> str:
    return "yes" if all(held) else "**no**"


def _all(words: object) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))


def _fault(outcome: Outcome) -> str:
    if not outcome.verdict:
        return ""
    return "found" if outcome.right else f"**{outcome.verdict} {outcome.place}**"


def _said(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """List what recordings say of what they do not hold."""
    notes: dict[str, list[str]] = {}
    for name, ranks in outcomes.items():
        for text in dict.fromkeys(text for each in ranks for text in each.notes):
            notes.setdefault(text, []).append(name)
    lines = [f"* {text}: {'; '.join(names)}" for text, names in notes.items()]
    return "\n## What the recordings say that they do not hold\n\n" + "\n".join(lines) + "\n"


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
