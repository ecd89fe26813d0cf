"""What lines of a mapping have to stand beside."""

from __future__ import annotations

from probe.comparison.run import Comparison
from probe.errors import MappingError
from probe.matching import Known, Reason
from probe.matching.draft import draft, is_written_from_a
from probe.report.names import file_names
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree


def beside(comparison: Comparison, a: Reader, b: Reader) -> dict[str, str]:
    """Say what lines of a mapping have to stand beside (``base``), and from which side they are written (``from``).

    Where all pairs were found without a mapping, it is drafted, so that each is said; ``why_not`` says why it cannot be. Beside a mapping the lines
    stand by themselves: what it leaves open is found again.
    """
    matching = comparison.matching
    reasons = {pair.reason for pair in matching.pairs}
    is_guessed = bool(reasons & {Reason.SAME_STRUCTURE, Reason.SAME_VALUES})
    if not is_guessed or Reason.MAPPED in reasons:
        return {"base": "", "from": matching.direction.value[0], "why_not": ""}
    known = [Known(Tree(reader.modules), reader.parameters, reader.info.model_config) for reader in (a, b)]
    names = file_names(comparison.path_a, comparison.path_b)
    source = "a" if is_written_from_a(matching) else "b"
    try:
        return {"base": draft(matching, *known, names), "from": source, "why_not": ""}
    except MappingError as error:  # names that a mapping cannot say
        return {"base": "", "from": source, "why_not": str(error)}
