"""Short ways to write a pair down: one line each in `tuned`, `further` and `third`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.localisation.faults import FAULTS
from benchmarks.localisation.models.registry import ARCHITECTURES, MAPPINGS
from benchmarks.localisation.pairs.pair import Pair, Planted, Setup, Truth


def faulty(
    architecture: str,
    fault: str,
    path: str = "",
    *,
    size: float | None = None,
    step: int = 0,
    seen: int | None = None,
    answer: str | None = None,
    also: tuple[str, ...] = (),
    port: str = "",
    noise: Mapping[str, Any] | None = None,
    **setup: Any,
) -> Pair:
    """Return a pair of which B has one fault.

    Parameters
    ----------
    path
        where the fault is planted: a module of B, an input's name, or a glob of parameters for the optimizer
    step
        the step from which on it is there
    seen
        the first step in which it makes a difference, where that is a later one
    answer
        the right module of A, where it is not ``path``
    port
        B's architecture, where it is another structure
    noise
        fields of B's setup that differ legitimately; the architecture's own when None
    setup
        fields of both setups
    """
    setup = {"steps": max(step, seen or 0) + 1, **setup}
    a = Setup(architecture, **setup)
    legitimate = ARCHITECTURES[architecture].noise if noise is None else noise
    if port:
        a, legitimate = replace(a, **ARCHITECTURES[architecture].noise), {"architecture": port}
    b = replace(a, **legitimate, planted=(Planted(fault, path, size, step),))
    found = FAULTS[fault]
    if answer is None:
        answer = "" if found.is_whole or not path else path
    if "*" in answer:  # a glob of parameters: every one of their modules is right
        answer, also = "*", (*also, answer.rpartition(".")[0])
    if found.is_of_decayed:
        also = ("*",)
    truth = Truth(answer, found.phases, step if seen is None else seen, also)
    return Pair(_name(fault, path, a, b, size, step), a, b, truth, mapping=MAPPINGS.get(port), about=found.about)


def clean(architecture: str, about: str, b: Mapping[str, Any], port: str = "", **setup: Any) -> Pair:
    """Return a pair of which B differs legitimately; ``b`` holds the fields in which it does."""
    a = Setup(architecture, **setup)
    other = replace(a, **b, **({"architecture": port} if port else {}))
    differs = "-".join(f"{key}_{value}".lower() for key, value in b.items())
    return Pair(_name(differs, "", a, other, None, 0), a, other, mapping=MAPPINGS.get(port), about=about)


def _name(what: str, path: str, a: Setup, b: Setup, size: float | None, step: int) -> str:
    place = path.rpartition(".")[2] if path else ""
    options = [a.optimizer if a.optimizer != "adamw" else "", f"steps{a.steps}" if a.steps > 1 else ""]
    options += [f"seed{a.seed}" if a.seed else "", f"clip{a.clip:g}" if a.clip else ""]
    options += [f"width{a.width}" if a.width > 1 else "", f"layers{a.layers}" if a.layers else ""]
    options += [f"micros{a.micros}" if a.micros > 1 else "", f"at{step}" if step else ""]
    target = b.architecture if b.architecture != a.architecture else ""
    parts = [a.architecture, target, a.dtype, what, place, "" if size is None else f"{size:g}", *options]
    return "/".join(part for part in parts if part)
