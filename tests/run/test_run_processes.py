"""`python -m probe.run` and PROBE_RECORD in processes of their own: the file that python reads when it starts, children, exit."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe.adapters.frameworks import FRAMEWORKS
from probe.errors import StoreError
from probe.run import interpreter_start
from probe.run.order import OPTIONS, PATH, RECORDING, Order, inherited
from probe.testing import Recording
from tests.limits import HANGS
from tests.programs import hooked

ROOT = Path(__file__).parents[2]
TRAINING = """
import os, sys
from tests.toy import nn
from tests.toy.tensor import Tensor
import numpy as np

def train(steps=2):
    nn.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = nn.SGD(net.parameters(), 0.1)
    for index in range(steps):
        net(Tensor(np.full((3, 4), 1.0 + index, np.float32))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PROBE_QUIET", raising=False)
    for name in (PATH, OPTIONS):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def hooked_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(hooked(tmp_path_factory.mktemp("environment") / "venv"))


def run(python: str, script: str, *words: str, status: int = 0, **variables: str) -> str:
    """Run a script; return what it has written to stderr."""
    Path("it.py").write_text(TRAINING + script)
    command = [python, *(["-m", "probe.run", *words] if words else []), "it.py"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, timeout=HANGS)
    assert done.returncode == status, done.stderr
    return done.stderr


def steps(path: str) -> list[tuple[int, int]]:
    return [(int(each["step"]), int(each["state"])) for each in Recording(Path(path)).steps]


def test_a_program_is_recorded_to_its_end_and_says_so() -> None:
    err = run(sys.executable, "train()\nos.chdir('/')", "-o", "a.h5", "--task", "tensor", "--steps", "1")
    first, last = err.splitlines()
    assert first.startswith(f"probe: recording Linear (10 parameters, trained by SGD) to {Path('a.h5').absolute()}")
    assert last.startswith("probe: 1 step, 1 module") and steps("a.h5") == [(1, 0)]
    assert Recording(Path("a.h5")).one(path="", role="input").values.max() == 2


@pytest.mark.parametrize(("end", "status", "state"), [("sys.exit(3)", 3, 0), ("raise OSError('x')", 1, 1)])
def test_how_a_program_ends_stands_in_the_file(end: str, status: int, state: int) -> None:
    run(sys.executable, f"train()\n{end}", "-o", "a.h5", status=status)
    assert steps("a.h5") == [(0, 0), (1, state)]


@pytest.mark.thorough
def test_quiet_means_quiet() -> None:
    assert run(sys.executable, "train()", "-o", "a.h5", "--quiet") == "" and Path("a.h5").exists()
    assert run(sys.executable, "pass", "-o", "b.h5", "--quiet") == ""


@pytest.mark.thorough
def test_ranks_that_are_left_out_record_nothing() -> None:
    for rank in ("0", "1"):
        run(sys.executable, "train()", "-o", "a.h5", "--ranks", "1", RANK=rank, WORLD_SIZE="2")
    assert [path.name for path in Path().glob("*.h5")] == ["a.rank00001.h5"]


# PROBE_RECORD


@pytest.mark.thorough
def test_a_variable_records_a_program(hooked_python: str) -> None:
    assert run(hooked_python, "train()") == ""
    err = run(hooked_python, "train()", PROBE_RECORD="a.h5", PROBE_RECORD_OPTIONS="--steps 1 --modules 'Lin*,!x y'")
    assert err.splitlines()[-1].startswith("probe: 1 step") and steps("a.h5") == [(1, 0)]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PROBE_RECORD": "old.h5"}, "old.h5 exists"),
        ({"PROBE_RECORD": "a.h5", "PROBE_RECORD_OPTIONS": "--task all"}, "task='all'"),
        ({"PROBE_RECORD": "a.h5", "PROBE_RECORD_OPTIONS": "--what"}, "No such option '--what'"),
        ({"PROBE_RECORD": "a.h5", "PROBE_RECORD_OPTIONS": "'"}, "No closing quotation"),
        ({"PROBE_RECORD": "a.h5", "PROBE_RECORD_OPTIONS": "--model net"}, "MODULE:ATTRIBUTE"),
    ],
)
def test_what_is_wrong_is_said_and_the_program_runs(hooked_python: str, variables: dict[str, str], said: str) -> None:
    Path("old.h5").write_text("")
    err = run(hooked_python, "train()\nprint('end', file=sys.stderr)", **variables)
    assert said in err and err.endswith("end\n") and err.count("probe: nothing is recorded") == 1


def test_processes_that_train_nothing_say_nothing(hooked_python: str) -> None:
    assert run(hooked_python, "pass", PROBE_RECORD="a.h5") == ""
    done = subprocess.run(
        [hooked_python, "-c", "print(1)"], capture_output=True, text=True, env={**os.environ, PATH: "a.h5"}
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


CHILDREN = """
import multiprocessing

if __name__ == "__main__":
    {before}
    child = multiprocessing.get_context("spawn").Process(target=train, args=(3,))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["variable", "probe.run"])
def test_the_child_that_trains_is_recorded(hooked_python: str, way: str) -> None:
    words = ["-o", "a.h5"] if way == "probe.run" else []
    err = run(
        hooked_python,
        CHILDREN.format(before="os.environ['CHANGED'] = '1'"),
        *words,
        **({} if words else {PATH: "a.h5"}),
    )
    assert "probe: 3 steps" in err and len(steps("a.h5")) == 3


def test_children_of_a_program_that_is_recorded_are_not(hooked_python: str) -> None:
    err = run(hooked_python, CHILDREN.format(before="train()"), PROBE_RECORD="a.h5")
    assert err.count("recording Linear") == 1 and "nothing is recorded" not in err and len(steps("a.h5")) == 2


# The file


def test_the_file_is_written_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, own = tmp_path / "closed" / "site-packages", tmp_path / "own"
    (tmp_path / "closed").write_text("no folder: nothing can be written below it")
    monkeypatch.setattr(interpreter_start, "_folders", lambda: [closed, own])
    assert interpreter_start.remove().startswith("there is no probe-record.pth")
    assert str(own / "probe-record.pth") in interpreter_start.install() and interpreter_start.is_installed()
    assert len((own / "probe-record.pth").read_text().splitlines()) == 1
    assert interpreter_start.remove().endswith("is removed") and not interpreter_start.is_installed()
    monkeypatch.setattr(interpreter_start, "_folders", lambda: [closed])
    with pytest.raises(StoreError, match="cannot write"):
        interpreter_start.install()


def test_python_starts_with_nothing_of_probe_where_the_variable_is_not_set(hooked_python: str) -> None:
    code = "import sys; print(sorted(name for name in sys.modules if name.startswith('probe')))"
    done = subprocess.run([hooked_python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    heavy = "import sys; print(sorted({'numpy', 'h5py', 'click', 'yaml', 'json', 'logging'} & set(sys.modules)))"
    done = subprocess.run(
        [hooked_python, "-c", heavy], capture_output=True, text=True, env={**os.environ, PATH: "a.h5"}
    )
    assert done.stdout == "[]\n"


# Orders and imports


def test_an_order_reaches_children_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"task": "norms", "steps": ["0", "10-20", "every 100"], "ranks": [0, 3], "modules": ["a.*", "!b c"], "on_nonfinite": True,
               "on_loss_jump": 2.5, "config": str(Path("probe.yaml").absolute())}  # fmt: skip
    order = Order(
        Path("a b.h5").absolute(), options, ("m:x", "m:y.z"), True, True, "SIGUSR2", str(Path("on").absolute()), 3
    )
    monkeypatch.setattr(os, "environ", dict(os.environ))
    order.export()
    found = inherited()
    assert (
        found == dataclasses.replace(order, options=found.options, is_inherited=True) and dict(found.options) == options
    )
    Order.claim()
    assert PATH not in os.environ and OPTIONS not in os.environ


def test_every_option_of_start_can_be_written(tmp_path: Path) -> None:
    import inspect

    from probe.session import start

    written = {option.name for option in RECORDING} - {"models", "on_signal", "on_file", "forwards"}
    asked = {"parallel"}  # groups are asked of the framework
    assert written == set(inspect.signature(start).parameters) - {"model", "optimizer"} - asked


def test_a_framework_is_waited_for_by_what_holds_its_modules() -> None:
    for framework in FRAMEWORKS.values():
        assert framework.base.replace(":", ".").startswith(f"{framework.module}.")


def test_an_import_that_fails_is_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the loader is as it was."""
    code = """
import sys
from probe.run.imports import Imports
told = []
Imports(told.append)
for _ in range(2):
    try:
        import torch
    except ZeroDivisionError:
        assert not told
    open("torch/__init__.py", "w").write("from torch import inner")
    import importlib; importlib.invalidate_caches()
assert told == ["torch"], told
assert torch.inner and "exec_module" not in vars(torch.__loader__) and type(torch.__spec__.loader).__name__ == "SourceFileLoader"
import json, email  # others are left alone
"""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("1 / 0")
    (tmp_path / "torch" / "inner.py").write_text("")
    subprocess.run([sys.executable, "-B", "-c", code], check=True, timeout=HANGS)
