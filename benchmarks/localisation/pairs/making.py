"""Functions that make a pair of one line of ``sets/*.txt``.

A line is an architecture, a fault, the module that it is planted in, and options: fields of both sides' `Setup`, or what
`faulty` takes. A clean pair's line is an architecture, fields of both setups, those of B alone (``b.split=2``), and behind
a colon what differs legitimately. ``bf16``, ``autocast`` and ``fp16`` (with SGD) are both sides' dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.grading import Truth
from benchmarks.localisation.faults.registry import FAULTS
from benchmarks.localisation.models.ports.counterparts import counterparts
from benchmarks.localisation.models.registry import ARCHITECTURES, MAPPINGS
from benchmarks.localisation.pairs.pair import Pair, Planted, Setup
from benchmarks.localisation.tools.frameworks.training import PACKED_MAPPING

_DTYPES: dict[str, dict[str, Any]] = {
    "bf16": {"dtype": "bf16"},
    "autocast": {"dtype": "autocast"},
    "fp16": {"dtype": "fp16", "optimizer": "sgd"},
}
_FRAMEWORK_MAPPINGS: dict[tuple[str, str], Any] = {
    ("mindspore", "port-encoder"): "torch/mindspore",
    ("paddle", "port-packed"): PACKED_MAPPING,
    ("mindspore", "port-packed"): PACKED_MAPPING,
}


def pair_of(line: str, section: str) -> Pair:
    """Return the pair of a line in a section: ``clean``, a framework, or any other name for faulty ones."""
    words, _, about = line.partition(" : ")
    first, *rest = words.split()
    named = [word for word in rest if "=" not in word and word not in _DTYPES]
    options: dict[str, Any] = {}
    for word in rest:
        if word in _DTYPES:
            options |= _DTYPES[word]
        elif word not in named:
            name, _, value = word.partition("=")
            options[name] = tuple(value.split(",")) if name in ("also", "phases") else _value(value)
    if section in ("paddle", "mindspore"):
        return framework_port(section, first, *named, own=about, **options)
    is_port = bool(ARCHITECTURES[first].baseline)
    if section == "clean":
        b = {name[2:]: options.pop(name) for name in [*options] if name.startswith("b.")}
        return (clean_port if is_port else clean)(first, about, b, **options)
    return (faulty_port if is_port else faulty)(first, *named, **options)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text == "true" if text in ("true", "false") else text


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


def framework_port(
    framework: str,
    architecture: str,
    fault: str = "",
    path: str = "",
    *,
    answer: str | None = None,
    size: float | None = None,
    step: int = 0,
    phases: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    own: str = "",
    **setup: Any,
) -> Pair:
    """Return a pair of a model and its port to another framework, which may have one fault.

    Parameters
    ----------
    path
        the port's module
    answer
        the right module of the baseline, where it is not ``path``
    phases
        the right ones, where they are not the fault's
    own
        what the framework itself does wrong, where that is the first fault
    """
    setup = {"optimizer": "sgd", "steps": step + 1 if fault else 3, **setup}
    a = Setup(architecture.replace("packed", "bert"), **setup)
    b = replace(a, architecture=architecture, framework=framework)
    what = fault or ("own" if own else "clean")
    name = [architecture, framework, a.dtype, what, path, "" if size is None else f"{size:g}", a.optimizer]
    name += [f"steps{a.steps}" if a.steps > 1 else "", "own" if own and fault else ""]
    truth, about = None, own or f"a port to {framework}"
    if fault:
        b = replace(b, planted=(Planted(fault, path, size, step),))
        known = FAULTS[fault]
        phases, about = phases or known.phases, own or known.about
        if answer is None:
            answer = "" if known.is_whole or known.phases == ("update",) and fault != "left_out" else path
    if answer is not None:
        truth = Truth(answer, phases, step, also)
    label = "/".join(part for part in name if part)
    return Pair(label, a, b, truth, mapping=_FRAMEWORK_MAPPINGS.get((framework, architecture)), about=about)


def _name(what: str, path: str, a: Setup, b: Setup, size: float | None, step: int) -> str:
    place = path.rpartition(".")[2] if path else ""
    options = [a.optimizer if a.optimizer != "adamw" else "", f"steps{a.steps}" if a.steps > 1 else ""]
    options += [f"seed{a.seed}" if a.seed else "", f"clip{a.clip:g}" if a.clip else ""]
    options += [f"width{a.width}" if a.width > 1 else "", f"layers{a.layers}" if a.layers else ""]
    options += [f"micros{a.micros}" if a.micros > 1 else "", f"at{step}" if step else ""]
    target = b.architecture if b.architecture != a.architecture else ""
    parts = [a.architecture, target, a.dtype, what, place, "" if size is None else f"{size:g}", *options]
    return "/".join(part for part in parts if part)
