"""The sealed test set.

    python -m benchmarks.sealed --record FOLDER            # every side once with values, once with statistics
    python -m benchmarks.sealed --judge FOLDER             # with the probe that is imported; FOLDER/answers.json
    python -m benchmarks.sealed --judge FOLDER --name old  # the same recordings, another checkout's engine
    python -m benchmarks.sealed --confirm [--again]        # that the truth is as written, without probe
    python -m benchmarks.sealed --list                     # models, faults, clean pairs

`--only FILE ...` takes some files of benchmarks/sealed/models.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter
from pathlib import Path

from . import catalogue


def seal() -> str:
    """One SHA-256 over the sorted files of this folder: names and contents."""
    digest, home = hashlib.sha256(), Path(__file__).parent
    for path in sorted(p for p in home.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def listed(files: tuple[str, ...]) -> None:
    """Print what the set holds; only confirmed pairs count."""
    from .confirm import confirmed

    sure = confirmed()
    pairs = [pair for pair in catalogue.pairs(files) if pair.name in sure]
    faults = [pair for pair in pairs if pair.fault]
    print(f"{len({p.model.name for p in pairs})} models, {len(faults)} faults, {len(pairs) - len(faults)} clean pairs")
    print(
        f"of ports: {sum(bool(p.model.port) for p in faults)} faults, "
        f"{sum(bool(p.model.port) for p in pairs if not p.fault)} clean pairs"
    )
    for title, counts in (
        ("phase", Counter(p.fault.phases[0] for p in faults)),
        ("kind", Counter(p.fault.way for p in faults)),
        ("step", Counter(p.fault.step for p in faults)),
        ("dtypes of clean pairs", Counter(f"{p.a.dtype} {p.b.dtype}" for p in pairs if not p.fault)),
        ("dtype of faults", Counter(p.a.dtype for p in faults)),
    ):
        print(f"by {title}:", ", ".join(f"{name} {number}" for name, number in counts.most_common()))
    near = {p.name for p in faults if sure[p.name]["size"] < 10 * sure[p.name]["noise"]}
    print(
        "hard (by design, or less than 10 times the noise):",
        *sorted(near | {p.name for p in faults if p.fault.way == "hard"}),
    )
    print("sha256", seal())


def main() -> None:
    """Read the options and do it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sealed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    parser.add_argument("--judge", type=Path, metavar="FOLDER")
    parser.add_argument("--name", default="answers", help="name of the answers: FOLDER/NAME.json")
    parser.add_argument("--confirm", action="store_true")
    parser.add_argument("--again", action="store_true", help="also what is confirmed already")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", nargs="*", metavar="FILE", default=catalogue.FILES)
    parser.add_argument("--confirm-one", help=argparse.SUPPRESS)
    parser.add_argument("--record-one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    files = tuple(options.only)
    if options.confirm or options.confirm_one:
        from .confirm import confirm_all, confirm_file

        if options.confirm:
            confirm_all(files, options.again)
        else:
            confirm_file(options.confirm_one, options.again)
    if options.record or options.record_one:
        from .record import record_all, record_file

        if options.record:
            record_all(options.record.resolve(), files)
        else:
            record_file(Path(options.record_one[1]), options.record_one[0])
    if options.judge:
        from .judge import judge_all

        judge_all(options.judge.resolve(), options.name, files)
    if options.list:
        listed(files)


main()
