"""`start`, `step`, `stop`, `log`, `capture`: beginnings, ends, names of files, recording again, steps that were never told apart, exports."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import probe
from probe.errors import ConfigError, ExistsError, ProbeError, ProbeWarning, RecordingError
from probe.messages import LOGGER
from probe.records import StepState
from probe.store.reading.reader import Reader
from probe.testing import sample
from tests.limits import HANGS
from tests.recorder.long_runs import Net, Training
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad

# ---- `start`, `step`, `stop`, `log`, `capture`: beginnings, ends, names of files, processes that end or fork.

ROOT = Path(__file__).parents[2]
JOBS = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID"]
LAUNCHERS = [*JOBS, "RANK", "WORLD_SIZE", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "RANK_ID", "RANK_SIZE"]


@pytest.fixture(autouse=True)
def alone_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder, without a launcher, and without a recording at the end."""
    for name in [*LAUNCHERS, "PROBE_DUMP"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("probe.session._starts", 0)
    monkeypatch.chdir(tmp_path)
    yield
    probe.stop()


def model() -> nn.Module:
    return nn.Linear(3, 2)


def run(net: nn.Module) -> Tensor:
    loss = net(Tensor(sample((4, 3)))).sum()
    loss.backward()
    return loss


def states(path: str | Path) -> list[StepState]:
    with Reader(path) as reader:
        assert reader.info.closed
        return [StepState(state) for state in reader.steps["state"]]


# ---- beginning and end ---------------------------------------------------------------------------------


def test_only_one_recording_at_a_time() -> None:
    probe.start(model(), "a.h5")
    with pytest.raises(RecordingError) as caught:
        probe.start(model(), "b.h5")
    assert str(caught.value) == "a recording to a.h5 is under way; call probe.stop() first"
    assert not Path("b.h5").exists()
    probe.stop()
    probe.start(model(), "b.h5")
    probe.stop()
    with pytest.raises(ExistsError):
        probe.start(model(), "a.h5")


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(RecordingError) as caught:
        probe.start([])
    assert str(caught.value) == ("probe.start() was given an empty list; expected a module, or a list of modules")
    with pytest.raises(RecordingError, match=r"was given a builtins\.dict; expected a module of [a-z, ]*numpy"):
        probe.start({}, "a.h5")
    assert not [*Path().iterdir()]


def test_nothing_is_under_way() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe.stop()
        probe.step(loss=1.0)  # once stopped, a program may go on
        probe.log("x", 1.0)
        probe.log("x", Tensor(sample((2,))))


def test_step_before_start_says_so_once() -> None:
    code = "import probe\nfor _ in range(3): probe.step(loss=1)"
    done = python(code)
    assert done.returncode == 0
    assert done.stderr.count("probe.step() does nothing: no recording is under way") == 1


def test_capture_closes_the_step() -> None:
    net = model()
    with probe.capture(net, "a.h5", task="tensor") as path:
        assert path == Path("a.h5")
        run(net)
    assert states("a.h5") == [StepState.CLOSED]
    assert not net.pre_hooks and not net.post_hooks


def test_capture_marks_what_an_exception_interrupts() -> None:
    net = model()
    with pytest.raises(KeyboardInterrupt), probe.capture(net, "a.h5"):
        run(net)
        probe.step()
        run(net)
        raise KeyboardInterrupt
    assert states("a.h5") == [StepState.CLOSED, StepState.ABORTED]
    assert not net.pre_hooks and not net.post_hooks


def test_an_empty_step_is_not_recorded_at_the_end() -> None:
    net = model()
    with probe.capture(net, "a.h5"):
        run(net)
        probe.step()
    assert states("a.h5") == [StepState.CLOSED]


# ---- numbers -------------------------------------------------------------------------------------------


def test_scalars() -> None:
    net = model()
    with probe.capture(net, "a.h5"):
        loss = run(net)
        probe.log("seen", np.float32(0.5))
        probe.step(loss, lr=1e-3, grad_norm=np.float64(2.0), skipped=True)
        probe.step(loss=3)
    with Reader("a.h5") as reader:
        assert reader.scalars == [
            (0, "seen", 0.5), (0, "loss", float(loss.item())), (0, "lr", 1e-3), (0, "grad_norm", 2.0),
            (0, "skipped", 1.0), (1, "loss", 3.0),
        ]  # fmt: skip


@pytest.mark.parametrize("value, kind", [("high", "str"), ([1.0], "list"), (np.ones(2), "ndarray")])
def test_what_is_no_number_is_said_once_and_left_out(value: Any, kind: str) -> None:
    probe.start(model(), "a.h5")
    with pytest.warns(ProbeWarning, match="lr is not recorded") as caught:
        for loss in (1.0, 2.0):
            probe.step(loss=loss, lr=value)
    probe.stop()
    (text,) = [str(each.message).removeprefix("probe: ") for each in caught]
    expected = f"probe.step(): lr is not recorded: expected a number or a tensor with one element, got {kind} ("
    assert text.startswith(expected) and text.endswith("); tensors are recorded by probe.log(name, tensor)")
    with Reader("a.h5") as reader:
        assert reader.scalars == [(0, "loss", 1.0), (1, "loss", 2.0)]
        assert [note[2] for note in reader.notes] == [text]


def test_what_raises_anything_is_no_number() -> None:
    class Strange:
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

    with (
        probe.capture(model(), "a.h5"),
        pytest.warns(ProbeWarning, match="not recorded: expected a number .* got Strange"),
    ):
        probe.log("strange", Strange())
        probe.step(loss=Strange())


def test_losses_in_a_dict_are_given_by_name() -> None:
    expected = (
        "probe.step(): loss is not recorded: expected a number or a tensor with one element, got dict; "
        "give each by its name: probe.step(**loss)"
    )
    with probe.capture(model(), "a.h5"), pytest.warns(ProbeWarning, match=re.escape(expected)):
        probe.step(loss={"first": 1.0, "second": 2.0})


# ---- names of files ------------------------------------------------------------------------------------


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged, in a handler of the program's own."""
    texts: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.delenv("PROBE_QUIET")
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    return texts


DEFAULT = re.compile(r"probe-\d{8}-\d{6}\.h5")


@pytest.mark.parametrize("dump", [None, ""])
def test_without_a_path_the_name_is_said(dump: str | None, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    if dump is not None:
        monkeypatch.setenv("PROBE_DUMP", dump)
    path = probe.start(model())
    assert path is not None and DEFAULT.fullmatch(str(path)) and path.is_file()
    assert said == [f"recording to {path}"]


@pytest.mark.parametrize("overwrite", ["", "1"])
@pytest.mark.parametrize("path", [None, "folder"])
def test_runs_that_begin_in_one_second_all_record(
    path: str | None, overwrite: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("folder").mkdir()
    monkeypatch.setenv("PROBE_OVERWRITE", overwrite)
    monkeypatch.setattr("probe.targets.time.strftime", lambda form: "probe-20260102-030405.h5")
    found = []
    for _ in range(3):
        found.append(probe.start(model(), path))
        probe.stop()
    assert [each.name for each in found] == [f"probe-20260102-030405{number}.h5" for number in ("", "-2", "-3")]
    assert len({Reader(each).info.run_id for each in found}) == 3


@pytest.mark.parametrize("given", [True, False], ids=["argument", "variable"])
@pytest.mark.parametrize("name", ["x.h5", "with space.hdf5", "folder", "made/of two/", "no_suffix"])
def test_where_it_goes(
    name: str, given: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("folder").mkdir()
    monkeypatch.setenv("PROBE_DUMP", "elsewhere.h5" if given else name)
    path = probe.start(model(), name if given else None)
    assert path is not None and path.is_file() and capsys.readouterr().err == ""
    if name in ("folder", "made/of two/"):
        assert path.parent == Path(name) and DEFAULT.fullmatch(path.name)
    else:
        assert path == Path(name)


@pytest.mark.parametrize(
    "variables, path, expected",
    [
        ({}, "a.h5", "a.h5"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "a.h5", "a.h5"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "a.h5", "a.rank00003.h5"),
        ({"PADDLE_TRAINER_ID": "12", "PADDLE_TRAINERS_NUM": "16"}, "x/a.b.h5", "x/a.b.rank00012.h5"),
        ({"RANK_ID": "0", "RANK_SIZE": "2"}, "a", "a.rank00000.h5"),
        ({"RANK": "3"}, "a.h5", "a.h5"),
        ({"RANK": "first", "WORLD_SIZE": "8"}, "a.h5", "a.h5"),
    ],
)
def test_ranks_have_files_of_their_own(
    variables: dict[str, str], path: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("x").mkdir()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert probe.start(model(), path) == Path(expected)
    probe.stop()
    with Reader(expected) as reader:
        rank, size = [int(value) for value in variables.values()] if ".rank" in expected else (0, 1)
        assert (reader.info.rank, reader.info.world_size) == (rank, size)


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({}, ["probe.rank00003.h5", "probe-2.rank00003.h5"]),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77"}, ["probe-77.rank00003.h5", "probe-77-2.rank00003.h5"]),
        ({"TORCHELASTIC_RUN_ID": "a/b c", "TORCHELASTIC_RESTART_COUNT": "2", "SLURM_JOB_ID": "7"},
         ["probe-a_b_c-restart2.rank00003.h5", "probe-a_b_c-restart2-2.rank00003.h5"]),
    ],
)  # fmt: skip
def test_default_names_of_ranks_do_not_depend_on_when_each_starts(
    variables: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", **variables}.items():
        monkeypatch.setenv(name, value)
    found = []
    for second in range(2):
        monkeypatch.setattr("probe.targets.time.strftime", lambda form, second=second: f"at-{second}")
        found.append(str(probe.start(model())))
        probe.stop()
    assert found == expected
    assert said == [f"recording to {name}" for name in expected]  # rank 3 does not say what it recorded


def test_ranks_that_do_not_record_count_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert probe.start(model(), ranks=[0]) is None
    assert probe.start(model(), ranks=[0, 1]) == Path("probe-2.rank00001.h5")


# ---- options that choose nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("option", ["modules", "tensors"])
def test_a_pattern_that_matches_no_module_is_told_at_the_users_line(option: str) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with pytest.warns(ProbeWarning) as caught:
        probe.start([net, net], "a.h5", **{option: ["0.*", "2.0", "Lineal"]})
    assert [str(one.message) for one in caught] == [
        f"probe: {option}='2.0' matches no module; did you mean '1.0' or '0.0' or '0'?",
        f"probe: {option}='Lineal' matches no module; did you mean 'Linear'?",
    ]
    assert {one.filename for one in caught} == {__file__}


def test_a_pattern_that_matches_nothing_leaves_nothing_behind_where_warnings_are_errors() -> None:
    with pytest.raises(ProbeWarning):
        probe.start(model(), "a.h5", modules="mlp")
    assert not Path("a.h5").exists()
    probe.start(model(), "a.h5")


def test_warnings_point_at_the_users_line() -> None:
    code = compile("import probe\n\nprobe.step(loss=1)\n", "users.py", "exec")
    with pytest.MonkeyPatch.context() as patch, pytest.warns(ProbeWarning) as caught:
        patch.setattr("probe.session._warned", False)
        exec(code, {"__name__": "users"})  # noqa: S102
    assert [(one.filename, one.lineno) for one in caught] == [("users.py", 3)]


def test_what_the_file_says_about_the_run() -> None:
    with probe.capture(model(), "a.h5", steps="3-4", modules="!Dropout"):
        pass
    with probe.capture(model(), "b.h5"):
        pass
    with Reader("a.h5") as a, Reader("b.h5") as b:
        assert a.info.run_id != b.info.run_id
        assert (a.info.framework, a.info.probe_version) == ("numpy", probe.__version__)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", a.info.created)
        assert a.info.config == {"task": "statistics", "level": "module", "steps": [[3, 4]], "ranks": None,
                                 "modules": ["!Dropout"], "phases": None, "tensors": None,
                                 "on_nonfinite": False, "on_loss_jump": None, "batch": None, "compression": None}  # fmt: skip
        assert {"python", "platform", "packages", "git_commit"} <= set(a.environment)


# ---- processes that end, fork, or have no room ---------------------------------------------------------

PROGRAM = """
import os, signal, sys
import probe
from tests.toy import nn
from tests.toy.tensor import Tensor
from probe.testing import sample

net = nn.Linear(3, 2)
def train():
    net(Tensor(sample((4, 3)))).sum().backward()

probe.start(net, "a.h5")
train()
probe.step(loss=1)
train()
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS, check=False, env=environment
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "end, status, expected",
    [
        ("", 0, [StepState.CLOSED, StepState.CLOSED]),
        ("sys.exit(3)", 3, [StepState.CLOSED, StepState.CLOSED]),
        ("raise ValueError", 1, [StepState.CLOSED, StepState.ABORTED]),
    ],
)
def test_a_program_that_never_stops_the_recording(end: str, status: int, expected: list[StepState]) -> None:
    done = python(PROGRAM + end)
    assert done.returncode == status
    assert states("a.h5") == expected


FORK = """
child = os.fork()
if not child:
    probe.log("x", 1.0)
    train()
    probe.step(loss=2)
    probe.stop()
    with probe.capture(net, "child.h5"):
        train()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
train()
probe.stop()
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_record() -> None:
    done = python(PROGRAM + FORK)
    assert (done.returncode, done.stderr) == (0, "")
    assert states("a.h5") == [StepState.CLOSED, StepState.CLOSED]
    assert states("child.h5") == [StepState.CLOSED]
    with Reader("a.h5") as reader, Reader("child.h5") as child:
        assert reader.scalars == [(0, "loss", 1.0)]
        assert sorted(set(reader.records["micro"][reader.records["step"] == 1])) == [0, 1]
        assert child.info.run_id != reader.info.run_id


FULL = """
import resource, warnings
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
warnings.simplefilter("always")
probe.step()
room = os.path.getsize("a.h5") + 100_000
resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
for number in range(400):
    train()
    if number % 50 == 0:
        import time; time.sleep(0.05)
    STEP
probe.stop()
probe.stop()
print("trained")
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("step", ["probe.step()", "pass"], ids=["while it runs", "at its end"])
def test_without_room_there_is_one_warning_and_the_training_goes_on(step: str) -> None:
    done = python(PROGRAM + FULL.replace("STEP", step))
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert done.stderr.count("ProbeWarning") == 1
    assert "[Errno 27] File too large" in done.stderr and "the recording has stopped" in done.stderr
    assert "HDF5" not in done.stderr and "Traceback" not in done.stderr
    with Reader("a.h5") as reader:
        assert not reader.info.closed and len(reader.records) == (
            reader.steps["n_records"][-1] if len(reader.steps) else 0
        )


# ---- Record, fix, record again: replacing a recording, the line that ends one, and recordings that are mistakes.


def record(path: str, steps: int = 1, **options: object) -> None:
    training = Training()
    probe.start(training.net, path, **options)  # type: ignore[arg-type]
    for _ in range(steps):
        training.net(Tensor(sample((5, 4)))).sum().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        probe.step()
    probe.stop()


# Replacing


def test_a_recording_is_replaced_only_where_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    record("a.h5")
    with pytest.raises(ExistsError, match="a.h5 exists; give another name, or replace it"):
        record("a.h5", steps=2)
    assert len(probe.open("a.h5").steps) == 1
    record("a.h5", steps=2, overwrite=True)
    assert len(probe.open("a.h5").steps) == 2
    monkeypatch.setenv("PROBE_OVERWRITE", "1")
    record("a.h5", steps=3)
    assert len(probe.open("a.h5").steps) == 3
    with pytest.raises(ExistsError):
        record("a.h5", overwrite=False)
    assert [path.name for path in Path().iterdir()] == ["a.h5"]


def test_what_is_left_of_a_killed_recording_is_replaced() -> None:
    for content in (b"", b"\x89HDF\r\n\x1a\n and nothing that can be read"):
        Path("a.h5").write_bytes(content)
        record("a.h5", overwrite=True)
        assert len(probe.open("a.h5").steps) == 1


def test_a_file_that_is_no_recording_is_never_replaced() -> None:
    import h5py

    Path("weights.bin").write_bytes(b"weights")
    with h5py.File("other.h5", "w") as file:
        file["x"] = 1
    Path("folder.h5").mkdir()
    for name in ("weights.bin", "other.h5"):
        before = Path(name).read_bytes()
        with pytest.raises(ExistsError, match=f"{name} exists and is not a recording"):
            record(name, overwrite=True)
        assert Path(name).read_bytes() == before


def test_a_start_that_fails_leaves_the_recording_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    record("a.h5")
    before = Path("a.h5").read_bytes()

    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("probe.session.Recorder", broken)
    with pytest.raises(RuntimeError, match="planted"):
        record("a.h5", overwrite=True)
    assert Path("a.h5").read_bytes() == before and len(list(Path().iterdir())) == 1


# What is said in the end

SCRIPT = """
import probe
from tests.toy.tensor import Tensor
from probe.testing import sample
from tests.recorder.long_runs import Training
training = Training()
probe.start(training.net, "a.h5"{options})
training.net(Tensor(sample((5, 4)))).sum().backward()
training.optimizer.step()
probe.step()
{end}
"""


def said_again(options: str = "", end: str = "probe.stop()", **environment: str) -> str:
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(options=options, end=end)], capture_output=True, text=True,
                          env={"PATH": "", "PYTHONPATH": root, **environment}, check=True)  # fmt: skip
    assert not done.stdout
    return done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["probe.stop()", "", "probe.stop(); probe.stop()"])
def test_one_line_says_what_was_recorded(end: str) -> None:
    assert re.fullmatch(r"probe: 1 step, \d+ modules, \d+ tensors → a\.h5 \([\d.]+ KiB\)\n", said_again(end=end))


@pytest.mark.thorough
def test_it_can_be_silenced() -> None:
    assert said_again(", quiet=True") == said_again(", overwrite=True", PROBE_QUIET="1") == ""
    assert said_again(", overwrite=True", end='import logging; logging.getLogger("probe").setLevel("WARNING")') == ""
    root = 'import logging; logging.basicConfig(level="INFO", format="%(name)s|%(message)s")'
    lines = said_again(", overwrite=True", end=root)
    assert lines.startswith("probe: 1 step, ") and lines.count("\n") == 1  # once, whatever the root logger prints
    own = said_again(", overwrite=True", end=f'{root}; logging.getLogger("probe").addHandler(logging.NullHandler())')
    assert own.startswith("probe|1 step, ") and own.count("\n") == 1  # as the program wants it


# Recordings that are probably mistakes


def mistake_of(training: Training, other: Training, **options: object) -> list[str]:
    """Record ``training`` while ``other`` trains; return what is said in the end."""
    with pytest.warns(ProbeWarning) as caught:
        probe.start(training.net, "a.h5", overwrite=True, **options)  # type: ignore[arg-type]
        for _ in range(2):
            other.net(Tensor(sample((5, 4)))).sum().backward()
            other.optimizer.step()
            probe.step()
        probe.stop()
    return [str(each.message) for each in caught]


def test_another_model_was_trained_than_the_one_recorded() -> None:
    (text,) = mistake_of(Training(), Training())
    assert (
        "nothing was recorded: no module of Net ran" in text and "an optimizer updated other parameters 2 times" in text
    )


def test_the_model_ran_and_another_one_was_trained() -> None:
    training, other = Training(), Training()
    inner = other.net.forward

    def with_teacher(x: Tensor) -> Tensor:
        from tests.toy.tensor import no_grad

        with no_grad():
            training.net(x)
        return inner(x)

    other.net.forward = with_teacher  # type: ignore[method-assign]
    (text,) = mistake_of(training, other)
    assert "Net ran, but it was not trained" in text and "an optimizer updated other parameters 2 times" in text


def test_no_step_was_chosen() -> None:
    training = Training()
    (text,) = mistake_of(training, training, steps=[7])
    assert text == "probe: no step was recorded: 2 steps ended, and steps= chose none of them"


def test_nothing_ran() -> None:
    probe.start(Net(), "a.h5")
    with pytest.warns(ProbeWarning, match="nothing was recorded: no module of Net ran between"):
        probe.stop()


# Errors


def test_errors_of_probe_have_no_other_errors_before_them() -> None:
    record("a.h5")
    with pytest.raises(ProbeError) as caught:
        record("a.h5")
    assert "During handling" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ConfigError) as caught:
        probe.start(Net(), "b.h5", config="no.yaml")
    lines = "".join(traceback.format_exception(caught.value))
    assert "During handling" not in lines and "direct cause" not in lines


def test_notebooks_show_errors_of_probe_as_one_line() -> None:
    pytest.importorskip("IPython")
    code = "from probe.errors import ExistsError; raise ExistsError('a.h5 exists')"
    done = subprocess.run([sys.executable, "-m", "IPython", "--colors=NoColor", "-c", code], capture_output=True, text=True,
                          env={"PYTHONPATH": str(Path(__file__).parents[2]), "HOME": str(Path.cwd())})  # fmt: skip
    assert (done.stdout + done.stderr).strip() == "ExistsError: a.h5 exists"


# ---- Steps that were never told apart, and objects that are no optimizer.

# Steps that were never told apart, and objects that are no optimizer


def message(forwards: int) -> str:
    return (
        f"probe: probe.step() was never called: all {forwards} forwards are in step 0; call it at the end of each step"
    )


def test_a_loop_without_step_is_told_at_the_end() -> None:
    training = Training()
    probe.start(training.net, "a.h5")
    for _ in range(3):
        training.net(Tensor(sample((5, 4)))).sum().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    with pytest.warns(ProbeWarning) as caught:
        probe.stop()
    assert [str(one.message) for one in caught] == [message(3)]
    assert caught[0].filename == __file__


def test_so_is_one_without_an_optimizer_and_one_of_norms() -> None:
    net = Net()
    for path, task in (("a.h5", "statistics"), ("b.h5", "norms")):
        probe.start(net, path, task=task)
        with no_grad():
            for _ in range(2):
                net(Tensor(sample((5, 4))))
        with pytest.warns(ProbeWarning) as caught:
            probe.stop()
        assert [str(one.message) for one in caught] == [message(2)]


def test_so_is_one_whose_steps_never_came() -> None:
    net = Net()
    probe.start(net, "a.h5", steps=[5])
    for _ in range(4):
        net(Tensor(sample((5, 4)))).sum().backward()
    with pytest.warns(ProbeWarning) as caught:
        probe.stop()
    assert [str(one.message) for one in caught] == [message(4)]


def test_one_step_needs_no_call() -> None:
    training = Training()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with probe.capture(training.net, "a.h5"):
            training.net(Tensor(sample((5, 4)))).sum().backward()
        for path, updates in (("b.h5", 0), ("e.h5", 1)):  # gradient accumulation
            with probe.capture(training.net, path):
                for _ in range(3):
                    training.net(Tensor(sample((5, 4)))).sum().backward()
                for _ in range(updates):
                    training.optimizer.step()
        probe.start(training.net, "f.h5")
        for _ in range(3):
            training.net(Tensor(sample((5, 4)))).sum().backward()
        training.optimizer.step()
        probe.stop()
        with probe.capture(training.net, "c.h5"):
            training.step()
            training.net(Tensor(sample((5, 4))))
            training.net(Tensor(sample((5, 4))))
        with pytest.raises(KeyError), probe.capture(training.net, "d.h5"):
            training.net(Tensor(sample((5, 4))))
            training.net(Tensor(sample((5, 4))))
            raise KeyError


def test_a_block_with_several_updates_is_told_too() -> None:
    training = Training()
    with pytest.warns(ProbeWarning) as caught, probe.capture(training.net, "a.h5"):
        for _ in range(2):
            training.net(Tensor(sample((5, 4)))).sum().backward()
            training.optimizer.step()
    assert [str(one.message) for one in caught] == [message(2)] and caught[0].filename == __file__


def test_a_program_that_ends_without_step_is_told_too() -> None:
    code = (
        "import probe\nfrom tests.toy import nn\nfrom tests.toy.tensor import Tensor\n"
        "from probe.testing import sample\nnet = nn.Linear(3, 2)\nprobe.start(net, 'a.h5')\n"
        "for _ in range(4): net(Tensor(sample((4, 3))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr.count(message(4)) == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize("wrong", [Net, object, lambda: SimpleNamespace(step=print)])
def test_what_is_no_optimizer_is_named(wrong: Any) -> None:
    value = wrong()
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    with pytest.raises(RecordingError) as caught:
        probe.start(Net(), "a.h5", optimizer=value)
    assert str(caught.value) == (
        f"probe.start() was given optimizer={kind}; expected an optimizer of numpy: leave it out for one of another class, or for updates "
        "by hand; what the weights become is recorded all the same"
    )
    assert not Path("a.h5").exists()
