"""The five acceptance points of PaddlePaddle's paper reproduction guide: ten ``.npy`` files become five logs.

python acceptance.py log_reprod --train-threshold 0.0015
"""

from __future__ import annotations

from pathlib import Path

import click

from probe.compat.reprod_log import ReprodDiffHelper
from probe.errors import ProbeError

POINTS = {"forward": 1, "metric": 1, "loss": 1, "bp_align": 2, "train_align": 1}
"""how many arrays each needs: one loss says nothing of the backward pass"""
REFERENCES = ("torch", "benchmark")
"""how the guide calls the files of the reference"""


def accepts(folder: Path, point: str, threshold: float) -> bool:
    """Write the log of one point; return whether it passes."""
    helper = ReprodDiffHelper()
    paths = [folder / f"{point}_{name}.npy" for name in REFERENCES]
    reference = helper.load_info(next((path for path in paths if path.exists()), paths[0]))
    port = helper.load_info(folder / f"{point}_paddle.npy")
    helper.compare_info(reference, port)  # unequal names are an error
    passed = helper.report(diff_threshold=threshold, path=folder / f"{point}_diff.log")
    if len(port) < POINTS[point]:
        click.echo(f"{point}: {len(port)} arrays, expected {POINTS[point]} or more")
    return passed and len(port) >= POINTS[point]


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--threshold", default=1e-6, show_default=True, help="Largest mean of absolute differences.")
@click.option("--train-threshold", type=float, help="The same for train_align.  [default: --threshold]")
def main(folder: Path, threshold: float, train_threshold: float | None) -> None:
    """Judge all points, and exit with 1 if one does not pass."""
    passed = {}
    for point in POINTS:
        most = train_threshold if point == "train_align" and train_threshold is not None else threshold
        try:
            passed[point] = accepts(folder, point, most)
        except ProbeError as error:
            click.echo(f"{point}: {error}")
            passed[point] = False
    failed = [point for point in POINTS if not passed[point]]
    click.echo(f"not accepted: {', '.join(failed)}" if failed else "accepted")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
