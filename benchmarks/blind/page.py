"""Write docs/evidence/blind.md or sealed.md from one or two files of answers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..grading import GRADES
from ..markdown import table
from . import catalogue
from .confirm import LEAST, confirmed
from .judge import TASKS

PAGES = Path(__file__).resolve().parents[2] / "docs/evidence"
Answers = dict[str, list[dict[str, Any]]]
"""by the name of the engine, which is a column"""
MEANING = {
    "exact": "the module (or a place that is equally right), the phase and the step of the fault",
    "parent": "the module around it; phase and step right",
    "top-3": "exact, but as the second or third finding",
    "other phase": "the right module in another phase or step",
    "wrong name": "another module",
    "undecided": "`UNDECIDED`",
    "missed": "`ALIGNED`",
    "error": "the comparison raised an error",
    "aligned": "`ALIGNED`",
    "false alarm": "`DIVERGED`",
}
SEALED = """# A sealed test set

Models, faults and clean pairs of `benchmarks/sealed` were written, and confirmed without probe, before the present engine was begun, by people who
had not read how probe judges. Nobody has looked at them since: recorded once, judged once by the engine of commit f888f73a (old) and once by the present
one at dc9d6309 (new), on the same files. In the first run of the new engine 17 pairs ended in one crash; it was mended, and these alone were judged again.

`python -m benchmarks.sealed --judge --name new`; `python -m benchmarks.sealed --page new old` writes this page. Grades are those of
[localisation.md](localisation.md#grades). Both sides of most pairs are one program but for the fault, so that rounding hides little.
"""
BLIND = """# A blind test set

The models, faults and clean pairs of `benchmarks/blind` were written, and confirmed without probe, by people who had not
read how probe judges. Neither the set nor probe was changed after scoring, which was at commit 7c1cabe4 (2026-11-25),
by the engine before `probe/verdict`. `new` is the probe of that commit, `old` an earlier one, on the same recordings.

{faults} faults in {models} models ({ports} of them ports to another code base), and {cleans} clean pairs, of which {differ} differ in
their losses or norms. A fault counts if plain hooks see, bit by bit, that its module is the first whose output (loss,
gradient, update) differs given the same inputs, and if the relative error there is at least {least:g} times the noise:
what changes there when every module's output is moved by up to half a unit in the last place.
{left} further pairs were written but not confirmed; they don't count.

Only in the {port_faults} faults of ports do the sides differ by rounding, too. In the others nothing hides the fault. Grades that no answer has are left out.
"""
DOUBTS = """## Doubtful truths

Seen when the answers were read, and left as they were scored.

- `categorical-dqn/support`, `made-flow/mask-strict`, `radiance-field/octaves`, `retention-lm/decay`, `minimax/slope`: the fault lies in
  a buffer. The truth says `init`; the forward of the module that holds it is as good an answer.
- `soft-actor-critic/copied-from-wrong`: all layers of `slow_second` are wrong, and the truth names only the module around them.
- `byol/norm-by-hand` is not clean: the batch norm written out updates copies of its running statistics, not the module's own. The
  confirmation of clean pairs looks at losses and norms of gradients and parameters, and so could not see it.
- `projection-gan/betas`, `neural-ode/clip-value`: at step 0 only the optimizer's state differs visibly, the weights by less than 2e-6.
  Both were named exactly.
"""
FOOT = """
Run it again with

    python -m benchmarks.blind --confirm   # the truth of every pair, without probe
    python -m benchmarks.blind             # record all pairs, judge them
    python -m benchmarks.blind --page new  # this page; --help says how to judge with another probe
"""


def write(which: str, files: list[Path]) -> None:
    """Write the page of a set; the files' names are the columns. Of the sealed one it has totals alone: no pair is named."""
    answers = {file.stem: json.loads(file.read_text()) for file in files}
    counts = [_counts(answers, "Faults", False), _counts(answers, "Clean pairs", True)]
    if which == "sealed":
        parts = [SEALED, *counts]
    else:
        sure, pairs = confirmed(which), catalogue.pairs(which)
        faults = [pair for pair in pairs if pair.fault and pair.name in sure]
        cleans = [pair for pair in pairs if pair.clean and pair.name in sure]
        models = {pair.model.name: pair.model for pair in faults}
        head = BLIND.format(
            faults=len(faults),
            models=len(models),
            ports=sum(model.port is not None for model in models.values()),
            cleans=len(cleans),
            differ=sum(sure[pair.name]["worst"] > 0 for pair in cleans),
            least=LEAST,
            port_faults=sum(pair.model.port is not None for pair in faults),
            left=len(pairs) - len(faults) - len(cleans),
        )
        parts = [head, *counts, _by_phase(answers), _not_exact(answers), DOUBTS, FOOT]
    (PAGES / f"{which}.md").write_text("\n".join(parts))


def _columns(answers: Answers, clean: bool) -> dict[str, list[dict[str, Any]]]:
    """The answers about faults, or about clean pairs, by the headings of the columns."""
    return {
        f"{name}, {task}": [one for one in found if one["task"] == task and (one["phase"] == "clean") is clean]
        for task in TASKS
        for name, found in answers.items()
    }


def _counts(answers: Answers, title: str, clean: bool) -> str:
    columns = {name: Counter(one["grade"] for one in found) for name, found in _columns(answers, clean).items()}
    grades = [grade for grade in (*GRADES, "error") if any(count[grade] for count in columns.values())]
    rows = [[grade, *(count[grade] for count in columns.values()), MEANING[grade]] for grade in grades]
    number = next(iter(columns.values())).total()
    return f"## {title}\n\n{number}, from values and from statistics.\n\n" + table(
        ["answer", *columns, "meaning"], rows
    )


def _by_phase(answers: Answers) -> str:
    columns = _columns(answers, False)
    phases = Counter(one["phase"] for one in next(iter(columns.values())))
    exact = [Counter(one["phase"] for one in found if one["grade"] == "exact") for found in columns.values()]
    rows = [[phase, number, *(count[phase] for count in exact)] for phase, number in phases.most_common()]
    return "## Exact, by the phase of the fault\n\n" + table(["phase", "faults", *columns], rows)


def _not_exact(answers: Answers) -> str:
    name = next(iter(answers))
    same: dict[tuple[str, str, str], list[str]] = {}
    for answer in sorted(answers[name], key=lambda one: (one["pair"], one["task"])):
        if answer["grade"] not in ("exact", "aligned"):
            named = next(iter(answer["named"]), None)
            first = (
                f"step {named['step']}, {named['phase']}, `{(named['paths'] or ['?'])[0] or '(root)'}`" if named else ""
            )
            same.setdefault((answer["pair"], answer["grade"], first), []).append(answer["task"])
    rows = [
        [pair, "both" if len(tasks) == len(TASKS) else tasks[0], grade, first]
        for (pair, grade, first), tasks in same.items()
    ]
    title = f"## Every pair that `{name}` did not name exactly, or took for faulty\n\n"
    return title + table(["pair", "recording", "grade", "named first"], rows)
