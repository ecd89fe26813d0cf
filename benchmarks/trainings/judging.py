"""Running a situation plainly and with probe, and judging what came of it."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import multiprocessing
import os
import re
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import distributed

import probe
from benchmarks.trainings.situation import Situation, Watch, first_difference, quietly, random_states, seeded
from probe.records import Role
from probe.store.reading.reader import Reader

LIMIT = 900
"""seconds of one situation, all runs of it"""
WAIT = datetime.timedelta(seconds=60)
"""that one rank waits for another"""
WRAPPERS = re.compile(r"(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod|module)\.")
PLAIN, AGAIN, A, B, FAULTY = _RUNS = "plain", "again", "a", "b", "faulty"
"""the runs of a situation: two without probe; a with statistics, b with values; one with a planted fault"""
_FILES = {A: "statistics", B: "tensor", FAULTY: "statistics"}


@dataclass
class Outcome:
    """What one rank found in a situation; texts are empty where nothing fell."""

    failed: str = ""
    """the plain training itself, or the process"""
    fell: str = ""
    """the exception with which a recorded training ended"""
    repeats: str = ""
    """where a second plain training is not the first"""
    same: str = ""
    """where a recorded training is not the plain one"""
    collectives: str = ""
    """counts of a plain and a recorded training, where they differ"""
    left: list[str] = field(default_factory=list)
    """hooks, threads and open files behind ``probe.stop()``"""
    steps: int = 0
    roles: dict[str, int] = field(default_factory=dict)
    """records by role"""
    notes: list[str] = field(default_factory=list)
    clean: str = ""
    """verdict of two equal runs"""
    verdict: str = ""
    """of a run and one with the fault"""
    place: str = ""
    """the first place that it named"""
    right: bool = True
    """whether that is what was planted"""
    is_compiled: bool = False
    """whether hardly anything is recorded, so that two equal runs may be undecided"""

    @property
    def holds(self) -> bool:
        """Whether everything that was promised held."""
        fell = self.failed or self.fell or self.same or self.collectives or self.left
        return not fell and self.clean in ("ALIGNED", "") + ("UNDECIDED",) * self.is_compiled and self.right


def judged(situation: Situation) -> list[Outcome]:
    """Run a situation in processes of its own; return what each rank found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        context = multiprocessing.get_context("fork")  # torch is imported already, and has computed nothing
        ranks = range(situation.ranks)
        workers = [context.Process(target=_rank, args=(situation, folder, rank)) for rank in ranks]
        for worker in workers:
            worker.start()
        ends = time.monotonic() + LIMIT
        for worker in workers:
            worker.join(max(0.1, ends - time.monotonic()))
        for worker in workers:
            if worker.is_alive():
                worker.kill()
                worker.join()
        return [_read(folder / f"{rank}.json") for rank in ranks]


def _read(path: Path) -> Outcome:
    return Outcome(**json.loads(path.read_text())) if path.exists() else Outcome(fell="the process ended or hung")


def _rank(situation: Situation, folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    quietly()
    logging.disable(logging.ERROR)
    outcome = Outcome()
    with open(folder / f"{rank}.out", "w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            _all_runs(situation, folder, rank, outcome)
        except BaseException as error:  # noqa: BLE001  what fell is what is looked for
            outcome.failed = f"{type(error).__name__}: {error!s:.300}"
            traceback.print_exc()
    (folder / f"{rank}.json").write_text(json.dumps(asdict(outcome)))
    os._exit(0)  # torch with gloo aborts in some plain interpreter exits


def _all_runs(situation: Situation, folder: Path, rank: int, outcome: Outcome) -> None:
    outcome.is_compiled = situation.is_compiled
    runs: dict[str, Watch] = {}
    issued: dict[str, list[int]] = {}
    for name in _RUNS:
        watch = Watch(folder / name, faulty=name == FAULTY)
        if name in _FILES:
            watch.path, watch.task = folder / name / f"{name}.h5", _FILES[name]
        try:
            issued[name] = _run(situation, rank, watch)
            runs[name] = watch
        except Exception as error:
            if watch.path is None:
                raise
            outcome.fell = f"{type(error).__name__}: {error!s:.300}"
            traceback.print_exc()
    found = {name: first_difference(runs[AGAIN].seen, runs[name].seen) for name in (PLAIN, A, B) if name in runs}
    outcome.repeats = found.pop(PLAIN)  # a first training may draw random numbers for what is done once in a process
    outcome.same = next((f"{name}{where}" for name, where in found.items() if where), "")
    others = {name: each for name, each in issued.items() if each != issued[PLAIN]}
    outcome.collectives = f"{issued[PLAIN]}, {others}" if others else ""
    outcome.left = sorted(set().union(*(run.left for run in runs.values())))
    _compare(situation, {name: run.written for name, run in runs.items() if run.written is not None}, outcome)


def _run(situation: Situation, rank: int, watch: Watch) -> list[int]:
    """Train once; return how many collectives this rank has issued, by group."""
    watch.folder.mkdir(exist_ok=True)
    if situation.ranks > 1:
        store = f"file://{watch.folder.parent}/store-{watch.folder.name}"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=situation.ranks, timeout=WAIT)
    try:
        seeded()
        situation.train(watch)
        watch.keep(random_states())
        if not distributed.is_initialized():
            return []
        return [group._get_sequence_number_for_group() for group in distributed.distributed_c10d._world.pg_map]
    finally:
        watch.stop()
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _compare(situation: Situation, files: dict[str, Path], outcome: Outcome) -> None:
    if A in files:
        with Reader(files[A]) as reader:
            numbers = [int(role) for role in reader.records["role"]]
            outcome.roles = {role.label: numbers.count(role) for role in Role if role in numbers}
            outcome.steps, outcome.notes = len(reader.steps), [text for _, _, text in reader.notes]
    if {A, B} <= files.keys():
        outcome.clean = probe.compare(files[A], files[B]).verdict.name
    if {A, FAULTY} <= files.keys():
        answer = probe.compare(files[A], files[FAULTY])
        outcome.verdict = answer.verdict.name
        outcome.place = WRAPPERS.sub("", answer.divergences[0].path) if answer.divergences else ""
        outcome.right = outcome.verdict == "DIVERGED" and re.search(situation.place, outcome.place) is not None
