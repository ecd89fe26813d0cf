"""Record, fix, record again: replacing a recording, the line that ends one, and recordings that are mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import probe
from probe.adapters.numpy.tensor import Tensor
from probe.errors import ConfigError, ExistsError, ProbeError, ProbeWarning
from probe.testing import sample
from tests.long_runs import Net, Training, alone  # noqa: F401


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
from probe.adapters.numpy.tensor import Tensor
from probe.testing import sample
from tests.long_runs import Training
training = Training()
probe.start(training.net, "a.h5"{options})
training.net(Tensor(sample((5, 4)))).sum().backward()
training.optimizer.step()
probe.step()
{end}
"""


def said(options: str = "", end: str = "probe.stop()", **environment: str) -> str:
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(options=options, end=end)], capture_output=True, text=True,
                          env={"PATH": "", "PYTHONPATH": root, **environment}, check=True)  # fmt: skip
    assert not done.stdout
    return done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["probe.stop()", "", "probe.stop(); probe.stop()"])
def test_one_line_says_what_was_recorded(end: str) -> None:
    assert re.fullmatch(r"probe: 1 step, \d+ modules, \d+ tensors → a\.h5 \([\d.]+ KiB\)\n", said(end=end))


@pytest.mark.thorough
def test_it_can_be_silenced() -> None:
    assert said(", quiet=True") == said(", overwrite=True", PROBE_QUIET="1") == ""
    assert said(", overwrite=True", end='import logging; logging.getLogger("probe").setLevel("WARNING")') == ""
    root = 'import logging; logging.basicConfig(level="INFO", format="%(name)s|%(message)s")'
    lines = said(", overwrite=True", end=root)
    assert lines.startswith("probe: 1 step, ") and lines.count("\n") == 1  # once, whatever the root logger prints
    own = said(", overwrite=True", end=f'{root}; logging.getLogger("probe").addHandler(logging.NullHandler())')
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
        from probe.adapters.numpy.tensor import no_grad

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
