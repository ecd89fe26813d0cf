"""Weights that were not compared, where a later step is wrong: an update may have moved them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from probe.comparison.coverage.guards import grouped
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import begins
from probe.config import RecordConfig
from probe.records import Phase

_MAY_HAVE_PARTED = 0.5
_MOST_NAMED = 4
_COMPUTED = (Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT)
"""phases that weights have a part in"""


def sides_without_updates(pairs: StepPairs) -> list[str]:
    """Return the sides, A and B, that were not to record what training makes of their weights, though the step comes after others."""
    return [
        half.name
        for half in pairs.halves
        if not begins(half.side.reader, half.side.step)
        and not RecordConfig.from_recording(half.side.reader.info.config).wants_phase(Phase.UPDATE)
        and any(call.grad_enabled for call in half.calls)
    ]


def weighed_by_weights(finding: Divergence, left: Mapping[str, Sequence[str]], unrecorded: Sequence[str]) -> Divergence:
    """Return a finding with half its confidence, and the weights, where such may be behind it; or as it is.

    They may where they lie in the place, or beside it in the same caller: there they were as they began in the first step, in which
    nothing differed, and what the optimizer has made of them since is not known. So are all weights where no update was recorded.

    Parameters
    ----------
    finding
        of a step behind the first that was compared
    left
        by side, A or B, the full names of its weights that were not compared
    unrecorded
        the sides that did not record updates
    """
    if finding.phase not in _COMPUTED:
        return finding
    if unrecorded:
        return _halved(finding, note("updates-not-recorded", sides=tuple(unrecorded)))
    places = {ref.path for ref in (*finding.a, *finding.b)}
    near = {
        side: [name for name in names if any(_is_near(name, place) for place in places)] for side, names in left.items()
    }
    named = tuple((grouped(names, _MOST_NAMED), side) for side, names in near.items() if names)
    return _halved(finding, note("weights-not-compared", named=named)) if named else finding


def _halved(finding: Divergence, fact: Note) -> Divergence:
    return replace(finding, confidence=_MAY_HAVE_PARTED * finding.confidence, facts=(*finding.facts, fact))


def _is_near(weight: str, place: str) -> bool:
    """Tell whether a weight lies in a module, in one beside it, or in the one around it."""
    owner = weight.rpartition(".")[0]
    around = place.rpartition(".")[0]
    is_inside = not place or f"{owner}.".startswith(f"{place}.")
    return is_inside or owner == around or owner.rpartition(".")[0] == around
