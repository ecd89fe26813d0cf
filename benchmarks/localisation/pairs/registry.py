"""All pairs: the sets in which they were written, and the parts that can be chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.localisation.pairs.making import pair_of
from benchmarks.localisation.pairs.pair import Pair

_FOLDER = Path(__file__).with_name("sets")
_NAMES = (
    "tuned",  # rules were tuned on it from the beginning
    "ports",  # PyTorch against PaddlePaddle and MindSpore; tuned on as well
    "once-held-out",  # held out until it had been scored once; tuned on since
    "held-out-1",
    "held-out-2",
    "held-out-3",
    "held-out-4",
    "held-out-5",
)


def _read(name: str) -> dict[str, tuple[Pair, ...]]:
    """Return the pairs of one set by section, in the order in which they were written."""
    sections: dict[str, tuple[Pair, ...]] = {}
    section = ""
    for line in (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            pair = replace(pair_of(line, section), set=name)
            sections[section] = (*sections.get(section, ()), pair)
    return sections


SECTIONS: dict[str, dict[str, tuple[Pair, ...]]] = {name: _read(name) for name in _NAMES}
"""pairs by set, and by what is wrong in them: weights, inputs, …"""
SETS: dict[str, tuple[Pair, ...]] = {name: sum(found.values(), ()) for name, found in SECTIONS.items()}
PAIRS: dict[str, Pair] = {pair.name: pair for pairs in SETS.values() for pair in pairs}
PARTS: dict[str, tuple[Pair, ...]] = {
    "all": tuple(PAIRS.values()),
    "tuned": (*SETS["tuned"], *SETS["ports"], *SETS["once-held-out"]),
    "held-out": SETS["held-out-1"],
    **{name: SETS[name] for name in _NAMES[4:]},
    "ports": SETS["ports"],
}
"""what the option ``--part`` chooses from"""
