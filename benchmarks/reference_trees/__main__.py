"""The two printed models of msprobe's documentation, run and compared: ``python -m benchmarks.reference_trees``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.reference_trees.faults import FAULTS, FURTHER
from benchmarks.reference_trees.sizes import Sizes
from benchmarks.reference_trees.trials import TASKS, VARIANTS, WAYS, Answer, Trials


def main() -> None:
    """Print a table of right pairs and one of faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where recordings are kept (default: a temporary folder)")
    parser.add_argument("--way", action="append", choices=[way.name for way in WAYS], help="compare so (default: all)")
    parser.add_argument("--task", action="append", choices=TASKS, help="record so (default: both)")
    parser.add_argument(
        "--fault", action="append", help="of these names (default: all twenty; 'further' for those beyond)"
    )
    parser.add_argument("--variant", choices=VARIANTS, default="per head", help="of MindSpeed-MM's model, for faults")
    parser.add_argument("--no-right", action="store_true", help="leave out the right pairs")
    given = parser.parse_args()
    ways = tuple(way for way in WAYS if not given.way or way.name in given.way)
    tasks = tuple(given.task or TASKS)
    chosen = FURTHER if given.fault == ["further"] else FAULTS + FURTHER if given.fault else FAULTS
    faults = tuple(each for each in chosen if not given.fault or given.fault == ["further"] or each.name in given.fault)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        trials = Trials(folder, Sizes())
        if not given.no_right:
            _show("right pairs", list(trials.right_answers(ways, tasks)))
        _show("faults", list(trials.answers(faults, ways, tasks, given.variant)))


def _show(title: str, answers: Sequence[Answer]) -> None:
    cases = list(dict.fromkeys(each.case for each in answers))
    columns = list(dict.fromkeys((each.task, each.way) for each in answers))
    by = {(each.task, each.way, each.case): each for each in answers}
    print(f"{title}: ✓ right, ✗ another place, – nothing named")
    for number, (task, way) in enumerate(columns, 1):
        of = [by[task, way, case] for case in cases]
        print(f"  {number:2} {task:10} {way:27} {sum(e.is_right for e in of)} of {len(of)} right, "
              f"{sum(e.is_wrong for e in of)} elsewhere, {sum(e.seconds for e in of) / len(of):.1f} s")  # fmt: skip
    print(f"  {'':32}" + " ".join(f"{number:2}" for number in range(1, len(columns) + 1)))
    for case in cases:
        print(f"  {case:32}" + " ".join(f"{by[*column, case].mark:>2}" for column in columns))
    for each in answers:
        if not each.is_right:
            print(f"    {each.case}, {each.task}, {each.way}: {each.verdict} {each.phase} {each.path}")


if __name__ == "__main__":
    main()
