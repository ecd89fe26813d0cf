"""A script or module that `python -m probe.run` runs behaves as under plain python: names, arguments, paths, exceptions, exit status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.limits import HANGS

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
LOOKS = """
import sys, os
print(__name__, __file__, __spec__, __package__, __doc__, sorted(globals()))
print(type(__loader__).__name__, __builtins__, __annotations__, sys.modules["__main__"].__dict__ is globals())
print(sys.argv, sys.path[0], len(sys.path), os.getcwd(), sys.excepthook is sys.__excepthook__)
"""
SCRIPTS = {
    "looks": LOOKS,
    "has a docstring": '"""What it is."""\nprint(__doc__)',
    "imports beside it": "import beside; print(beside.VALUE)",
    "raises": "def f():\n    raise ValueError('no')\nf()",
    "raises from": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "raises at import": "import broken",
    "does not compile": "x = 1\ny = = 2\n",
    "exits with a number": "import sys; print('so far'); sys.exit(7)",
    "exits with a text": "import sys; sys.exit('enough')",
    "exits with nothing": "raise SystemExit",
    "exits from os": "import os; os._exit(5)",
    "is interrupted": "raise KeyboardInterrupt",
    "has a hook for exceptions": "import sys\nsys.excepthook = lambda t, e, tb: print('mine', e, tb.tb_frame.f_code.co_name, tb.tb_next)\nraise OSError('x')",
    "has a hook that fails": "import sys\ndef hook(*a):\n    raise RuntimeError('worse')\nsys.excepthook = hook\nraise OSError('x')",
    "does something at exit": "import atexit, sys\natexit.register(lambda: print('end', getattr(sys, 'last_value', None)))\nraise ValueError",
    "has a thread": "import threading\nthreading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()\nprint('main')",
    "warns": "import warnings; warnings.warn('careful')",
    "is typed": "x: int = 3\nprint(__annotations__)",
    "has no future": "def f(x: undefined): pass\n",
    "pickles": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__ is A, A.__module__)",
    "reads itself": "import inspect, sys\ndef f(): pass\nprint(inspect.getsource(f), inspect.getmodule(f) is sys.modules['__main__'])",
    "spawns": """
import multiprocessing, sys
VALUE = [1]
class Job:
    def __call__(self, x):
        return x + len(VALUE), __name__, sys.argv, sys.path[0]
if __name__ == "__main__":
    VALUE.append(2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(Job(), [1, 2]))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(Job(), [1, 2]))
""",
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text("VALUE = 'beside'")
    (tmp_path / "scripts" / "broken.py").write_text("import sys\ndef g():\n    raise LookupError('broken')\ng()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PROBE_QUIET", "1")
    return tmp_path


def run(*words: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=HANGS)
    out, err = (re.sub(r" at 0x\w+", "", text) for text in (done.stdout, done.stderr))
    return done.returncode, out, err


def under_probe(*words: str) -> tuple[int, str, str]:
    return run("-m", "probe.run", "-o", "a.h5", *words)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_behaves_as_under_python(name: str, folder: Path) -> None:
    (folder / "scripts" / "it.py").write_text(SCRIPTS[name])
    plain = run("scripts/it.py", "--steps", "3", "-o", "x", "-m", "y")
    status, out, err = under_probe("scripts/it.py", "--steps", "3", "-o", "x", "-m", "y")
    assert (status, out, err) == plain and (name != "is interrupted" or status == -signal.SIGINT)
    assert not (folder / "a.h5").exists()


@pytest.mark.parametrize("form", ["absolute", "link", "folder", "archive", "compiled", "safe path"])
def test_so_does_every_form_of_a_script(form: str, folder: Path) -> None:
    script = folder / "scripts" / "it.py"
    script.write_text(LOOKS.replace(", __spec__", "") + "def f(): 1 / 0\nf()")
    words = {"absolute": [str(script)], "safe path": ["scripts/it.py"]}.get(form, ["other/it"])
    (folder / "other").mkdir()
    if form == "link":
        (folder / "other" / "it").symlink_to(script)
    elif form == "folder":
        (folder / "other" / "it").mkdir()
        script.rename(folder / "other" / "it" / "__main__.py")
    elif form == "archive":
        with zipfile.ZipFile(folder / "other" / "it", "w") as archive:
            archive.write(script, "__main__.py")
    elif form == "compiled":
        subprocess.run(
            [sys.executable, "-c", "import py_compile as p; p.compile('scripts/it.py', 'other/it')"], check=True
        )
    flags = ["-P"] if form == "safe path" else []
    plain = run(*flags, *words, "1")
    status, out, err = run(*flags, "-m", "probe.run", "-o", "a.h5", *words, "1")
    if form in ("folder", "archive"):  # python runs these by a module of its own, which stands in the traceback
        err, plain = err.splitlines()[-1], (*plain[:2], plain[2].splitlines()[-1])
    assert (status, out, err) == plain and "ZeroDivisionError" in err


@pytest.mark.parametrize(
    "name", ["package.train", "package", "alone", "nowhere", "package.nowhere", "alone.nowhere", "broken"]
)
def test_a_module_behaves_as_under_python(name: str, folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("import sys; print('package', sys.argv)")
    (folder / "package" / "train.py").write_text("from . import other" + LOOKS)
    (folder / "package" / "__main__.py").write_text(LOOKS)
    (folder / "package" / "other.py").write_text("")
    (folder / "alone.py").write_text(LOOKS)
    (folder / "broken.py").write_text("import missing_module_of_mine")
    plain = run("-m", name, "--steps", "3")
    found = under_probe("-m", name, "--steps", "3")
    assert found[:2] == plain[:2]
    assert found[2].splitlines()[-1:] == plain[2].splitlines()[-1:] or "nowhere" in name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py"], "Name the recording"),
        (["-o", "a.h5"], "which program?"),
        (["-o", "a.h5", "nowhere.py"], "cannot run nowhere.py"),
        (["-o", "a.h5", "scripts"], "no __main__.py"),
        (["-o", "nowhere/a.h5", "scripts/beside.py"], "the folder"),
        (["-o", "old.h5", "scripts/beside.py"], "old.h5 exists; give another name, or replace it: --overwrite or"),
        (["-o", "a.h5", "--steps", "some", "scripts/beside.py"], "is no step"),
        (["-o", "a.h5", "--task", "all", "scripts/beside.py"], "task='all'"),
        (["-o", "a.h5", "--ranks", "first", "scripts/beside.py"], "expected numbers"),
        (["-o", "a.h5", "--model", "net", "scripts/beside.py"], "MODULE:ATTRIBUTE"),
        (["-o", "a.h5", "--nothing", "scripts/beside.py"], "No such option"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_script_runs(words: list[str], said: str, folder: Path) -> None:
    (folder / "old.h5").write_text("")
    (folder / "scripts" / "beside.py").write_text("print('ran')")
    status, out, err = run("-m", "probe.run", *words)
    assert status == 3 and said in err and "Traceback" not in err and not out


def test_nothing_that_a_script_may_set_up_first_is_imported_before_it(folder: Path) -> None:
    """How many threads numpy computes with is decided when it is imported."""
    (folder / "scripts" / "it.py").write_text(
        "import sys; print(sorted({'numpy', 'torch', 'h5py', 'rich'} & set(sys.modules)))"
    )
    assert under_probe("--steps", "0-3", "scripts/it.py")[1] == "[]\n"


def test_a_program_without_a_framework_is_told_so(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "probe.run", "-o", "a.h5", "scripts/beside.py"],
        capture_output=True, text=True, env={**os.environ, "PROBE_QUIET": "0"},
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr.startswith("probe: nothing was recorded: the program imported none of")
