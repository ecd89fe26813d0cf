"""One training in a process of its own, in which calls fail as they are told to."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from probe.numbers import buffers
from probe.store.writing.disk import Disk
from tests.store import failing_training as training
from tests.store.killing import Expected, began

SOURCE = Path(__file__).with_name("fault.c")
KINDS = (
    "open", "close", "stat", "fstat", "ftruncate", "pread", "read", "pwrite", "pwritev", "write", "lseek", "rename", "unlink",
    "statvfs", "fsync", "fallocate", "mmap", "pthread_create",
)  # fmt: skip
"""as the C source numbers them"""
MOVING = {"pread", "read", "pwrite", "pwritev", "write"}
"""calls that can do a part"""
SHARES = {"nothing": 0, "half": 1, "all": 2}
NEVER = 1 << 40


@dataclass(frozen=True)
class Failure:
    """How a call fails."""

    error: int = errno.EIO
    share: str = "nothing"
    """how much of it is done"""
    lasting: bool = False
    """all later calls fail too"""
    short: bool = False
    """it does not fail: it does a part and says so"""

    def __str__(self) -> str:
        if self.short:
            return f"does half{', and all later ones' if self.lasting else ''}"
        done = "" if self.share == "nothing" else f", {self.share} done"
        return f"{errno.errorcode[self.error]} {'from then on' if self.lasting else 'once'}{done}"


@dataclass(frozen=True)
class Result:
    """What came of it."""

    kind: str
    """the call that failed, empty: there are not so many"""
    outcome: str
    """what was left; ``broken`` where a promise was"""
    details: str = ""


class Fault:
    """The library that lets calls fail, loaded in front of the C library of this process."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._library.fault_arm.argtypes = (
            ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
        )  # fmt: skip
        for name in ("fault_calls", "fault_commits_before"):
            getattr(self._library, name).restype = ctypes.c_long
        self._library.fault_kind.argtypes = (ctypes.c_long,)

    def arm(self, folder: Path, number: int, failure: Failure, kill_after: int) -> None:
        """Let a call fail from now on."""
        self._library.fault_arm(
            os.fsencode(folder), number, failure.error, SHARES["half" if failure.short else failure.share], failure.short,
            failure.lasting, kill_after,
        )  # fmt: skip

    def count_commits(self) -> None:
        """Tell it of every commit that is completed."""
        commit = Disk.commit

        def counted(disk: Disk) -> None:
            commit(disk)
            self._library.fault_committed()

        Disk.commit = counted  # type: ignore[method-assign]

    def calls(self) -> list[str]:
        """Return the calls that were made since it was armed."""
        return [KINDS[self._library.fault_kind(number)] for number in range(self._library.fault_calls())]

    @property
    def fired(self) -> bool:
        return bool(self._library.fault_fired())

    @property
    def killed(self) -> bool:
        return bool(self._library.fault_killed())

    @property
    def steps_before(self) -> int:
        """Steps that were committed before it failed; the first commit is that of the empty file, the last of its end."""
        return min(max(self._library.fault_commits_before() - 1, 0), training.STEPS)


def with_library(folder: Path) -> NoReturn:
    """Begin this program again, with the library in front of the C library."""
    library = folder / "fault.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "PROBE_FAULT": str(library), "OMP_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks.failing_calls", *sys.argv[1:]], environment)


@dataclass
class Place:
    """Where trainings are made, and what they are compared with."""

    fault: Fault
    folder: Path
    """the only one whose files are concerned"""
    reports: Path
    run: training.Training
    alone: bytes
    earlier: bytes
    expected: Expected
    kinds: list[str] = field(default_factory=list)
    """the calls of a run in which none fails"""
    was_killed: bool = False

    def attempt(self, number: int, failure: Failure, kill_after: int = -1) -> Result:
        """Train while the n-th call fails, and check what is left."""
        path = self.folder / "a.h5"
        for each in self.folder.iterdir():
            each.unlink()
        path.write_bytes(self.earlier)
        self.fault.arm(self.folder, NEVER, failure, -1)  # forgets the last attempt
        child = os.fork()
        if not child:
            self._train(path, number, failure, kill_after)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        fired, calls = self.fault.fired, self.fault.calls()
        self.was_killed, before = self.fault.killed, self.fault.steps_before
        self.fault.arm(Path("/nowhere"), NEVER, failure, -1)
        if not fired:
            self.kinds = calls
            assert self._after_end(path, status, training.STEPS) == "whole"
            return Result("", "")
        try:
            outcome = self._after_kill(path, before) if self.was_killed else self._after_end(path, status, before)
        except Exception:  # noqa: BLE001  whatever it is, it is what this looks for
            return Result(calls[number], "broken", f"call {number} {failure} {kill_after}: {traceback.format_exc()}")
        return Result(calls[number], outcome)

    def _train(self, path: Path, number: int, failure: Failure, kill_after: int) -> NoReturn:
        """Train in a forked process, which ends as any other: what crashes at its end is seen."""
        errors = os.open(self.reports / "errors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 2)
        os.dup2(errors, 1)
        (self.reports / "said").unlink(missing_ok=True)
        buffers.release()  # what was used before it was forked
        self.fault.count_commits()
        self.fault.arm(self.folder, number, failure, kill_after)
        said = training.record(path, self.alone, overwrite=True, run=self.run)
        (self.reports / "said").write_bytes(pickle.dumps(said))
        sys.exit(0)

    def _after_end(self, path: Path, status: int, before: int) -> str:
        errors = (self.reports / "errors").read_text()
        assert (status, errors) == (0, ""), f"ended with {status}: {errors}"
        said = pickle.loads((self.reports / "said").read_bytes())
        steps = training.check(path, self.expected, said, before, self.earlier)
        if steps < 0:
            return "not begun"
        return "whole" if said is None or steps == training.STEPS else "stopped"

    def _after_kill(self, path: Path, before: int) -> str:
        if not path.exists() or not began(path):  # killed before there was a recording: the earlier one is kept
            assert before == 0, "a recording that was there is gone"
            assert any(each.read_bytes() == self.earlier for each in self.folder.iterdir()), "the earlier one is gone"
            return "not begun"
        if path.read_bytes() == self.earlier:
            return "not begun"
        steps = self.expected.check(path)
        assert steps >= before, f"{steps} steps, {before} were committed"
        return "whole" if steps == training.STEPS else "stopped"


def place(library: str, root: Path, run: training.Training) -> Place:
    """Make the recordings that others are compared with."""
    folder, reports = root / "files", root / "reports"
    for each in (folder, reports):
        each.mkdir(exist_ok=True)
    alone = run(None, training.STEPS, False)
    for name, steps in (("earlier.h5", 1), ("whole.h5", training.STEPS)):
        (root / name).unlink(missing_ok=True)
        found = run(root / name, steps, False)
    assert found == alone, "the recorded training is another one"
    expected = Expected(root / "whole.h5", 0.0)
    there = Place(Fault(library), folder, reports, run, alone, (root / "earlier.h5").read_bytes(), expected)
    there.attempt(NEVER, Failure())
    return there
