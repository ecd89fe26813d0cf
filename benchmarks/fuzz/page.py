"""The figures of all runs as a page: each run adds to those before it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.fuzz.watching import FACTOR, MEMORY, SECONDS
from benchmarks.fuzz.workers import Tally

_DATA = re.compile(r"<!-- (\{.*\}) -->")
_TEXT = """# Mutated inputs, and what probe did with them

Written by `scripts/fuzz`, which adds what it tries to what stands here. Each input is one of the small valid ones of its kind
(`benchmarks/fuzz/seeds.py`), changed in one to four ways: recordings by their rows, texts, attributes, types, sizes and layouts through h5py, and
by their bytes; all others by bytes, or numbers, words and lines of text. probe reads it as a whole and compares it with the valid one.

An input falls if the process crashes; if what it leads to would be printed as "an error in probe itself"; if it takes {seconds:.0f} s of the
processor more than the valid one; if it takes more memory than {factor} times its size and {memory} MiB; if a file is opened that was not named, by
Python (audit hook) or by HDF5 (inotify on the file that links and layouts refer to); or if it is `ALIGNED` with the valid one, without anything said to be left out,
although a tensor is on one side alone, or has another size, number of NaN or Inf, or a norm that differs by more than 1 %.
What fell was looked at and its cause mended; a case of it in `tests/data/fuzz` is tried again by the tests.

| kind | inputs | refused | answered | fell | inputs a second |
|---|---:|---:|---:|---:|---:|
{rows}

Seeds: {runs}.
"""


def written(page: Path, tallies: Mapping[str, Tally], seed: int) -> None:
    """Add figures to a page, which is made where there is none."""
    data = _read(page)
    for name, tally in tallies.items():
        old = data["kinds"].get(name, {"count": 0, "refused": 0, "fell": 0, "seconds": 0.0})
        found = Counter(tally.outcomes)
        data["kinds"][name] = {
            "count": old["count"] + tally.count, "refused": old["refused"] + found["refused"],
            "fell": old["fell"] + sum(tally.fell.values()), "seconds": round(old["seconds"] + tally.seconds, 1),
        }  # fmt: skip
    data["runs"].append(f"{seed} ({', '.join(f'{name} {tally.count}' for name, tally in tallies.items())})")
    rows = [_row(name, facts) for name, facts in data["kinds"].items()]
    total = {
        key: sum(facts[key] for facts in data["kinds"].values()) for key in ("count", "refused", "fell", "seconds")
    }
    text = _TEXT.format(
        seconds=SECONDS,
        factor=FACTOR,
        memory=MEMORY >> 20,
        rows="\n".join([*rows, _row("all", total)]),
        runs="; ".join(data["runs"]),
    )
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{text}\n<!-- {json.dumps(data)} -->\n", encoding="utf-8")


def _row(name: str, facts: Mapping[str, Any]) -> str:
    answered = facts["count"] - facts["refused"] - facts["fell"]
    speed = facts["count"] / facts["seconds"] if facts["seconds"] else 0
    return f"| {name} | {facts['count']:,} | {facts['refused']:,} | {answered:,} | {facts['fell']:,} | {speed:.0f} |"


def _read(page: Path) -> dict[str, Any]:
    found = _DATA.search(page.read_text(encoding="utf-8")) if page.exists() else None
    return json.loads(found[1]) if found else {"kinds": {}, "runs": []}
