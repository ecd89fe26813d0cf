"""`python -m benchmarks.cost.compression`: what compressed values cost, and what they save, beside values as they are.

Each way runs in a process of its own, as the rows of `benchmarks.cost` do; then one more step is recorded, and all of its values are read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from benchmarks.cost.model import Size

WAYS = ("none", "lz4", "zstd")
DTYPES = ("float32", "bfloat16")
MIB = 1 << 20
_PART = 1 << 20
"""Elements that are read at once, as a comparison does."""
_ROOT = Path(__file__).parents[2]


def measure(way: str, dtype: str, size: str, layers: int, pairs: int, folder: Path) -> dict[str, Any]:
    """Time pairs of steps, and the reading of what one of them wrote."""
    from benchmarks.cost.measure import Comparison
    from benchmarks.cost.model import SIZES
    from benchmarks.cost.rows import ROWS

    recorded, of = ROWS["tensors-modules"], dataclasses.replace(SIZES[size], dtype=dtype, layers=layers)
    if way != "none":
        recorded = dataclasses.replace(recorded, options={**recorded.options, "compression": way})
    found = Comparison(recorded, of, folder).run(pairs)
    return {**found, **_read(recorded.options, of, folder)}


def _read(options: dict[str, Any], of: Size, folder: Path) -> dict[str, float]:
    import probe
    from benchmarks.cost.model import Trainee
    from probe.store.reading.reader import Reader

    trainee = Trainee(of)
    with probe.capture(trainee.model, folder / "read.h5", optimizer=trainee.optimizer, quiet=True, **options):
        trainee.step()
    with Reader(folder / "read.h5") as reader:
        tensors = set(reader.records["tensor"].tolist()) - {-1}
        began = time.process_time()
        nbytes = sum(part.nbytes for tensor in tensors for part in reader.parts(tensor, _PART))
        return {"read_mib": nbytes / MIB, "read_seconds": time.process_time() - began}


HEAD = """| values | compression | MiB a step | of those as they are | wall × | written × | CPU × | memory +MiB | bits | reading, MiB/s |
|---|---|---|---|---|---|---|---|---|---|"""


def row(dtype: str, way: str, one: dict[str, Any], plain: dict[str, Any]) -> str:
    """Return the figures of one way in Markdown, beside those of values as they are."""
    ratios = (one[name] for name in ("wall_ratio", "written_ratio", "cpu_ratio"))
    spreads = " | ".join(f"{each['median']:.2f} ({each['min']:.2f}–{each['max']:.2f})" for each in ratios)
    return (
        f"| {dtype} | {way} | {one['bytes_per_step'] / MIB:,.1f} | {one['bytes_per_step'] / plain['bytes_per_step']:.2f} | {spreads} | "
        f"{one['memory_growth'] / MIB:,.0f} | {'same' if one['losses_equal'] else 'changed'} | {one['read_mib'] / one['read_seconds']:,.0f} |"
    )


@click.command()
@click.option("--size", default="512", show_default=True, help="Of the model, as `benchmarks.cost` names them.")
@click.option("--layers", default=12, show_default=True, help="Of the model.")
@click.option("--pairs", default=6, show_default=True, help="Timed pairs of steps.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(DTYPES), help="Only this; may be repeated.")
@click.option("--folder", type=click.Path(path_type=Path), help="Write recordings here [default: temporary files].")
@click.option("--one", nargs=3, hidden=True, help="The child's part: way, dtype, file for its JSON.")
def main(
    size: str, layers: int, pairs: int, dtypes: tuple[str, ...], folder: Path | None, one: tuple[str, str, str] | None
) -> None:
    """Time plain and recorded steps in turn, with each compression, and print a table."""
    if one is not None:
        way, dtype, out = one
        assert folder is not None
        Path(out).write_text(json.dumps(measure(way, dtype, size, layers, pairs, folder)), encoding="utf-8")
        return
    click.echo(HEAD)
    steps, loads = [], [os.getloadavg()[0]]
    for dtype in dtypes or DTYPES:
        plain: dict[str, Any] = {}
        for way in WAYS:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                out = Path(scratch) / "out.json"
                options = {"size": size, "layers": layers, "pairs": pairs, "folder": scratch}
                words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
                command = [sys.executable, "-m", "benchmarks.cost.compression", *words, "--one", way, dtype, str(out)]
                environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
                subprocess.run(command, cwd=_ROOT, env=environment, check=True, stderr=subprocess.DEVNULL)
                found = json.loads(out.read_text(encoding="utf-8"))
            plain = plain or found
            click.echo(row(dtype, way, found, plain))
            steps.append(found["plain_seconds"]["median"])
            loads.append(os.getloadavg()[0])
    click.echo(
        f"\nhidden {size}, {layers} layers, {pairs} pairs, {os.cpu_count()} cores, torch {found['torch']} on {found['threads']} threads; load of the "
        f"machine {min(loads):.0f} to {max(loads):.0f}; a plain step took {min(steps) * 1e3:,.0f} to {max(steps) * 1e3:,.0f} ms (medians)"
    )


if __name__ == "__main__":
    main()
