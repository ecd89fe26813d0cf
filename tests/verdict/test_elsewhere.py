"""Values that other processes compare, what is kept of a comparison that is interrupted, and recordings behind URLs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.answer.result import Verdict
from probe.errors import ConfigError, ProbeError, StoreError
from probe.scheduling import Processes, scheduler_of
from probe.verdict.ahead import Ahead
from tests.verdict.planted import MODEL_FAULTS, UP, Clean, Recorder, changed

pytestmark = pytest.mark.thorough


@pytest.fixture
def pair(clean: Clean, run: Recorder) -> tuple[Path, Path]:
    """A recording with all values, and one of a model with a fault."""
    wrong = changed(MODEL_FAULTS["gradient of one of two consumers"][0])
    return clean("tensor"), run(wrong, task="tensor")


def told(answer: Any) -> str:
    return json.dumps(answer.as_json(), sort_keys=True, default=str)


# ---- processes


def twice(number: int) -> int:
    return 2 * number


def dies_once(job: tuple[str, int]) -> int:
    """End the process the first time."""
    flag, number = job
    if number == 1 and not os.path.exists(flag):
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def dies(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def fails(number: int) -> int:
    raise StoreError(f"job {number}")


def test_processes_return_what_is_asked_for_in_order(tmp_path: Path) -> None:
    with Processes(2) as processes:
        assert list(processes.map(twice, range(5))) == [0, 2, 4, 6, 8]
        assert list(processes.map(dies_once, [(str(tmp_path / "flag"), k) for k in range(4)])) == [0, 2, 4, 6]
        with pytest.raises(StoreError, match="job 0"):
            list(processes.map(fails, [0]))
        with pytest.raises(ProbeError, match="were ended 3 times"):
            list(processes.map(dies, [0]))


def test_other_processes_give_the_same_answer(pair: tuple[Path, Path]) -> None:
    here = probe.compare(*pair)
    there = probe.compare(*pair, scheduler="processes:2")
    assert here.verdict is Verdict.DIVERGED and told(here) == told(there)


@pytest.mark.parametrize("wrong", ["threads", "processes:0", "processes:two", "processes:-1", "localhost:8786", ""])
def test_a_scheduler_that_is_none(wrong: str) -> None:
    with pytest.raises(ConfigError, match="is not known; expected 'processes'"):
        scheduler_of(wrong)


# ---- Dask


@pytest.fixture(scope="module")
def cluster() -> Any:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as found:
        yield found.scheduler_address


def test_a_cluster_gives_the_same_answer(pair: tuple[Path, Path], cluster: str) -> None:
    assert told(probe.compare(*pair)) == told(probe.compare(*pair, scheduler=cluster))


def test_what_a_killed_worker_had_not_done_is_done_by_another(cluster: str, tmp_path: Path) -> None:
    with scheduler_of(cluster) as workers:
        assert list(workers.map(dies_once, [(str(tmp_path / "flag"), k) for k in range(4)])) == [0, 2, 4, 6]


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("probe.scheduling._SECONDS", 0.5)
    with pytest.raises(ProbeError, match="no Dask scheduler answers at tcp://127.0.0.1:9"):
        scheduler_of("tcp://127.0.0.1:9")


# ---- resuming


class Interrupted(Exception):
    pass


def test_an_interrupted_comparison_goes_on(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, whole = tmp_path / "kept.jsonl", told(probe.compare(*pair))
    monkeypatch.setattr(Ahead, "least", 1)  # what is read is kept tensor by tensor
    measured, read = Ahead._measured, []

    def interrupted(self: Ahead, step: Any, events: Any, jobs: Any) -> Any:
        for job, found in zip(jobs, measured(self, step, events, jobs), strict=True):
            if len(read) == 5:
                raise Interrupted
            read.append(job.numbers)
            yield found

    monkeypatch.setattr(Ahead, "_measured", interrupted)
    with pytest.raises(Interrupted):
        probe.compare(*pair, resume=kept)
    with kept.open("a", encoding="utf-8") as file:
        file.write('{"step": 0, "found": [["Requ')  # a process that is killed may leave a part of a line
    monkeypatch.setattr(Ahead, "_measured", measured)
    assert told(probe.compare(*pair, resume=kept)) == whole
    monkeypatch.setattr("probe.verdict.distance.measure.from_values", None)
    assert told(probe.compare(*pair, resume=kept)) == whole, "nothing is read again"


def test_a_file_of_another_comparison(pair: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = pair
    kept = tmp_path / "kept.jsonl"
    probe.compare(a, b, resume=kept)
    with pytest.raises(ConfigError, match=r"was begun by another comparison \(other A, B\)"):
        probe.compare(b, a, resume=kept)
    kept.write_text("step,loss\n0,1.5\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is no file that resume= has written"):
        probe.compare(a, b, resume=kept)
    with pytest.raises(ConfigError, match="cannot be written"):
        probe.compare(a, b, resume=tmp_path / "none" / "kept.jsonl")


# ---- URLs


@pytest.fixture
def remote(pair: tuple[Path, Path]) -> tuple[str, str]:
    """The same recordings in fsspec's memory."""
    pytest.importorskip("upath")
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in pair:
        memory.pipe(f"/runs/{path.name}", path.read_bytes())
    return tuple(f"memory://runs/{path.name}" for path in pair)  # type: ignore[return-value]


def test_recordings_behind_a_url(pair: tuple[Path, Path], remote: tuple[str, str], tmp_path: Path) -> None:
    here, there = probe.compare(*pair), probe.compare(*remote)
    assert told(there).replace("memory://runs", str(pair[0].parent)) == told(here)
    assert there.save(tmp_path / "page.html").stat().st_size > 1000
    with probe.open(remote[0]) as run, probe.open(pair[0]) as same:
        assert run[UP].output[0].values().tolist() == same[UP].output[0].values().tolist()
    with probe.open(f"{remote[0][:-4]}*") as run:
        assert run.steps == [0, 1]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory://runs/none.h5", "there is no file memory://runs/none.h5"),
        ("memory://runs/none*.h5", r"no file matches memory://runs/none\*.h5"),
        ("nowhere://runs/a.h5", "nowhere://runs/a.h5 is no URL that can be read"),
    ],
)
def test_a_url_of_nothing(url: str, said: str) -> None:
    pytest.importorskip("upath")
    with pytest.raises(StoreError, match=said):
        probe.open(url)


def test_urls_need_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "upath", None)
    with pytest.raises(StoreError, match=r"pip install 'probe-align\[remote\]'"):
        probe.open("s3://runs/a.h5")
