"""`python -m benchmarks.fuzz`: mutated inputs of every kind, what came of them, and what fell kept as cases."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
from pathlib import Path

import click

from benchmarks.fuzz.page import written
from benchmarks.fuzz.seeds import SEEDS
from benchmarks.fuzz.trials import TRIALS, quietly
from benchmarks.fuzz.workers import Kind, Tally, prepared, run

SHARES = {"recordings": 0.3, "mappings": 0.15, "options": 0.15, "curves": 0.15, "checkpoints": 0.15, "batches": 0.1}
"""of all inputs"""


@click.command()
@click.option("--count", default=10_000, show_default=True, help="How many inputs, of all kinds together.")
@click.option("--seed", default=0, show_default=True, help="Other inputs for another one.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(SEEDS)), help="Only these; default: all.")
@click.option("--seconds", type=float, help="End after so long, whatever was reached.")
@click.option(
    "--keep", type=click.Path(path_type=Path), default=Path("fuzz-fell"), help="Where inputs that fell are kept."
)
@click.option(
    "--cases", type=click.Path(path_type=Path), help="Try what fell once instead: KIND-CAUSE.SUFFIX.gz in this folder."
)
@click.option("--page", type=click.Path(path_type=Path), help="Add the figures to this page of Markdown.")
def main(
    count: int,
    seed: int,
    kinds: tuple[str, ...],
    seconds: float | None,
    keep: Path,
    cases: Path | None,
    page: Path | None,
) -> None:
    """Try mutated inputs; exit status 1 where one falls.

    Example: python -m benchmarks.fuzz --count 1000000 --page docs/evidence/fuzzing.md
    """
    keep.mkdir(parents=True, exist_ok=True)
    chosen = kinds or tuple(SEEDS)
    total = sum(SHARES[kind] for kind in chosen)
    tallies: dict[str, Tally] = {}
    folder = Path(tempfile.mkdtemp(prefix="probe-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        if cases is not None:
            _try_again(sorted(cases.glob("*.gz")), folder)
            return
        for name in chosen:
            share = SHARES[name] / total
            until = float("inf") if seconds is None else time.time() + seconds * share
            tallies[name] = run(prepared(name, folder / name), round(count * share), seed, keep, until)
            _say(name, tallies[name])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if page is not None:
        written(page, tallies, seed)
    raise SystemExit(int(any(tally.fell for tally in tallies.values())))


def _try_again(cases: list[Path], folder: Path) -> None:
    """Raise what a case raises that fell once."""
    kinds: dict[str, Kind] = {}
    for case in cases:
        name, suffix = case.name.partition("-")[0], case.name.removesuffix(".gz").partition(".")[2]
        kinds[name] = kind = kinds.get(name) or prepared(name, folder / name)
        path = folder / f"case.{suffix}"
        path.write_bytes(gzip.decompress(case.read_bytes()))
        click.echo(f"{case.name}: {quietly(TRIALS[name], kind.valid(kind.seeds[0]), path)}")


def _say(name: str, tally: Tally) -> None:
    per_second = tally.count / tally.seconds if tally.seconds else 0
    click.echo(f"{name}: {tally.count} inputs, {per_second:.0f} a second, {dict(tally.outcomes)}")
    for cause, count in sorted(tally.fell.items(), key=lambda item: -item[1]):
        click.echo(f"  {count:6d}  {cause}")


if __name__ == "__main__":
    main()
