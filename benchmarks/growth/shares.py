"""Where the time of comparing values goes: `python -m benchmarks.growth.shares A B` compares and prints CPU seconds in JSON."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import xxhash

import probe
from probe.store.reading import streams
from probe.store.reading.reader import Reader
from probe.verdict.distance import measure, values

PARTS = {
    "reading": (streams, "_fill"),
    "adding up": (values, "error_of"),
    "opening datasets": (Reader, "_dataset"),
}
"""what counts as what; none calls another"""
HASHING = "hashing"
ALL = "comparing values"
"""all of these, and Python between them"""


def shares(a: str, b: str) -> dict[str, float]:
    """Return CPU seconds by what they were spent on, those of the whole comparison as ``all``."""
    spent: dict[str, float] = dict.fromkeys((*PARTS, HASHING, ALL), 0.0)

    def timed(function: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **options)
            finally:
                spent[what] += time.thread_time() - began

        return call

    plain = xxhash.xxh3_128

    class Digest:
        """The hash, with its time."""

        def __init__(self) -> None:
            digest = plain()
            self.update, self.intdigest = timed(digest.update, HASHING), digest.intdigest

    for what, (owner, name) in PARTS.items():
        setattr(owner, name, timed(getattr(owner, name), what))
    measure.from_values = timed(measure.from_values, ALL)
    xxhash.xxh3_128 = Digest  # type: ignore[misc]
    began = time.thread_time()
    probe.compare(a, b)
    return {**spent, "all": time.thread_time() - began}


if __name__ == "__main__":
    print(json.dumps(shares(*sys.argv[1:])))
