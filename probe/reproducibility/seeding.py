"""`seed_all`: one seed for Python, numpy and every framework that is imported, and what determinism it leaves open."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe import origins
from probe.adapters.frameworks import FRAMEWORKS
from probe.errors import ConfigError

_SEEDS = 2**32


@dataclass(frozen=True)
class Seeding:
    """What `seed_all` did; printing it says it in words."""

    seed: int
    deterministic: bool
    done: tuple[str, ...]
    """what was set"""
    missing: tuple[str, ...]
    """what is not deterministic yet, any more, or at all, and why"""

    def __str__(self) -> str:
        head = f"seed {self.seed}{', deterministic' if self.deterministic else ''}: {', '.join(self.done)}"
        return "\n".join([head, *(f"  not deterministic: {text}" for text in self.missing)])


def seed_all(seed: int = 42, deterministic: bool = True) -> Seeding:
    """Seed Python, numpy and each framework that is imported, and ask for deterministic operations.

    Call it after the imports and before the model is made. What it did is said on stderr and kept in every recording
    of this process.

    Parameters
    ----------
    seed
        from 0 to 2**32 − 1; the same on every rank, unless you add the rank
    deterministic
        also switch every framework to deterministic operations; False leaves its switches as they are

    Raises
    ------
    ConfigError
        the seed is no such number
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < _SEEDS:
        raise ConfigError(
            f"seed={seed!r} cannot be used by every framework; expected an integer from 0 to {_SEEDS - 1}"
        )
    seed = int(seed)
    random.seed(seed)
    own = "generators that the program makes itself (numpy.random.default_rng()) have seeds of their own"
    parts = [(["random", "numpy.random"], [own]), *([_hash_seed(seed)] if deterministic else [])]
    done, missing = _all([*parts, *(module.seed(seed, deterministic) for module in _seeding())])
    np.random.seed(seed)  # behind the frameworks, of which one does it too
    seeding = Seeding(seed, deterministic, tuple(done), tuple(missing))
    origins.note(seed=seed, deterministic=deterministic, seeded=list(done), not_deterministic=list(missing))
    print(f"probe: {seeding}", file=sys.stderr)
    return seeding


def remove_dropout() -> tuple[list[str], list[str]]:
    """Set p of dropout to 0 in each framework that is imported; return what was set, and what is left."""
    return _all([module.remove_dropout() for module in _seeding()])


def _seeding() -> Iterator[Any]:
    """Yield what seeds each framework that is imported."""
    return (each.part("seeding") for each in FRAMEWORKS.values() if each.module in sys.modules)


def _all(parts: Iterable[tuple[list[str], list[str]]]) -> tuple[list[str], list[str]]:
    """Return all that was set, and all that is left."""
    done, missing = zip(*parts, strict=True) if parts else ((), ())
    return sum(done, []), sum(missing, [])


def _hash_seed(seed: int) -> tuple[list[str], list[str]]:
    """Fix the order of sets of strings in processes to come; that of this one was fixed when it began."""
    os.environ.setdefault("PYTHONHASHSEED", str(seed))
    value = os.environ["PYTHONHASHSEED"]
    if _at_start("PYTHONHASHSEED").isdigit():
        return [], []
    text = "the order of sets of strings in this process: PYTHONHASHSEED has to be set before Python starts"
    return [f"PYTHONHASHSEED={value} for processes to come"], [text]


def _at_start(name: str) -> str:
    """Return an environment variable as it was when this process began, where the system tells."""
    try:
        block = Path("/proc/self/environ").read_bytes()
    except OSError:
        return os.environ.get(name, "")
    entries = (entry.partition(b"=") for entry in block.split(b"\0"))
    return next((value.decode(errors="replace") for key, _, value in entries if key == name.encode()), "")
