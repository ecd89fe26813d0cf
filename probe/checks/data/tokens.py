"""Token ids and special ids against the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.checks.data.batches import LABELS, Batches, Table
from probe.checks.data.tokenizing import Tokenizer
from probe.checks.outcome import Line, State
from probe.comparison.notes import note

_TOPIC_IDS, _TOPIC_SPECIAL = "ids within the vocabulary", "special ids"
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
           "decoder_start_token_id")  # fmt: skip
"""what configurations call special ids"""


def id_lines(found: Batches, side: str) -> Iterator[Line]:
    """Yield whether the ids that each embedding was given, and labels, are rows of it."""
    if not found.tables:
        yield Line(_TOPIC_IDS, State.UNKNOWN, note("no-embedding-recorded"), side)
        return
    for table in found.tables:
        yield _held(table, side)
    labels = [batch.fields[LABELS].tensor for batch in found.batches if LABELS in batch.fields]
    rows = found.tables[0].rows
    if labels and not found.tables[0].is_part:
        high = max(each.high for each in labels)
        if high >= rows:
            yield Line(_TOPIC_IDS, State.FOUND, note("labels-outside-vocabulary", high=int(high), rows=rows), side)


def _held(table: Table, side: str) -> Line:
    facts = {"path": table.path, "low": int(table.low), "high": int(table.high), "rows": table.rows}
    if table.is_part:
        return Line(_TOPIC_IDS, State.UNKNOWN, note("vocabulary-in-parts", path=table.path), side)
    is_outside = table.low < 0 or table.high >= table.rows
    return Line(_TOPIC_IDS, State.FOUND if is_outside else State.OK,
                note("ids-outside-vocabulary" if is_outside else "ids-within-vocabulary", **facts), side)  # fmt: skip


def special_ids(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the special ids of a model's configuration, by their names there."""
    found = {}
    for name in SPECIAL:
        value = config.get(name)
        values = value if isinstance(value, (list, tuple)) else [value]
        kept = tuple(each for each in values if isinstance(each, int) and not isinstance(each, bool))
        if kept:
            found[name] = kept
    return found


def special_lines(
    found: Batches, special: Mapping[str, tuple[int, ...]], tokenizer: Tokenizer | None, side: str
) -> Iterator[Line]:
    """Yield whether the special ids of a configuration are rows of the vocabulary, and those of the tokenizer."""
    table = found.vocabulary
    if not special:
        yield Line(_TOPIC_SPECIAL, State.UNKNOWN, note("no-special-ids"), side)
    elif table is not None and not table.is_part:
        outside = {name: ids for name, ids in special.items() if any(not 0 <= each < table.rows for each in ids)}
        if outside:
            yield Line(_TOPIC_SPECIAL, State.FOUND, note("special-ids-outside", ids=_listed(outside), rows=table.rows), side)  # fmt: skip
        else:
            yield Line(
                _TOPIC_SPECIAL, State.OK, note("special-ids-within", ids=_listed(special), rows=table.rows), side
            )
    if tokenizer is None:
        return
    differing = tuple(
        f"{name} {_some(special[name])} in the model, {own} in the tokenizer"
        for name, own in tokenizer.special.items() if name in special and own not in special[name]
    )  # fmt: skip
    if differing:
        yield Line(_TOPIC_SPECIAL, State.FOUND, note("special-ids-of-tokenizer", differing=differing), side)
    if table is not None and not table.is_part and tokenizer.size > table.rows:
        yield Line("vocabulary", State.FOUND, note("tokenizer-too-large", size=tokenizer.size, rows=table.rows), side)


def special_between(a: Mapping[str, tuple[int, ...]], b: Mapping[str, tuple[int, ...]]) -> Iterator[Line]:
    """Yield whether two models have the same special ids."""
    both = [name for name in SPECIAL if name in a and name in b]
    differing = tuple(f"{name} {_some(a[name])} in A, {_some(b[name])} in B" for name in both if a[name] != b[name])
    if differing:
        yield Line(_TOPIC_SPECIAL, State.FOUND, note("special-ids-differ", differing=differing))
    elif both:
        yield Line(_TOPIC_SPECIAL, State.OK, note("special-ids-equal", names=tuple(both)))


def _some(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))


def _listed(special: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    return tuple(f"{name} {_some(ids)}" for name, ids in special.items())
