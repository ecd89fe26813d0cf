"""`python -m benchmarks.ranks`: are clean layouts aligned with one process, and are faults of parallel code named with module and rank?"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import probe
from benchmarks.ranks import fleet
from benchmarks.ranks.cases import BETWEEN, FAULTS, LAYOUTS, Fault, whole_of
from benchmarks.ranks.running import train
from benchmarks.ranks.spec import Spec
from probe.notes import Note

HEAD = """# Many ranks

Written by `python -m benchmarks.ranks --markdown docs/evidence/ranks.md`, which prints each answer. A GPT of two layers (hidden size 32, 4 heads)
trains for two steps with AdamW, divided as Megatron divides one: vocabulary-parallel embedding and loss, Column- and RowParallelLinear, sequence
parallelism, pipeline stages, gloo between 2 or 4 processes on one machine; `fleet` is PaddlePaddle's, with mp 2. On a CPU fleet lacks an identity
("Do not support c_identity for cpu kernel now") and gloo's all-reduce on the stream that computes, which the benchmark gives it.
`probe.compare` gets the prefix of the ranks' files and the recording of one process. Faults are recorded with values.

A module counts as named where the expected path is part of the named one. When the faults were first scored, 24 of 28 modules were named, and
the right ranks 20 times. Then causes were mended and two cases corrected, so the figures say nothing about unseen faults, nor about GPUs or more ranks.

"""


@dataclass(frozen=True)
class Clean:
    """What was said of a clean pair."""

    a: str
    b: str
    task: str
    verdict: str
    share: float
    """of the module calls that were compared"""
    tensors: int
    seconds: float


@dataclass(frozen=True)
class Named:
    """What was said of a fault."""

    fault: Fault
    layout: str
    verdict: str
    path: str
    ranks: tuple[int, ...]
    """empty where none were named"""

    @property
    def has_module(self) -> bool:
        """Tell whether the module is the right one."""
        if self.verdict != "diverged":
            return False
        return self.fault.path in self.path if self.fault.path else not self.path

    @property
    def is_right(self) -> bool:
        """Tell whether module and ranks are right."""
        return self.has_module and self.ranks == self.fault.layouts[self.layout]


def named(text: str) -> str:
    """Return a name for a file."""
    return text.replace(" ", "-")


def clean(folder: Path, task: str) -> list[Clean]:
    """Compare every layout with one process, and some with each other."""
    specs = [spec.but(name=named(f"{task}-{name}"), task=task) for name, spec in LAYOUTS.items()]
    ones = {whole_of(spec): None for spec in specs}
    wholes = {one: one.but(name=f"{task}-one{k}") for k, one in enumerate(ones)}
    train(folder, [*wholes.values(), *specs])
    pairs = [(wholes[whole_of(spec)].name, spec.name) for spec in specs]
    pairs += [(named(f"{task}-{a}"), named(f"{task}-{b}")) for a, b in BETWEEN]
    return [compared(folder, a, b, task) for a, b in pairs]


def compared(folder: Path, a: str, b: str, task: str, mapping: str | None = None) -> Clean:
    """Compare a clean pair."""
    began = time.perf_counter()
    answer = probe.compare(folder / f"{a}.h5", folder / f"{b}.h5", mapping=mapping)
    share, tensors = answer.coverage.share, answer.coverage.compared
    return Clean(a, b, task, answer.verdict.value, share, tensors, time.perf_counter() - began)


def faulty(folder: Path, faults: Iterable[Fault]) -> list[Named]:
    """Plant each fault in each of its layouts, and compare with one process that has none."""
    planted = [(fault, layout) for fault in faults for layout in fault.layouts]
    specs = [
        LAYOUTS[layout].but(name=named(f"{fault.name}-{layout}"), fault=fault.name, task="tensor")
        for fault, layout in planted
    ]
    ones = {whole_of(spec): None for spec in specs}
    wholes = {one: one.but(name=f"without-{k}") for k, one in enumerate(ones)}
    train(folder, [*wholes.values(), *specs])
    return [_told(folder, fault, layout, wholes[whole_of(spec)], spec)
            for (fault, layout), spec in zip(planted, specs, strict=True)]  # fmt: skip


def of_fleet(folder: Path, faults: Iterable[Fault], *, only_faults: bool = False) -> tuple[list[Clean], list[Named]]:
    """Train with fleet of PaddlePaddle, and compare its ranks with one process."""
    pairs = [] if only_faults else [(*fleet.train(folder, task), task) for task in ("tensor", "statistics")]
    found = []
    for fault in faults:
        whole, faulty_ranks = fleet.train(folder, "tensor", fault.name)
        found += [answered(folder, fault, layout, whole, faulty_ranks) for layout in fault.layouts]
    return [compared(folder, *pair) for pair in pairs], found


def _told(folder: Path, fault: Fault, layout: str, whole: Spec, spec: Spec) -> Named:
    return answered(folder, fault, layout, whole.name, spec.name)


def answered(folder: Path, fault: Fault, layout: str, whole: str, ranks: str) -> Named:
    """Compare what has a fault with one process."""
    answer = probe.compare(folder / f"{whole}.h5", folder / f"{ranks}.h5")
    first = answer.first_divergence
    return Named(
        fault, layout, answer.verdict.value, first.path if first else "", ranks_in(first.facts if first else ())
    )


def ranks_in(facts: Sequence[Note]) -> tuple[int, ...]:
    """Return the ranks that facts name: of copies that differ before those that hold a tensor."""
    for code in ("copies-differ", "on-ranks"):
        for fact in facts:
            if fact.code == code and fact.facts["side"] == "B":
                return tuple(sorted(fact.facts["ranks"]))
    return ()


def page(cleans: Sequence[Clean], faults: Sequence[Named], head: str = HEAD) -> str:
    """Return the page of evidence: totals, and each answer that is wrong."""
    aligned = sum(each.verdict == "aligned" for each in cleans)
    modules, both = sum(each.has_module for each in faults), sum(each.is_right for each in faults)
    lines = [head, f"## Clean layouts\n\n{aligned} of {len(cleans)} are `ALIGNED`.\n",
             "| A | B | recorded | aligned | module calls compared | tensors | seconds |", "|---|---|---|---|---|---|---|", *_clean_rows(cleans),
             f"\n## Faults of parallel code\n\nOf {len(faults)}, {modules} are named at the right module, {both} with exactly the ranks too.\n",
             "| fault | layouts | module named | ranks too | first divergence |", "|---|---|---|---|---|"]  # fmt: skip
    for fault in dict.fromkeys(each.fault.what for each in faults):
        some = [each for each in faults if each.fault.what == fault]
        named_, ranks = sum(each.has_module for each in some), sum(each.is_right for each in some)
        lines.append(f"| {fault} | {', '.join(each.layout for each in some)} | {named_} of {len(some)} | {ranks} of {len(some)} | "
                     f"{', '.join(dict.fromkeys(_place(each) for each in some))} |")  # fmt: skip
    for each in faults:
        if not each.is_right:
            wanted = each.fault.layouts[each.layout]
            lines.append(f"\n* {each.fault.what}, {each.layout}: {_place(each)}, ranks {each.ranks}, expected {wanted}")
    return "\n".join(lines) + "\n"


def _clean_rows(cleans: Sequence[Clean]) -> Iterator[str]:
    """Return a line for each A: the layouts that it was compared with, and the ranges of what was found."""
    groups: dict[str, list[Clean]] = {}
    for each in cleans:
        groups.setdefault(_side(each.a, each.task), []).append(each)
    for a, some in groups.items():
        layouts = dict.fromkeys(
            _side(each.b, each.task) + ("" if each.verdict == "aligned" else f" (**{each.task}: {each.verdict}**)")
            for each in some
        )
        tasks = dict.fromkeys(each.task for each in some)
        aligned = sum(each.verdict == "aligned" for each in some)
        tensors, seconds = [each.tensors for each in some], [each.seconds for each in some]
        yield (f"| {a} | {', '.join(layouts)} | {', '.join(tasks)} | {aligned} of {len(some)} | {min(each.share for each in some):.0%} | "
               f"{min(tensors)} to {max(tensors)} | {min(seconds):.1f} to {max(seconds):.1f} |")  # fmt: skip


def _side(name: str, task: str) -> str:
    name = name.removeprefix(f"{task}-")
    return "one process" if name.startswith("one") else name


def _place(each: Named) -> str:
    return f"`{each.path}`" if each.path else "the whole model" if each.verdict == "diverged" else each.verdict


@click.command()
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="write the page of evidence here")
@click.option("--fault", "only", multiple=True, help="only these faults, and no clean layouts")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="keep the recordings here")
def main(markdown: Path | None, only: Sequence[str], folder: Path | None) -> None:
    """Train, compare, and print what was named."""
    with tempfile.TemporaryDirectory() as made:
        place = folder or Path(made)
        place.mkdir(parents=True, exist_ok=True)
        faults = [fault for fault in FAULTS if not only or fault.name in only]
        cleans = [] if only else [each for task in ("tensor", "statistics") for each in clean(place, task)]
        found = faulty(place, faults)
        more = of_fleet(
            place, [fault for fault in fleet.FAULTS if not only or fault.name in only], only_faults=bool(only)
        )
        cleans, found = cleans + more[0], found + more[1]
    print(*cleans, *found, sep="\n")
    text = page(cleans, found)
    print(text)
    if markdown is not None:
        markdown.write_text(text, encoding="utf-8")
    sys.exit(int(any(each.verdict != "aligned" for each in cleans) or any(not each.has_module for each in found)))


if __name__ == "__main__":
    main()
