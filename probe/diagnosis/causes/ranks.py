"""Sharded layers: what one rank computes alone on one side, where the other side adds up what all ranks compute."""

from __future__ import annotations

from probe.comparison.notes import note
from probe.diagnosis.causes.training import fits_linear_gradient
from probe.diagnosis.evidence import Evidence
from probe.diagnosis.formulas import told_linear
from probe.diagnosis.grades import Found, verified
from probe.records import Role

_PLAIN = ("product", "product-with-bias")


def output_of_one_rank(evidence: Evidence) -> Found | None:
    """What a linear layer returns is this rank's own product on one side, and something else on the other."""
    names = evidence.once(told_linear) if _are_of_ranks(evidence) else (None, None)
    side = "A" if names[0] is not None else "B"
    name = names[0] or names[1]
    if None not in names or name is None or name.code not in _PLAIN:
        return None
    said = note("output-of-one-rank", side=side, other="B" if side == "A" else "A", product=name)
    return verified(said, by="from-input-and-weight", alone=side)


def gradient_of_one_rank(evidence: Evidence) -> Found | None:
    """What a linear layer passes back is this rank's own product on one side, and something else on the other."""
    if evidence.role is not Role.GRAD_INPUT or not _are_of_ranks(evidence):
        return None
    fits = fits_linear_gradient(evidence)
    if fits is None or (fits[0] is None) == (fits[1] is None) or 1.0 not in fits:
        return None
    side, other = ("A", "B") if fits[0] is not None else ("B", "A")
    said = note("gradient-of-one-rank", side=side, other=other)
    return verified(said, by="from-weight-and-gradient", alone=side)


def _are_of_ranks(evidence: Evidence) -> bool:
    return all(half.reader.info.world_size > 1 for half in evidence.halves)
