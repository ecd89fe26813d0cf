"""`python -m benchmarks.replay.cost`: what the replay of a step takes, in steps of the training."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import click
import torch

import probe
from benchmarks.cost.model import SIZES, Trainee
from benchmarks.cost.pairs import ratios, spread, timed

_LEAST = 5
_WARM_UP = 2


def measured(size: str, pairs: int, folder: Path) -> dict[str, Any]:
    """Record a step of a training; then make a step, replay the recorded one, make a step, replay it …

    What is timed as a step is forward, backward and the optimizer without probe. One that is not timed comes before each, as a replay leaves
    caches cold.
    """
    trainee, recording = Trainee(SIZES[size]), folder / f"{size}.h5"
    with probe.capture(trainee.model, recording, task="tensor", steps=[0], quiet=True):
        probe.step(loss=trainee.step())
    for _ in range(_WARM_UP):
        trainee.step()
    steps, replays = [], []
    for number in range(pairs + 1):
        trainee.step()
        step = timed(trainee.step)[0]
        found: list[Any] = []
        replay = timed(lambda found=found: found.append(probe.replay(trainee.model, recording)))[0]
        assert found[0].verdict == "aligned" and not found[0].replayed.left
        if number:  # the first imports what it needs
            steps.append(step)
            replays.append(replay)
    return {"size": size, "pairs": pairs, "ratio": ratios(steps, replays), "step": spread(steps), "replay": spread(replays),
            "recording": recording.stat().st_size, "threads": torch.get_num_threads(), "cores": os.cpu_count(),
            "torch": torch.__version__, "machine": platform.machine()}  # fmt: skip


@click.command()
@click.option("--size", "sizes", multiple=True, type=click.Choice(list(SIZES)), help="Only this; may be repeated.")
@click.option("--pairs", type=click.IntRange(min=_LEAST), default=7, show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of PyTorch [default: as many as it takes].")
@click.option("--folder", type=click.Path(path_type=Path), help="Write recordings here [default: temporary files].")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the figures here, as JSON.")
def main(
    sizes: tuple[str, ...], pairs: int, threads: int | None, folder: Path | None, output: Path | None
) -> None:  # fmt: skip
    """Time steps and replays in turn, in one process, and print their ratios; add them to what the file holds."""
    if threads:
        torch.set_num_threads(threads)
    found = json.loads(output.read_text(encoding="utf-8")) if output and output.exists() else []
    for size in sizes or ("128", "512"):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            found.append(measured(size, pairs, Path(scratch)))
        ratio, each = found[-1]["ratio"], found[-1]
        print(
            f"hidden {SIZES[size].hidden}: {ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f}) times the step, "
            f"step {each['step']['median']:.3f} s, replay {each['replay']['median']:.3f} s, {pairs} pairs",
            flush=True,
        )
        if output:
            output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
