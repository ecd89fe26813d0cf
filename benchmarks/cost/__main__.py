"""`python -m benchmarks.cost`: what recording costs beside plain training, in time, bytes and memory."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.cost.model import SIZES
from benchmarks.cost.profile import as_markdown
from benchmarks.cost.rows import ROWS
from benchmarks.cost.table import cost_table, passes_table, trust

ROOT = Path(__file__).parents[2]
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PAIRS = {"512": 10, "128": 40, "tiny": 2}
"""Timed pairs of steps, by size: short steps vary more."""
PROFILED = ("statistics-modules", "statistics")
STEPS = {"512": 8, "128": 80, "tiny": 20}
"""Steps that are profiled, by size."""
WIDTH = 180
"""Columns of the table where it does not go to a terminal."""


@click.command()
@click.option("--row", "rows", multiple=True, type=click.Choice([*ROWS, "passes"]), help="Only this; may be repeated.")
@click.option("--size", "sizes", multiple=True, type=click.Choice(list(SIZES)), help="Only this; may be repeated.")
@click.option("--pairs", type=click.IntRange(min=2), help="Timed pairs of steps [default: 10 at 512, 40 at 128].")
@click.option("--quick", is_flag=True, help="A tiny model, few pairs: shows that it runs, not what it costs.")
@click.option("--peers", is_flag=True, help="mindstudio-probe beside probe.")
@click.option("--peers-python", type=click.Path(path_type=Path), default=PEERS_PYTHON, help="A Python that has it.")
@click.option("--folder", type=click.Path(path_type=Path), help="Write recordings here [default: temporary files].")
@click.option("--profile", "is_profile", is_flag=True, help="Where the time of probe goes, as a table in Markdown.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here; others there are kept.")
def main(
    rows: tuple[str, ...], sizes: tuple[str, ...], pairs: int | None, quick: bool, peers: bool, peers_python: Path,
    folder: Path | None, is_profile: bool, out: Path | None,
) -> None:  # fmt: skip
    """Time plain and recorded training steps in turn, and print what recording costs.

    Example: python -m benchmarks.cost --size 512 --row statistics --json build/bench.json
    """
    sizes = sizes or (("tiny",) if quick else ("512", "128"))
    if is_profile:
        click.echo(_profiles(rows or PROFILED, sizes, pairs, folder))
        return
    chosen = [row for row in ROWS if row in rows or (not rows and (peers or ROWS[row].tool != "msprobe"))]
    results = _earlier(out)
    for size in sizes:
        for row in chosen:
            python = str(peers_python) if ROWS[row].tool == "msprobe" else sys.executable
            found = _child(python, "benchmarks.cost.measure", [row, size, str(pairs or PAIRS[size])], folder)
            results["rows"] = [r for r in results["rows"] if (r["row"], r["size"]) != (row, size)] + [found]
    if not rows or "passes" in rows:
        results["passes"] = _child(
            sys.executable, "benchmarks.cost.passes", ["2", "64"] if quick else ["15", "1"], None
        )
    results["machine"] = _machine()
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    _print(results)


def _profiles(rows: tuple[str, ...], sizes: tuple[str, ...], steps: int | None, folder: Path | None) -> str:
    found = [
        _child(sys.executable, "benchmarks.cost.profile", [row, size, str(steps or STEPS[size])], folder)
        for size in sizes
        for row in rows
    ]
    return as_markdown(found)


def _earlier(out: Path | None) -> dict[str, Any]:
    if out is not None and out.exists():
        return json.loads(out.read_text(encoding="utf-8"))
    return {"machine": {}, "rows": [], "passes": []}


def _child(python: str, module: str, arguments: list[str], folder: Path | None) -> Any:
    """Run a module in a process of its own, in an empty folder; return the JSON that it writes."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch) / "out.json"
        places = [str(out)] if module.endswith("passes") else [scratch, str(out)]
        command = [python, "-m", module, *arguments, *places]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"{' '.join(command[1:])} failed:\n{done.stderr[-2000:]}")
        return json.loads(out.read_text(encoding="utf-8"))


def _machine() -> dict[str, object]:
    names = [line for line in _cpuinfo() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _print(results: dict[str, Any]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    machine = results["machine"]
    versions = sorted({f"torch {row['torch']}, {row['threads']} threads" for row in results["rows"]})
    console.print(f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}; {'; '.join(versions)}")
    order = list(ROWS)
    for size in SIZES:
        of_size = sorted((r for r in results["rows"] if r["size"] == size), key=lambda r: order.index(r["row"]))
        if of_size:
            console.print(cost_table(size, of_size))
            console.print(trust(of_size))
    if results["passes"]:
        console.print(passes_table(results["passes"]))


if __name__ == "__main__":
    main()
