"""Confirm the truth of the ports without probe: `python -m benchmarks.localisation.tools.frameworks.brute_force FOLDER`.

As `benchmarks.localisation.tools.brute_force`: the port runs with its fault and without, in one framework, and every call of a module
is made again in both with the same arguments; what differs bit by bit is where the fault is. FOLDER gets the weights.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.localisation.pairs.pair import Setup
from benchmarks.localisation.tools.frameworks.training import PACKED_MAPPING, PortRun
from benchmarks.localisation.tools.frameworks.worker import run_of

Place = tuple[str, str]
"""path and phase"""
MOST = 0.6
"""the share of all modules from which on a fault concerns the whole"""
Arrays = dict[str, np.ndarray]


def places(setup: Setup, folder: Path) -> tuple[int, list[Place]]:
    """Return the first step in which a port's fault is real, and the places in the order of cause."""
    right, faulty = (run_of(each, folder) for each in (replace(setup, planted=()), setup))
    for index in range(setup.steps):
        found = list(_of_step(right, faulty, index))
        if found:
            return index, found
    return -1, []


def _of_step(right: PortRun, faulty: PortRun, index: int) -> Iterator[Place]:
    start = _differing(right.state(), faulty.state())
    yield from _modules(right, start, "init")
    calls = _watched(right)
    a = right.step(index)
    right.captured = None
    b = faulty.step(index)
    after = right.state(), faulty.state()
    found = list(_of_calls(right, faulty, calls, after))
    yield from found
    if start or found:
        return
    if a != b:
        yield "", "loss"
        return
    trained = set(right.trained())
    wrong = _differing(*after)
    yield from _modules(right, [name for name in wrong if name not in trained], "forward")
    if all(name in trained for name in wrong):
        gone = sorted(trained - set(faulty.trained()))
        yield from _modules(right, gone or wrong or _differing(right.moments(), faulty.moments()), _phase(gone, faulty))


def _phase(gone: list[str], faulty: PortRun) -> str:
    return "gradient" if gone and (not faulty.left_out or faulty.forward_name == "construct") else "update"


def _watched(run: PortRun) -> list[tuple[str, tuple[Any, ...]]]:
    """Return a list that gets every call of the next step when it returns: children before their callers."""
    run.captured = []
    if run.is_watched:
        return run.captured
    run.is_watched = True
    for path in run.paths():

        def watch(forward: Callable[..., Any], *args: Any, path: str = path) -> Any:
            found = forward(*args)
            if run.captured is not None and not getattr(forward, "keywords", None):
                run.captured.append((path, args))  # a call by keywords is not made again: its callers and children are
            return found

        run.around(path, watch)
    return run.captured


def _of_calls(
    right: PortRun, faulty: PortRun, calls: list[tuple[str, tuple[Any, ...]]], after: tuple[Arrays, Arrays]
) -> Iterator[Place]:
    """Make every call again in both: where do outputs, what is passed back, or parameter gradients differ?"""
    faulty.put(right.state())
    found: dict[str, list[str]] = {"forward": [], "backward": [], "gradient": []}
    for path, args in calls:
        results = [run.pulled_back(run.at(path), args) for run in (right, faulty)]
        for phase, x, y in zip(found, *results, strict=True):
            if not _same(x, y):
                if not any(other.startswith(f"{path}.") for paths in found.values() for other in paths):
                    found[phase].append(path)
                break
    right.put(after[0])
    faulty.put(after[1])
    for phase, paths in found.items():
        yield from ((path, phase) for path in dict.fromkeys(paths))


def _same(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    return all((x is None) == (y is None) and (x is None or np.array_equal(x, y)) for x, y in zip(a, b, strict=True))


def _differing(a: Arrays, b: Arrays) -> list[str]:
    return [name for name in a if name not in b or not np.array_equal(a[name], b[name])]


def _modules(run: PortRun, names: list[str], phase: str) -> Iterator[Place]:
    paths = _outermost(name.rpartition(".")[0] for name in names)
    everywhere = _outermost(name.rpartition(".")[0] for name in run.state())
    if len(paths) > max(2, MOST * len(everywhere)):
        paths = {"": None}
    yield from ((path, phase) for path in paths)


def _outermost(paths: Iterable[str]) -> dict[str, None]:
    """Return the paths that lie below no other one: PaddlePaddle's LSTM has its weights twice, in its cells too."""
    found = dict.fromkeys(paths)
    return {path: None for path in found if not any(path.startswith(f"{other}.") for other in found if other)}


def _on_side_a(path: str) -> str:
    back = {new: old for old, new in PACKED_MAPPING["Bert"].items()}
    path = path.replace(".dense", ".linear")  # as MindSpore's encoder layer calls them
    first, *rest = path.split(".")
    if first != "blocks":
        return back.get(path, path)
    inner = ".".join(rest[1:])
    inside = {new: old for old, new in PACKED_MAPPING["BertLayer"].items()}
    return ".".join(["layers", rest[0], inside.get(inner, inner)])


def main(framework: str, folder: Path) -> None:
    """Print every faulty port of a framework, what brute force finds, and whether it is what the table says."""
    from benchmarks.localisation.pairs.registry import PARTS

    wrong = 0
    for pair in PARTS["ports"]:
        if pair.truth is None or pair.b.framework != framework or not pair.b.planted or "/own" in pair.name:
            continue  # what is a framework's own fault is there with and without a planted one
        step, found = places(pair.b, folder)
        phase = found[0][1] if found else ""
        paths = {
            _on_side_a(path) if pair.b.architecture in ("port-packed", "port-encoder") else path
            for path, each in found
            if each == phase
        }
        right = step == pair.truth.step and phase in pair.truth.phases and any(map(pair.truth.names, paths))
        wrong += not right
        print("yes" if right else "NO ", pair.name, "·", f"step {step}", found[:3], flush=True)
    raise SystemExit(1 if wrong else 0)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--framework", default="", hidden=True)
def command(folder: Path, framework: str) -> None:
    """Check all ports, each framework in a process of its own."""
    warnings.simplefilter("ignore")
    if framework:
        main(framework, folder)
    prepare = [sys.executable, "-m", "benchmarks.localisation.tools.frameworks.worker", "torch", str(folder)]
    subprocess.run(prepare, input=json.dumps([]), text=True, check=True)
    own = [sys.executable, "-m", "benchmarks.localisation.tools.frameworks.brute_force", str(folder), "--framework"]
    raise SystemExit(max(subprocess.run([*own, each]).returncode for each in ("paddle", "mindspore")))


if __name__ == "__main__":
    command()
