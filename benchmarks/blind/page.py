"""Write docs/evidence/blind.md from one or two files of answers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from . import catalogue
from .confirm import FILE, LEAST, confirmed
from .judge import CLEAN, FAULTY, counts
from .record import TASKS

PAGE = Path(__file__).resolve().parents[2] / "docs/evidence/blind.md"
MEANING = {
    "exact": "the module (or a place that is equally right), the phase and the step of the fault",
    "parent": "the module around it; phase and step right",
    "top-3": "exact, but as the second or third finding",
    "other phase": "the right module in another phase or step",
    "wrong name": "another module",
    "undecided": "`UNDECIDED`",
    "missed": "`ALIGNED`",
    "error": "the comparison raised an error",
}
HEAD = """# A blind test set

The models, faults and clean pairs of `benchmarks/blind` were written, and confirmed without probe, by people who had not
read how probe judges. Neither the set nor probe was changed after scoring.

{faults} faults in {models} models ({ports} of them ports to another code base), and {cleans} clean pairs, of which {differ} differ in
their losses or norms. A fault counts if plain hooks see, bit by bit, that its module is the first whose output (loss,
gradient, update) differs given the same inputs, and if the relative error there is at least {least:g} times the noise:
what changes there when every module's output is moved by up to half a unit in the last place.
{left} further pairs were written but not confirmed; they don't count.

Only in the {port_faults} faults of ports do the two sides differ by rounding, too. In the others, both sides are the same program but
for the fault, so that nothing hides it.
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

    python -m benchmarks.blind.confirm     # the truth of every pair, without probe
    python -m benchmarks.blind             # record all pairs, judge them
    python -m benchmarks.blind --page new  # this page; --help says how to judge with another probe
"""


def write(files: list[Path]) -> None:
    """Write the page; the files' names are the columns."""
    answers = {file.stem: json.loads(file.read_text()) for file in files}
    sure, pairs = confirmed(), catalogue.pairs()
    known = json.loads(FILE.read_text())
    faults = [pair for pair in pairs if pair.fault and pair.name in sure]
    cleans = [pair for pair in pairs if pair.clean and pair.name in sure]
    models = {pair.model.name: pair.model for pair in faults}
    head = HEAD.format(
        faults=len(faults),
        models=len(models),
        ports=sum(model.port is not None for model in models.values()),
        cleans=len(cleans),
        differ=sum(known[pair.name]["worst"] > 0 for pair in cleans),
        least=LEAST,
        port_faults=sum(pair.model.port is not None for pair in faults),
        left=len(pairs) - len(faults) - len(cleans),
    )
    parts = [head, _table("Faults", FAULTY, answers, clean=False), _table("Clean pairs", CLEAN, answers, clean=True)]
    phases = {pair.name: pair.fault.phases[0] for pair in faults if pair.fault}
    parts += [_by_phase(answers, phases), _not_exact(list(answers)[0], answers, phases), DOUBTS, FOOT]
    PAGE.write_text("\n".join(parts))


def _row(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |\n"


def _columns(answers: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, kind) for kind in TASKS for name in answers]


def _table(title: str, grades: tuple[str, ...], answers: dict[str, Any], clean: bool) -> str:
    columns = _columns(answers)
    found = [counts(answers[name], kind, clean) for name, kind in columns]
    text = f"## {title}\n\n" + _row("answer", *(f"{name}, {kind}" for name, kind in columns), "meaning")
    text += _row(*["---"] * (len(columns) + 2))
    for grade in grades:
        meaning = "`DIVERGED`" if grade == "false alarm" else "`ALIGNED`" if grade == "aligned" else MEANING[grade]
        text += _row(grade, *(each[grade] for each in found), meaning)
    return text


def _by_phase(answers: dict[str, Any], phases: dict[str, str]) -> str:
    columns = _columns(answers)
    text = "## Exact, by the phase of the fault\n\n" + _row("phase", "faults", *(f"{n}, {k}" for n, k in columns))
    text += _row(*["---"] * (len(columns) + 2))
    exact = {
        (n, k): Counter(phases[a["pair"]] for a in answers[n] if a["kind"] == k and a["grade"] == "exact")
        for n, k in columns
    }
    for phase, number in Counter(phases.values()).most_common():
        text += _row(phase, number, *(exact[column][phase] for column in columns))
    return text


def _not_exact(name: str, answers: dict[str, Any], phases: dict[str, str]) -> str:
    text = f"## Every pair that `{name}` did not name exactly, or took for faulty\n\n"
    text += _row("pair", "recording", "grade", "named first") + _row(*["---"] * 4)
    for answer in sorted(answers[name], key=lambda a: (a["pair"], a["kind"])):
        if answer["grade"] in ("exact", "aligned"):
            continue
        named = next(iter(answer["named"]), None)
        first = f"step {named['step']}, {named['phase']}, `{(named['paths'] or ['?'])[0] or '(root)'}`" if named else ""
        text += _row(answer["pair"], answer["kind"], answer["grade"], first)
    return text
