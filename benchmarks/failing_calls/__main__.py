"""`python -m benchmarks.failing_calls`: does every step survive, whichever system call of the writer fails, and whenever?

Every call of a recorded training of five steps fails in turn, in a process of its own, by a library that is loaded in front of the C
library (Linux, with a C compiler): with every error number, once or from then on, before, in the midst of and after its work.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.failing_calls.trial import MOVING, Failure, Place, Result, place, with_library
from tests.store import failing_training as training

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EINTR)
OUTCOMES = ("whole", "stopped", "not begun", "broken")
HEADER = ("call", "in a run", "trials", "nothing lost", "recording stopped", "recording not begun", "broken")
KILLED_BEHIND = (Failure(errno.EIO), Failure(errno.ENOSPC, "half"), Failure(errno.EIO, lasting=True))
WIDTH = 160
_SAMPLED = "One call in {} for each way to fail, another one for the next."
TITLES = {
    "numpy": "A training of the numpy adapter, the failing call",
    "killed": "The same, killed at each call behind the one that failed, but for those that only look",
    "torch": "A training with PyTorch, whose values are also written past the system's cache",
}


def failures() -> Iterator[Failure]:
    """Yield the ways to fail. Interrupted for ever is none: Python goes on trying then, as PEP 475 has it."""
    yield from (Failure(error) for error in ERRORS)
    yield from (Failure(error, lasting=True) for error in ERRORS if error != errno.EINTR)
    yield from (Failure(errno.ENOSPC, "half"), Failure(errno.ENOSPC, "half", lasting=True), Failure(errno.EIO, "all"))
    yield from (Failure(short=True), Failure(short=True, lasting=True))


def fits(failure: Failure, kind: str) -> bool:
    """Tell whether a call of a kind can fail so, and that otherwise than in a simpler way."""
    partly = failure.short or failure.share == "half"
    return kind in MOVING or not (partly or (failure.share == "all" and kind not in ("ftruncate", "close")))


def each_call(there: Place, ways: list[Failure], every: int) -> Iterator[Result]:
    """Let each call, or every n-th, fail in each way."""
    for place_of_way, failure in enumerate(ways):
        for number in itertools.count(place_of_way % every, every):
            kinds = there.kinds
            if number < len(kinds) and not fits(failure, kinds[number]):
                continue
            found = there.attempt(number, failure)
            if not found.kind:
                break
            yield found
        print(f"  {failure}", flush=True)


def each_kill(there: Place, every: int) -> Iterator[Result]:
    """Let a call fail, and kill the process at each call behind it."""
    for place_of_way, failure in enumerate(KILLED_BEHIND):
        for number in range(place_of_way % every, len(there.kinds), every):
            if not fits(failure, there.kinds[number]):
                continue
            for behind in itertools.count():
                found = there.attempt(number, failure, kill_after=behind)
                yield found
                if not there.was_killed:
                    break
        print(f"  killed behind {failure}", flush=True)


def counted(kinds: list[str], results: Iterator[Result]) -> tuple[list[list[str]], list[Result]]:
    """Return the lines of a table, and what is broken."""
    in_a_run, found, broken = Counter(kinds), defaultdict(Counter), []
    for result in results:
        found[result.kind][result.outcome] += 1
        if result.outcome == "broken":
            broken.append(result)
            print(result.details, flush=True)
    found["all"] = sum(found.values(), Counter())
    in_a_run["all"] = len(kinds)
    return [
        [kind, str(in_a_run[kind]), str(counts.total()), *(str(counts[outcome]) for outcome in OUTCOMES)]
        for kind, counts in found.items()
    ], broken


def page(sections: dict[str, str]) -> str:
    """The tables as a page; written by `--markdown`, not by hand."""
    text = [
        "# System calls that fail",
        "",
        "Written by `python -m benchmarks.failing_calls --markdown docs/evidence/failing-calls.md`. A training of five steps is recorded with",
        "`overwrite=True` over an earlier recording, in a process of its own for every trial, and one system call that concerns the file fails:",
        f"with each of {', '.join(errno.errorcode[error] for error in ERRORS)}, once or with all later calls (EINTR: once), before its",
        "work; in the midst of it (ENOSPC) or behind it (EIO); or it does a half and says so. Every occurrence of every call takes its turn,",
        "those of the process's end too, where nothing else is said. Then it holds, or the trial is broken:",
        "",
        "- the training ends bitwise as without probe, and no exception reaches it but the `StoreError` of a recording that cannot begin;",
        "- what stops the recording is said in one warning, and the process ends with status 0 and prints nothing else;",
        "- each step that the file lists reads back exactly as in a run without failure: records, sketches, calls, names, values;",
        "- each step that was committed before the failure is listed; if nothing was said all five are;",
        "- the file is a recording that probe and, once `probe export tree` has been there, h5py alone read;",
        "- where no recording begins no file is left, or the error names it, and the earlier recording is where it was, or the error says where.",
        "",
    ]
    return "\n".join([*text, *(sections[name] for name in TITLES if name in sections)])


def section(name: str, lines: list[list[str]], every: int) -> str:
    """What is broken of each call, and all calls together."""
    calls = ", ".join(f"{kind} ({trials})" for kind, _, trials, *_ in lines[:-1])
    shown = [line for line in lines[:-1] if line[-1] != "0"] + lines[-1:]
    text = [
        f"## {TITLES[name]}",
        "",
        *([_SAMPLED.format(every), ""] if every > 1 else []),
        f"Trials of each call: {calls}.",
        "",
    ]
    text += ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    return "\n".join([*text, *("| " + " | ".join(line) + " |" for line in shown), ""])


def sections_of(path: Path) -> dict[str, str]:
    """Return the tables that a page has."""
    found = path.read_text(encoding="utf-8").split("\n## ")[1:] if path.exists() else []
    names = {title: name for name, title in TITLES.items()}
    return {names[text.partition("\n")[0]]: f"## {text.rstrip()}\n" for text in found}


def show(name: str, lines: list[list[str]]) -> None:
    console = Console(width=None if Console().is_terminal else WIDTH)
    table = Table(*HEADER, title=TITLES[name])
    for line in lines:
        table.add_row(*line)
    console.print(table)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(TITLES)), help="Make this table; may be repeated.")
@click.option("--every", default=1, show_default=True, help="Let every n-th call fail only.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False),
              help="Write the tables here too, each when it is made; others stay as they are there.")  # fmt: skip
def main(only: tuple[str, ...], every: int, markdown: Path | None) -> None:
    """Let every system call fail in every way; exit status 1 if a promise is broken."""
    library, parent = os.environ.get("PROBE_FAULT"), os.getpid()
    root = Path(tempfile.mkdtemp(prefix="failing-calls-"))
    if library is None:
        with_library(root)
    sections, broken = sections_of(markdown) if markdown else {}, []
    try:
        for name in only or TITLES:
            there = place(library, root, training.train_torch if name == "torch" else training.train)
            ways = [*failures()] if name == "numpy" else [Failure(), Failure(lasting=True), Failure(short=True)]
            results = each_kill(there, every) if name == "killed" else each_call(there, ways, every)
            lines, fell = counted(there.kinds, results)
            broken += fell
            show(name, lines)
            if markdown:
                sections[name] = section(name, lines, every)
                markdown.write_text(page(sections), encoding="utf-8")
    finally:
        if os.getpid() == parent:  # forked trainings end here too
            shutil.rmtree(root)
            shutil.rmtree(Path(library).parent)
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
