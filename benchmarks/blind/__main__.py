"""The blind test set: record its pairs, judge them with the probe that is imported, write the page.

    python -m benchmarks.blind                                   # record what is missing, judge: build/blind/new.json
    PYTHONPATH=../old:$PWD python -P -m benchmarks.blind --judge-only --name old    # the same recordings, another probe
    python -m benchmarks.blind --page new old                    # docs/evidence/blind.md from these answers

Only pairs that `python -m benchmarks.blind.confirm` has confirmed count.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    """Read the options and do it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.blind", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("build/blind"), help="recordings and answers")
    parser.add_argument("--name", default="new", help="name of the answers: FOLDER/NAME.json")
    parser.add_argument("--judge-only", action="store_true", help="record nothing")
    parser.add_argument("--record", metavar="MODEL", help="only record this model")
    parser.add_argument("--page", nargs="+", metavar="NAME", help="only write the page from these answers, at most two")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.page:
        from .page import write

        write([folder / f"{name}.json" for name in options.page[:2]])
        return
    if options.record:
        from .record import record

        record(folder, options.record)
        return
    from .judge import judge_all
    from .record import record_all

    if not options.judge_only:
        record_all(folder)
    judge_all(folder, folder / f"{options.name}.json")


main()
