"""The {which} test set: record its pairs, judge them with the probe that is imported, write the page.

    python -m benchmarks.{which}                                   # record what is missing, judge: build/{which}/new.json
    PYTHONPATH=../old:$PWD python -P -m benchmarks.{which} --judge --name old    # the same recordings, another probe
    python -m benchmarks.{which} --page new old                    # docs/evidence/{which}.md from these answers
    python -m benchmarks.{which} --confirm [--again]               # that the truth is as written, without probe
    python -m benchmarks.{which} --list                            # models, faults, clean pairs

A folder behind `--record` or `--judge` is taken instead of build/{which}; `--only FILE ...` takes some files of
benchmarks/{which}/models. Only pairs that `--confirm` has confirmed count.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

from . import catalogue
from .confirm import confirm_file, confirmed
from .judge import TASKS, judge_all, record_file


def main(which: str) -> None:
    """Read the options and do it."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{which}",
        description=(__doc__ or "").format(which=which),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Path("build") / which
    parser.add_argument("--record", type=Path, metavar="FOLDER", nargs="?", const=usual)
    parser.add_argument("--judge", type=Path, metavar="FOLDER", nargs="?", const=usual)
    parser.add_argument("--name", default="new", help="name of the answers: FOLDER/NAME.json")
    parser.add_argument("--page", nargs="+", metavar="NAME", help="write the page from these answers, at most two")
    parser.add_argument("--confirm", action="store_true")
    parser.add_argument("--again", action="store_true", help="also what is confirmed already")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", nargs="*", metavar="FILE", default=catalogue.files(which))
    parser.add_argument("--one", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    files = tuple(options.only)
    if options.one:
        if options.confirm:
            confirm_file(which, options.one, options.again)
        else:
            record_file(which, options.record, options.one)
        return
    if not (options.confirm or options.record or options.judge or options.page or options.list):
        options.record = options.judge = usual
    if options.confirm:
        _each(which, files, "--confirm", *["--again"] * options.again)
        known = confirmed(which, sure=False)
        wrong = sorted(name for name, answer in known.items() if not answer["agrees"])
        print(f"{len(known)} pairs, {len(known) - len(wrong)} as their truth says", *wrong, sep="\n  ")
    if options.record:
        _each(which, files, "--record", str(options.record.resolve()))
    if options.judge:
        judge_all(which, options.judge.resolve(), options.name, files)
    if options.page:
        from .page import write

        write(which, [(options.judge or usual) / f"{name}.json" for name in options.page[:2]])
    if options.list:
        _list(which, files)


def _each(which: str, files: tuple[str, ...], *words: str) -> None:
    """Do something with each file of models, in a process of its own."""
    for file in files:
        command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{which}", "--one", file, *words]
        if subprocess.run(command, check=False).returncode:
            print(f"{file}: not done in full", file=sys.stderr)


def _list(which: str, files: tuple[str, ...]) -> None:
    """Print what the set holds; only confirmed pairs count."""
    sure = confirmed(which)
    pairs = [pair for pair in catalogue.pairs(which, files) if pair.name in sure]
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
    hard = sorted(near | {p.name for p in faults if p.fault.way == "hard"})
    print("hard (by design, or less than 10 times the noise):", *hard)
    digest, home = hashlib.sha256(), catalogue.folder(which)
    for path in sorted(p for p in home.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    print("recorded as", *TASKS, "sha256", digest.hexdigest())
