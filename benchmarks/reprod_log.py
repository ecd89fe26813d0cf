"""`probe.compat.reprod_log` beside reprod_log 1.0.1: the same calls, and what their logs and answers are.

    python -m benchmarks.reprod_log --original VENV/bin/python [--project CHECKOUT]

VENV has reprod-log 1.0.1, PaddlePaddle, which it imports, and PyTorch. CHECKOUT is github.com/JunnYu/BERT-SST2-Prod: its five
check_step*.py run as they are, and with one import changed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

STAMP = re.compile(r"^\[\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\]", re.MULTILINE)
NAN, INF = float("nan"), float("inf")
X = np.random.default_rng(0).normal(size=(64, 48)).astype(np.float32)
Y = X + np.random.default_rng(1).normal(size=X.shape).astype(np.float32) * 1e-6
ROOT = Path(__file__).parents[1]


def some(*values: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


RIGHT: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "equal": ({"x": X}, {"x": X}, {}),
    "float32": ({"x": X}, {"x": Y}, {}),
    "all methods": ({"x": X}, {"x": Y}, {"diff_method": "all", "diff_threshold": 1e-4}),
    "two methods": ({"x": X}, {"x": Y}, {"diff_method": ["mean", "min"], "diff_threshold": 1e-4}),
    "columns first": ({"x": X.T}, {"x": Y.T}, {}),
    "float16": ({"x": X.astype("f2")}, {"x": Y.astype("f2")}, {}),
    "float64": ({"x": X.astype("f8")}, {"x": Y.astype("f8")}, {}),
    "float32 and float64": ({"x": X}, {"x": Y.astype("f8")}, {}),
    "int64": ({"x": some(1, 2, 3, dtype="i8")}, {"x": some(3, 2, 1, dtype="i8")}, {"diff_method": "all"}),
    "complex64": ({"x": X + 1j * X}, {"x": Y + 1j * X}, {}),
    "a loss of () and (1,)": ({"loss": np.float32(0.5).reshape(())}, {"loss": some(0.5)}, {}),
    "ten losses": ({f"loss_{n}": some(n / 3) for n in range(10)}, {f"loss_{n}": some(n / 3) for n in range(10)}, {}),
    "nested": ({"block": {"w": X, "b": X}, "y": X}, {"block": {"w": Y, "b": X}, "y": X}, {}),
    "far apart": ({"x": X}, {"x": -X}, {}),
    "infinite on one side": ({"x": some(1, INF)}, {"x": some(1, 2)}, {}),
    "a name on one side": ({"x": X, "y": X}, {"x": X}, {}),
}
"""cases in which the original is right"""
WRONG: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "NaN on one side": ({"x": some(1, NAN)}, {"x": some(1, 2)}, {}),
    "NaN everywhere": ({"x": some(NAN, NAN)}, {"x": some(1, 2)}, {}),
    "broadcast, a row": ({"x": np.ones((4, 3), "f4")}, {"x": np.ones((1, 3), "f4")}, {}),
    "broadcast, a scalar": ({"x": np.ones((4, 3), "f4")}, {"x": some(1)}, {}),
    "(n, 1) and (n,)": ({"x": X[:, :1]}, {"x": X[:, 0]}, {}),
    "transposed": ({"x": X}, {"x": X.T}, {}),
    "uint8 wraps around": (
        {"x": some(0, dtype="u1")},
        {"x": some(255, dtype="u1")},
        {"diff_method": "max", "diff_threshold": 1},
    ),
    "int8 wraps around": (
        {"x": some(-128, dtype="i1")},
        {"x": some(127, dtype="i1")},
        {"diff_method": "max", "diff_threshold": 1},
    ),
    "a name only in the second, nested": ({"b": {"w": X}}, {"b": {"w": X, "v": X}}, {}),
    "a method behind one that fails": ({"x": some(0, 9)}, {"x": some(0, 0)}, {"diff_method": ["max", "min"]}),
    "nothing": ({}, {}, {}),
    "written to after add": ({"x": "written"}, {"x": "written"}, {}),
    "two reports": ({"x": X}, {"x": X}, {"again": True}),
    "bool": ({"x": some(True, dtype=bool)}, {"x": some(False, dtype=bool)}, {}),
}
"""cases in which it is not"""


def reported(package: Any, case: tuple[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Write two files, compare them, and return the log and whether it passed."""
    logging.getLogger("root").handlers.clear()
    a, b, options = case[0], case[1], dict(case[2])
    again, printed = options.pop("again", False), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            for name, info in (("a", a), ("b", b)):
                logger = package.ReprodLogger()
                for key, value in info.items():
                    given = np.full(3, 1.0 + (name == "b")) if isinstance(value, str) else value
                    # reprod_log takes nested dicts in compare_info alone
                    logger.data.update({key: given}) if isinstance(given, dict) else logger.add(key, given)
                    if isinstance(value, str):
                        given[:] = 0  # as zero_grad() does
                logger.save(f"{name}.npy")
            helper = package.ReprodDiffHelper()
            helper.compare_info(helper.load_info("a.npy"), helper.load_info("b.npy"))
            helper.report(path="diff.log", **options)
            if again:
                helper.report(path="other.log", **options)
    except Exception as error:
        return {
            "log": type(error).__name__ in ("AssertionError", "ConfigError") and "refused",
            "passed": False,
            "raised": str(error),
        }
    log = STAMP.sub("", Path("diff.log").read_text(encoding="utf-8"))
    assert log == STAMP.sub("", printed.getvalue())[-len(log) :] or again
    return {"log": log, "passed": log.endswith("diff check passed\n")}


def models(package: Any) -> dict[str, Any]:
    """Return what the functions that hold two models against each other print."""
    import paddle
    import torch

    found = {}
    for name, shift in (("forward and backward", 0.0), ("a weight that is wrong", 0.1)):
        torch.manual_seed(0)
        theirs = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.Linear(6, 3))
        ours = paddle.nn.Sequential(paddle.nn.Linear(4, 6), paddle.nn.LayerNorm(6), paddle.nn.Linear(6, 3))
        with torch.no_grad():
            for p, q in zip(theirs.parameters(), ours.parameters(), strict=True):
                q.set_value((p.T if p.ndim == 2 else p).numpy() + np.float32(shift * (p.ndim == 2)))
        for model in (theirs, ours):
            model.forward = (lambda forward: lambda x: {"y": forward(x)})(model.forward)

        def loss(given: Any, out: Any) -> dict[str, Any]:
            return {"loss": (out["y"] ** 2).mean()}

        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            package.compare.compare_forward(theirs, ours, {"x": X[:8, :4]}, 1e-5)
            package.compare.compare_loss_and_backward(theirs, ours, loss, loss, {"x": X[:8, :4]}, 0.1, 3, 1e-5)
        found[f"two models: {name}"] = {"log": printed.getvalue(), "passed": printed.getvalue().endswith("passed\n")}
    return found


def worker(which: str) -> None:
    if which == "original":
        import reprod_log as package
    else:
        from probe.compat import reprod_log as package
    found = {name: reported(package, case) for name, case in {**RIGHT, **WRONG}.items()} | models(package)
    Path("found.json").write_text(json.dumps(found))


def run(python: str, folder: Path, *arguments: str) -> None:
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, *arguments], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def project(checkout: Path, python: str, folder: Path) -> None:
    """Run the five checks of the public project both ways."""
    logs: dict[str, list[str]] = {}
    for which in ("reprod_log", "probe.compat.reprod_log"):
        shutil.copytree(checkout / "pipeline", folder / which)
        for script in sorted((folder / which).glob("Step*/check_step*.py")):
            script.write_text(script.read_text().replace("from reprod_log import", f"from {which} import"))
            run(python, script.parent, script.name)
            (log,) = script.parent.glob("*_diff.log")
            logs.setdefault(script.name, []).append(STAMP.sub("", log.read_text()))
    for script, (theirs, ours) in logs.items():
        print(f"{script}: {'byte-identical' if theirs == ours else f'{theirs} | {ours}'}; {ours.splitlines()[-1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", required=True, help="Python of an environment with reprod-log 1.0.1")
    parser.add_argument("--project", type=Path, help="checkout of BERT-SST2-Prod")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = {}
        for which, python in (("original", given.original), ("ours", sys.executable)):
            folder = Path(place, which)
            folder.mkdir()
            run(python, folder, "-c", f"from benchmarks.reprod_log import worker; worker({which!r})")
            found[which] = json.loads((folder / "found.json").read_text())
        same = {name: theirs["log"] == found["ours"][name]["log"] for name, theirs in found["original"].items()}
        right = [name for name in same if name not in WRONG]
        print(
            f"right in the original: {sum(same[name] for name in right)} of {len(right)} logs byte-identical but for the time"
        )
        print(
            "".join(
                f"  other: {name}\n{found['original'][name]}\n{found['ours'][name]}\n"
                for name in right
                if not same[name]
            ),
            end="",
        )
        for name in WRONG:
            theirs, ours = found["original"][name], found["ours"][name]
            print(
                f"{name}\n  reprod_log: {theirs.get('raised') or theirs['log']!r}\n  here:       {ours.get('raised') or ours['log']!r}"
            )
        if given.project:
            project(given.project, given.original, Path(place))


if __name__ == "__main__":
    main()
