"""A forked worker that tries one input after the other, and what its parent keeps when it ends on one."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fuzz.mutators import OF_BYTES, OF_TEXT, mutated
from benchmarks.fuzz.seeds import SEEDS, Seed
from benchmarks.fuzz.structures import CANARY, restructured
from benchmarks.fuzz.trials import TRIALS, quietly
from benchmarks.fuzz.watching import TooSlow, Watch

_NUMBER, _BEGAN = 0, 1
"""what a worker shares: the input that it tries, and the seconds of the processor that it had had when that began"""
_GRACE = 15.0
"""seconds of the processor that a worker may hang where no signal reaches it"""
_TEXTS = ("mappings", "options", "curves")
_FRESH, _LONG_AGO = 10, 1e9
"""one file in so many is as new as one that is still written to, which is read again where it is damaged; when the others were written"""
_SHARE_OF_BYTES = 0.4
"""of mutated recordings, those in which bytes are changed and not what HDF5 says"""


@dataclass
class Tally:
    """What came of the inputs of a kind."""

    count: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    fell: dict[str, int] = field(default_factory=dict)
    """by cause: how many"""


@dataclass(frozen=True)
class Kind:
    """One kind of input, ready to be mutated."""

    name: str
    seeds: tuple[Seed, ...]
    folder: Path

    def input(self, seed: int, number: int) -> tuple[Seed, bytes]:
        """Return an input: the same for the same numbers."""
        rng = random.Random(f"{seed}/{self.name}/{number}")
        chosen = rng.choice(self.seeds)
        if self.name == "recordings" and rng.random() > _SHARE_OF_BYTES:
            return chosen, restructured(chosen.data, rng)
        return chosen, mutated(chosen.data, rng, _mutators(self.name, chosen))

    def valid(self, seed: Seed) -> Path:
        """Return what a mutated input is compared with."""
        own = self.folder / f"valid-{self.seeds.index(seed)}{seed.suffix}"
        return own if self.name not in ("mappings", "options") else self.folder / "recording.h5"


def _mutators(name: str, seed: Seed) -> tuple[Callable[[bytearray, random.Random], None], ...]:
    return OF_TEXT if name in _TEXTS and seed.name != "events" else OF_BYTES


def prepared(name: str, folder: Path) -> Kind:
    """Write the valid inputs of a kind into a folder."""
    folder.mkdir(parents=True)
    kind = Kind(name, tuple(SEEDS[name](folder)), folder)
    for number, seed in enumerate(kind.seeds):
        (folder / f"valid-{number}{seed.suffix}").write_bytes(seed.partner or seed.data)
    if name in ("mappings", "options"):
        (folder / "recording.h5").write_bytes(SEEDS["recordings"](folder)[0].data)
    return kind


def run(kind: Kind, count: int, seed: int, keep: Path, until: float = float("inf"), first: int = 0) -> Tally:
    """Try inputs in workers, a new one where one has ended; return what came of them."""
    shared, number, tally = memoryview(mmap.mmap(-1, 4096)).cast("d"), first, Tally()
    results = keep / f"{kind.name}.results"
    own = {each: _own_seconds(kind, each) for each in kind.seeds}
    while number < first + count and time.time() < until:
        _begin(shared, number, 0.0)
        child = os.fork()
        if not child:
            _work(kind, range(number, first + count), seed, keep, until, shared, results, own)
        status, has_hung = _waited(child, shared)
        if results.exists():
            found: Tally = pickle.loads(results.read_bytes())
            results.unlink()
            tally = _added(tally, found)
        number = int(shared[_NUMBER])
        if status == -signal.SIGKILL and not has_hung:
            continue  # the machine wanted its memory for something else: the input is tried again
        if status and not _can_be_made(kind, seed, number):
            number += 1  # HDF5 crashes while it is changed: there is no input to try
        elif status:
            cause = "it hung" if has_hung else f"the process ended with status {status}"
            _kept(kind, seed, number, cause, keep)
            tally = _added(tally, Tally(1, 0.0, Counter(fell=1), {cause: 1}))
            number += 1
    with contextlib.suppress(OSError):  # another run of this program may be using it
        Path(CANARY).parent.rmdir()
    return tally


def _can_be_made(kind: Kind, seed: int, number: int) -> bool:
    """Tell whether an input can be made, in a process that may end on it."""
    child = os.fork()
    if not child:
        kind.input(seed, number)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _begin(shared: memoryview, number: int, seconds: float) -> None:
    """Say which input is tried now, each number in one write: `struct` clears both first, and what reads zeros then sees a worker that hangs."""
    shared[_BEGAN] = seconds
    shared[_NUMBER] = number


def _waited(child: int, shared: memoryview) -> tuple[int, bool]:
    """Return the status with which a worker ended, and whether it had to be ended because it hung."""
    has_hung = False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), has_hung
        if _processor(child) - shared[_BEGAN] > _GRACE:
            os.kill(child, signal.SIGKILL)
            has_hung = True
        time.sleep(0.05)


def _processor(child: int) -> float:
    """Return the seconds of the processor that a process has had: by the clock, on a machine that is busy all hangs."""
    facts = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


def _work(
    kind: Kind,
    numbers: range,
    seed: int,
    keep: Path,
    until: float,
    shared: memoryview,
    results: Path,
    own: dict[Seed, float],
) -> None:
    """Try inputs in this process, and end it."""
    status = 1
    tally = Tally()
    try:
        canary = Path(CANARY).parent
        canary.mkdir(exist_ok=True)
        watch = Watch(kind.folder, canary)
        number = numbers.start
        for number in numbers:
            _begin(shared, number, time.process_time())
            if time.time() > until:
                break
            _one(kind, seed, number, watch, own, tally, keep)
            if number % 200 == 0:
                results.write_bytes(pickle.dumps(tally))
        else:
            _begin(shared, numbers.stop, time.process_time())
        results.write_bytes(pickle.dumps(tally))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _own_seconds(kind: Kind, seed: Seed) -> float:
    """Return how long the valid input takes."""
    path = kind.folder / f"own{seed.suffix}"
    path.write_bytes(seed.data)
    began = time.process_time()
    quietly(TRIALS[kind.name], kind.valid(seed), path)
    return time.process_time() - began


def _one(kind: Kind, seed: int, number: int, watch: Watch, own: dict[Seed, float], tally: Tally, keep: Path) -> None:
    began = time.perf_counter()
    chosen, data = kind.input(seed, number)
    path = (
        kind.folder / f"input-{number}{chosen.suffix}"
    )  # HDF5 takes a file that is still open for the one of its name
    path.write_bytes(data)
    if number % _FRESH:
        os.utime(path, (_LONG_AGO, _LONG_AGO))
    outcome = "fell"
    try:
        with watch.watching(len(data), own[chosen]):
            outcome = quietly(TRIALS[kind.name], kind.valid(chosen), path)
    except TooSlow as error:
        _note(kind, seed, number, f"too slow: {where(error)}", tally, keep, data)
    except Exception as error:
        _note(kind, seed, number, cause_of(error), tally, keep, data)
    path.unlink()
    tally.count += 1
    tally.seconds += time.perf_counter() - began
    tally.outcomes[outcome] += 1


def cause_of(error: BaseException) -> str:
    """Return what inputs that fell by the same cause have in common."""
    message = f" ({str(error)[:300]})" if type(error).__module__.startswith("benchmarks") else ""
    return f"{type(error).__name__} in {where(error)}{message}"


def where(error: BaseException) -> str:
    """Return the last line of probe that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/probe/" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('/probe/')[2]}:{ours[-1].name}:{ours[-1].lineno}"


def _note(kind: Kind, seed: int, number: int, cause: str, tally: Tally, keep: Path, data: bytes) -> None:
    cause = cause if len(tally.fell) < 400 else "other causes"
    tally.fell[cause] = tally.fell.get(cause, 0) + 1
    if tally.fell[cause] == 1:
        _kept(kind, seed, number, cause, keep, data)


def _kept(kind: Kind, seed: int, number: int, cause: str, keep: Path, data: bytes | None = None) -> None:
    """Keep the first input of a cause, and what it is."""
    chosen, made = kind.input(seed, number)
    name = f"{kind.name}-{seed}-{number}"
    (keep / f"{name}{chosen.suffix}").write_bytes(made if data is None else data)
    facts = {"kind": kind.name, "of": chosen.name, "seed": seed, "number": number, "cause": cause}
    (keep / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _added(one: Tally, two: Tally) -> Tally:
    fell = {cause: one.fell.get(cause, 0) + two.fell.get(cause, 0) for cause in {**one.fell, **two.fell}}
    return Tally(one.count + two.count, one.seconds + two.seconds, one.outcomes + two.outcomes, fell)
