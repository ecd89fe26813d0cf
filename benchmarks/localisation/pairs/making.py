"""Functions that make a pair of one line of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.localisation.faults.registry import FAULTS
from benchmarks.localisation.models.ports.counterparts import counterparts
from benchmarks.localisation.models.registry import ARCHITECTURES, MAPPINGS
from benchmarks.localisation.pairs.pair import Pair, Planted, Setup, Truth

Table = dict[str, tuple[Pair, ...]]
"""pairs by the set that they belong to"""
BF16, AUTOCAST = {"dtype": "bf16"}, {"dtype": "autocast"}
FP16 = {"dtype": "fp16", "optimizer": "sgd"}


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
        where the fault is planted: a module of B, the name of an input, or a glob of parameters for the optimizer
    step
        the first step that has the fault
    seen
        the first step in which the fault makes a difference, if that is a later one
    answer
        the right module of A, if it is not ``path``
    also
        globs of other modules that are as right
    port
        B's architecture, if it has another structure
    noise
        fields of B's setup that differ legitimately; by default those of the architecture
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
    """Return a clean pair: B differs legitimately, in the fields of ``b``."""
    a = Setup(architecture, **setup)
    other = replace(a, **b, **({"architecture": port} if port else {}))
    differs = "-".join(f"{key}_{value}".lower() for key, value in b.items())
    return Pair(_name(differs, "", a, other, None, 0), a, other, mapping=MAPPINGS.get(port), about=about)


def faulty_port(
    port: str, fault: str, path: str = "", *, answer: str | None = None, also: tuple[str, ...] = (), **more: Any
) -> Pair:
    """Return a pair of a model of transformers and its port, which has one fault.

    Parameters
    ----------
    path
        where the fault is planted in the port
    answer
        the right module of A; by default the counterpart of the port's
    more
        as `faulty` takes it
    """
    if answer is None and path and not FAULTS[fault].is_whole:
        answer, *others = counterparts(port, path)
        also = (*others, *also)
    return faulty(ARCHITECTURES[port].baseline, fault, path, port=port, answer=answer, also=also, **more)


def clean_port(port: str, about: str, b: Mapping[str, Any] | None = None, **setup: Any) -> Pair:
    """Return a pair of a model of transformers and its port without a fault."""
    return clean(ARCHITECTURES[port].baseline, about, b or {}, port=port, **setup)


def _name(what: str, path: str, a: Setup, b: Setup, size: float | None, step: int) -> str:
    place = path.rpartition(".")[2] if path else ""
    options = [a.optimizer if a.optimizer != "adamw" else "", f"steps{a.steps}" if a.steps > 1 else ""]
    options += [f"seed{a.seed}" if a.seed else "", f"clip{a.clip:g}" if a.clip else ""]
    options += [f"width{a.width}" if a.width > 1 else "", f"layers{a.layers}" if a.layers else ""]
    options += [f"micros{a.micros}" if a.micros > 1 else "", f"at{step}" if step else ""]
    target = b.architecture if b.architecture != a.architecture else ""
    parts = [a.architecture, target, a.dtype, what, place, "" if size is None else f"{size:g}", *options]
    return "/".join(part for part in parts if part)
