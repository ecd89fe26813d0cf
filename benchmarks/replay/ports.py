"""`python -m benchmarks.replay.ports`: replay ports to PaddlePaddle and MindSpore with what PyTorch recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import click

import probe
from benchmarks.localisation.pairs.making import framework_port
from benchmarks.localisation.pairs.pair import Pair, Planted
from benchmarks.localisation.pairs.registry import SETS
from benchmarks.localisation.tools.frameworks.planting import plant
from benchmarks.localisation.tools.frameworks.worker import run_of
from benchmarks.localisation.tools.suite import pair_of, record_ports, recording_of, sources_digest
from benchmarks.replay.__main__ import OF_MODULES, Answer, graded
from probe.answer.comparison import Comparison

_MODE = "tensor"


def recorded(pairs: list[Pair], folder: Path) -> dict[str, Path]:
    """Record the baselines, in a process of PyTorch; return them by the names of pairs."""
    digest = sources_digest()
    record_ports([replace(pair, b=pair.a) for pair in pairs], [_MODE], folder, digest)
    return {pair.name: recording_of(pair.a, _MODE, folder, digest) for pair in pairs}


def answer(pair: Pair, recording: Path) -> Answer:
    """Replay a port, and grade what is said."""
    step = 0 if pair.truth is None else pair.truth.step
    run = run_of(pair.b, recording.parent / sources_digest()[:16])
    for planted in pair.b.planted:
        if 0 < planted.step <= step:
            plant(run, planted)
    begun = time.perf_counter()
    found = probe.replay(run.model, recording, mapping=pair.mapping, step=step)
    return graded(pair, found, time.perf_counter() - begun)


def several(pair: Pair, planted: tuple[Planted, ...], folder: Path) -> Comparison:
    """Replay a port with some faults at once."""
    recording = recorded([pair], folder)[pair.name]
    run = run_of(replace(pair.b, planted=planted), folder / sources_digest()[:16])
    return probe.replay(run.model, recording, mapping=pair.mapping)


OF_THREE = {
    ("forward", "layers.0.norm1"): Planted("eps", "layers.0.norm1", 1e-4),
    ("backward", "layers.1.down"): Planted("gradient", "layers.1.down", 1e-2),
    ("forward", "layers.2.value"): Planted("scaled", "layers.2.value", 1e-3),
}
"""by the phase and the module that are to be named"""


def _small(framework: str) -> None:
    """Replay a BERT of three layers, clean and with three faults; raise ClickException unless these are named and nothing else."""
    for planted in ((), tuple(OF_THREE.values())):
        with tempfile.TemporaryDirectory() as folder:
            found = several(framework_port(framework, "port-bert"), planted, Path(folder))
        named = {(each.phase.label, each.path) for each in found.divergences}
        if (named, found.replayed.left) != (set(OF_THREE) if planted else set(), ()):
            raise click.ClickException(str(found))


def pairs_of(framework: str) -> list[Pair]:
    """Return the clean pairs, and those whose fault lies in the code of a module; what an optimizer was not given is its own."""

    def fits(pair: Pair) -> bool:
        if pair.b.framework != framework or any(each.fault == "left_out" for each in pair.b.planted):
            return False
        return pair.truth is None or bool(pair.phase in OF_MODULES and pair.truth.path)

    return list(filter(fits, SETS["ports"]))


def _work() -> None:
    """Answer what standard input asks for."""
    for name, recording in json.load(sys.stdin).items():
        print(json.dumps(asdict(answer(pair_of(name), Path(recording)))), flush=True)


@click.command()
@click.option("--worker", is_flag=True, hidden=True)
@click.option(
    "--small", type=click.Choice(["paddle", "mindspore"]), help="One port alone, clean and with three faults."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write all answers here, as JSON.")
def main(worker: bool, small: str | None, output: Path | None) -> None:
    """Replay all ports, each framework in a process of its own."""
    if worker:
        _work()
        return
    if small:
        _small(small)
        return
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for framework in ("paddle", "mindspore"):
            tasks = {name: str(path) for name, path in recorded(pairs_of(framework), Path(folder)).items()}
            command = [sys.executable, "-m", "benchmarks.replay.ports", "--worker"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                command, input=json.dumps(tasks), stdout=subprocess.PIPE, text=True, env=environment, check=True
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            found += [json.loads(line) for line in lines]
    for said in found:
        if said["grade"] not in ("exact", "aligned"):
            print(f"{said['grade']}: {said['pair']}: {said['named'][:5]} expected {said['expected']}")
    print(dict(Counter(said["grade"] for said in found)))
    if output:
        output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
