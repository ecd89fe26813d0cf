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
from collections.abc import Callable
from pathlib import Path

import numpy as np

from probe.curve_comparison import CurveComparison, curves
from tests.curve_runs import write_csv

LENGTHS = (20, 50, 100, 300, 1000)
SIZES = (1e-4, 0.003, 0.01, 0.03, 0.1, 0.3)
"""standard deviations of the difference; a loss may differ by 0.03, or by 1 %"""
CORRELATIONS = (0.0, 0.3, 0.6, 0.9, 0.97)
"""of neighbouring steps"""
ENDS = (0.05, 0.5, 2.0)
"""what the loss falls to from 5"""
FEWEST_INDEPENDENT = 5
"""steps times (1 − correlation); noise that never comes round is an offset to everybody"""
FACTORS = (2.0, 4.0, 8.0, 16.0)
"""sizes of a fault, in standard deviations of the noise"""


def noise(rng: np.random.Generator, steps: int, correlation: float) -> np.ndarray:
    """Return an autoregressive series of standard deviation 1."""
    shocks = rng.standard_normal(steps) * np.sqrt(1 - correlation**2)
    out = np.empty(steps)
    out[0] = rng.standard_normal()
    for step in range(1, steps):
        out[step] = correlation * out[step - 1] + shocks[step]
    return out


def falling(steps: int, end: float) -> np.ndarray:
    """Return a loss that falls from 5."""
    return end + (5 - end) * np.exp(-5 * np.arange(steps) / steps)


def noisy_pair(rng: np.random.Generator, index: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Return two runs that differ by noise alone, and what noise it is; every combination in turn."""
    every = [
        each
        for each in itertools.product(SIZES, CORRELATIONS, LENGTHS, ENDS)
        if each[2] * (1 - each[1]) >= FEWEST_INDEPENDENT
    ]
    size, correlation, steps, end = every[index * 37 % len(every)]
    curve = falling(steps, end)
    apart = size * noise(rng, steps, correlation)
    if index % 3 == 1:  # as large as the loss is
        apart = apart * curve / curve.mean()
    shared = 0.05 * rng.standard_normal(steps)  # from the batches, the same on both sides
    return (
        curve + shared,
        curve + shared + apart,
        f"{size}, correlation {correlation}, {steps} steps, to {end}, {index % 3 == 1}",
    )


def _from(steps: int, begins: int, value: float) -> np.ndarray:
    return np.where(np.arange(steps) >= begins, value, 0.0)


FAULTS: dict[str, Callable[[int, float], np.ndarray]] = {
    "offset": lambda steps, size: np.full(steps, size),
    "step change": lambda steps, size: _from(steps, steps * 2 // 5, size),
    "drift": lambda steps, size: size * np.linspace(0, 1, steps),
    "late drift": lambda steps, size: size * np.clip(np.linspace(-1, 1, steps), 0, None),
    "spike": lambda steps, size: np.where(np.arange(steps) == steps // 2, size, 0.0),
    "transient": lambda steps, size: size * np.exp(-20 * np.arange(steps) / steps),
}
"""what is added to B's loss, by number of steps and size"""


def verdict(folder: Path, a: np.ndarray, b: np.ndarray) -> CurveComparison:
    """Compare two losses."""
    return curves(write_csv(folder / "a.csv", loss=a), write_csv(folder / "b.csv", loss=b))


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
