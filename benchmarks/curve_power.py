"""How often `probe.curves` calls two noisy runs wrong, and which faults it finds in the noise.

Curves are made up: a loss that falls, and noise of several sizes and correlations on both runs. No fault: the verdict
must never be `DIVERGED`. A fault: how large it has to be, relative to the noise, to be found.

    python -m benchmarks.curve_power --pairs 200
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from tests.curves.curve_runs import FAULTS, falling, noise, noisy_pair, verdict

FACTORS = (2.0, 4.0, 8.0, 16.0)
"""sizes of a fault, in standard deviations of the noise"""


def power(folder: Path, size: float, repeats: int) -> dict[tuple[str, float, float], int]:
    """Return how many of ``repeats`` pairs are `DIVERGED`, by fault, correlation of the noise and factor."""
    found: Counter[tuple[str, float, float]] = Counter()
    for (name, fault), correlation, factor in itertools.product(FAULTS.items(), (0.0, 0.9), FACTORS):
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            a = falling(400, 2.0) + 0.05 * rng.standard_normal(400)
            b = a + size * noise(rng, 400, correlation) + fault(400, factor * size)
            found[name, correlation, factor] += verdict(folder, a, b).verdict == "diverged"
    return found


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, counted = Path(name), Counter()
        for index in range(options.pairs):
            a, b, what = noisy_pair(np.random.default_rng(index), index)
            answer = verdict(folder, a, b)
            counted[answer.verdict.value] += 1
            if answer.verdict == "diverged":
                print(f"  wrong: {what}: {answer.findings[0].text}")
        print(f"{options.pairs} pairs that differ by noise: {dict(counted)}\n")
        for size in (0.01,):
            print(f"of {options.repeats} faults in noise of {size}, 400 steps, found at {FACTORS} standard deviations")
            rows = power(folder, size, options.repeats)
            for fault, correlation in itertools.product(FAULTS, (0.0, 0.9)):
                counts = "  ".join(f"{rows[fault, correlation, factor]:>3}" for factor in FACTORS)
                print(f"  {fault:<12} correlation {correlation:<4} {counts}")


if __name__ == "__main__":
    main()
