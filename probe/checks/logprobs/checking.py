"""`check_logprobs`: log-probabilities of a trainer and of a rollout engine, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

import numpy as np

from probe.checks.logprobs.forms import ATOL, BOUND, forms_of, is_left, is_noise
from probe.checks.logprobs.pairing import Pairs, side_by_side
from probe.checks.logprobs.reading import ROLES, TABLE, sequences_of
from probe.checks.outcome import CheckResult, Line, State, fault, fine, unchecked
from probe.errors import ConfigError

BOUNDS = (0.1, 0.5, 1.0)
_TOPIC, _FORM, _CODE = "log-probabilities", "form", "logprobs-"


@dataclass(frozen=True, slots=True)
class Place:
    """A token."""

    sequence: int
    token: int
    """among the tokens of its sequence that count"""
    position: int
    """in the sequence, prompt and all"""
    id: int
    a: float
    b: float


@dataclass(frozen=True, repr=False)
class LogProbs(CheckResult):
    """What two sets of log-probabilities tell of each other."""

    check = "logprobs"
    sequences: int = 0
    tokens: int = 0
    """that count on both sides, with equal ids up to them"""
    form: str = ""
    """one of `probe.checks.logprobs.forms.FORMS`, or empty"""
    measures: dict[str, float] = field(default_factory=dict)
    beyond: dict[str, float] = field(default_factory=dict)
    """share of the tokens whose log-probabilities are further apart than each bound"""
    first: Place | None = None
    """the first token beyond ``atol``"""
    largest: Place | None = None
    next: tuple[str, ...] = ()
    """what to record, or to look at"""

    @property
    def tables(self) -> Iterator[tuple[str, Sequence[str], list[tuple[str, ...]]]]:
        """What to show: titles, heads and rows."""
        yield "Measures", ("", "value"), [(name, f"{value:.4g}") for name, value in self.measures.items()]
        yield "Further apart than", ("", "of the tokens"), [(bound, f"{100 * share:.3g} %") for bound, share in self.beyond.items()]  # fmt: skip
        places = [(name, each) for name, each in (("first beyond", self.first), ("largest", self.largest)) if each]
        rows = [(name, *(f"{value:.4f}" if isinstance(value, float) else str(value) for value in astuple(each))) for name, each in places]  # fmt: skip
        yield "Where", ("difference", "sequence", "token", "position", "id", "A", "B"), rows


def check_logprobs(
    a: str | Path, b: str | Path | None = None, *, atol: float = ATOL, bounds: Sequence[float] = BOUNDS,
    output: str | Path | None = None,
) -> LogProbs:  # fmt: skip
    """Hold log-probabilities of the same tokens against each other, and say which form their differences have.

    Parameters
    ----------
    a
        the trainer's file: ``.npz``, ``.jsonl``, ``.json`` with the keys of verl, slime, NeMo RL, TRL, vLLM or SGLang, or a recording with values
    b
        the engine's; A's own where one file has both
    atol
        difference up to which one token is noise of 16 bits (`probe.checks.logprobs.forms` derives it)
    bounds
        for which the share of the tokens beyond is counted
    output
        a CSV file to be written, with a row for each token

    Raises
    ------
    FormatError
        a file cannot be read, or has no ids and log-probabilities under known keys
    ConfigError
        a bound is not positive
    """
    if min((atol, *bounds)) <= 0:
        raise ConfigError(f"atol and bounds are {atol:g} and {', '.join(map(str, bounds))}: expected numbers above 0")
    files = (str(a),) if b is None else (str(a), str(b))
    mine, theirs = sequences_of(a, ROLES[0]), sequences_of(a if b is None else b, ROLES[1])
    pairs, lines = side_by_side(mine, theirs)
    if output is not None:
        _written(pairs, output)
    found, rest = forms_of(pairs, atol)
    lines += [fault(_FORM, _CODE + form, **facts) for form, facts in found]
    beyond = np.abs(rest.d) > atol
    if rest.a.size:
        facts = {"count": rest.a.size, "share": float(beyond.mean()), "atol": atol, "mean": float(np.abs(rest.d).mean()), "centre": float(np.median(rest.d))}  # fmt: skip
        if is_noise(rest.d, atol):
            lines.append(fine(_TOPIC, "logprobs-agree", **facts))
        elif is_left(rest.d, atol) and not found:
            lines.append(unchecked(_TOPIC, "logprobs-undecided", coolest=BOUND.coolest, **facts))
        else:
            lines.append(fault(_TOPIC, "logprobs-apart", **facts))
    return LogProbs(
        files, tuple(lines), min(len(mine), len(theirs)), int(pairs.a.size), found[-1][0] if found else "",
        _measures(rest), {f"{bound:g}": float((np.abs(rest.d) > bound).mean()) for bound in bounds if rest.a.size},
        _place(rest, int(beyond.argmax())) if beyond.any() else None, _place(rest, int(np.abs(rest.d).argmax())) if rest.a.size else None,
        tuple(_next(lines)),
    )  # fmt: skip


def _next(lines: Sequence[Line]) -> list[str]:
    """Return what to do next, by what was found."""
    names = [line.topic if line.topic in TABLE["next"] else line.said.code.removeprefix(_CODE) for line in lines if line.state is State.FOUND]  # fmt: skip
    return list(dict.fromkeys(TABLE["next"][name] for name in names if name in TABLE["next"]))


def _place(pairs: Pairs, at: int) -> Place:
    return Place(*(int(each[at]) for each in (pairs.row, pairs.token, pairs.position, pairs.id)), float(pairs.a[at]), float(pairs.b[at]))  # fmt: skip


def _measures(pairs: Pairs) -> dict[str, float]:
    """Return the measures that the frameworks log.

    The tokens are taken as drawn by B, the engine. KL(B‖A) is estimated by k1, the mean of log(B/A), and by k3, the mean of A/B − 1 − log(A/B), which has no
    bias either and less variance (J. Schulman, Approximating KL Divergence, 2020). ``token_mult_prob_error`` is the mean of exp|A − B| (NeMo RL, guide to GRPO).
    """
    d = pairs.d
    if not d.size:
        return {}
    with np.errstate(over="ignore"):
        return {
            "mean |B - A|": float(np.abs(d).mean()), "median B - A": float(np.median(d)), "largest |B - A|": float(np.abs(d).max()),
            "KL k1": float(d.mean()), "KL k3": float((np.expm1(-d) + d).mean()), "token_mult_prob_error": float(np.exp(np.abs(d)).mean()),
        }  # fmt: skip


def _written(pairs: Pairs, path: str | Path) -> None:
    """Write a row for each token."""
    columns = (pairs.row, pairs.token, pairs.position, pairs.id, pairs.a, pairs.b, pairs.d)
    np.savetxt(path, np.column_stack(columns), "%.9g", ",", header="sequence,token,position,id,a,b,b-a", comments="")
