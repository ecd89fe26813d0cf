"""Token ids and special ids against the vocabulary; a tokenizer of transformers from a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.checks.data.batches import LABELS, Batches, Table
from probe.checks.outcome import Line, fault, fine, unchecked
from probe.errors import ConfigError

_TOPIC_IDS, _TOPIC_SPECIAL = "ids within the vocabulary", "special ids"
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
           "decoder_start_token_id")  # fmt: skip
"""what configurations call special ids; all but the last are a tokenizer's too"""


@dataclass(frozen=True)
class Tokenizer:
    """What the checks need of a tokenizer."""

    size: int
    """how many tokens it has, added ones included"""
    special: dict[str, int]
    """special ids by their names in configurations"""
    _decode: Callable[[list[int]], str] = field(repr=False)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids; those that it does not have are left out."""
        return self._decode([int(each) for each in ids if 0 <= each < self.size])


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """Load a tokenizer that lies in a folder; nothing is downloaded.

    Raises ConfigError where transformers is not installed, or the folder holds no tokenizer.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError("--tokenizer needs transformers: pip install transformers") from None
    try:
        found = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # noqa: BLE001  transformers raises what its many backends do
        told = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{folder} holds no tokenizer that transformers can load: {told}") from None
    special = {name: getattr(found, name, None) for name in SPECIAL[:-1]}
    kept = {name: value for name, value in special.items() if isinstance(value, int)}
    return Tokenizer(len(found), kept, found.decode)


def id_lines(found: Batches, side: str) -> Iterator[Line]:
    """Yield whether the ids that each embedding was given, and labels, are rows of it."""
    if not found.tables:
        yield unchecked(_TOPIC_IDS, "no-embedding-recorded", side)
        return
    for table in found.tables:
        yield _held(table, side)
    labels = [batch.fields[LABELS].tensor for batch in found.batches if LABELS in batch.fields]
    rows = found.tables[0].rows
    if labels and not found.tables[0].is_part:
        high = max(each.high for each in labels)
        if high >= rows:
            yield fault(_TOPIC_IDS, "labels-outside-vocabulary", side, high=int(high), rows=rows)


def _held(table: Table, side: str) -> Line:
    facts = {"path": table.path, "low": int(table.low), "high": int(table.high), "rows": table.rows}
    if table.is_part:
        return unchecked(_TOPIC_IDS, "vocabulary-in-parts", side, path=table.path)
    if table.low < 0 or table.high >= table.rows:
        return fault(_TOPIC_IDS, "ids-outside-vocabulary", side, **facts)
    return fine(_TOPIC_IDS, "ids-within-vocabulary", side, **facts)


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
        yield unchecked(_TOPIC_SPECIAL, "no-special-ids", side)
    elif table is not None and not table.is_part:
        outside = {name: ids for name, ids in special.items() if any(not 0 <= each < table.rows for each in ids)}
        if outside:
            yield fault(_TOPIC_SPECIAL, "special-ids-outside", side, ids=_listed(outside), rows=table.rows)  # fmt: skip
        else:
            yield fine(_TOPIC_SPECIAL, "special-ids-within", side, ids=_listed(special), rows=table.rows)
    if tokenizer is None:
        return
    differing = tuple(
        f"{name} {_some(special[name])} in the model, {own} in the tokenizer"
        for name, own in tokenizer.special.items() if name in special and own not in special[name]
    )  # fmt: skip
    if differing:
        yield fault(_TOPIC_SPECIAL, "special-ids-of-tokenizer", side, differing=differing)
    if table is not None and not table.is_part and tokenizer.size > table.rows:
        yield fault("vocabulary", "tokenizer-too-large", side, size=tokenizer.size, rows=table.rows)


def special_between(a: Mapping[str, tuple[int, ...]], b: Mapping[str, tuple[int, ...]]) -> Iterator[Line]:
    """Yield whether two models have the same special ids."""
    both = [name for name in SPECIAL if name in a and name in b]
    differing = tuple(f"{name} {_some(a[name])} in A, {_some(b[name])} in B" for name in both if a[name] != b[name])
    if differing:
        yield fault(_TOPIC_SPECIAL, "special-ids-differ", differing=differing)
    elif both:
        yield fine(_TOPIC_SPECIAL, "special-ids-equal", names=tuple(both))


def _some(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids))


def _listed(special: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    return tuple(f"{name} {_some(ids)}" for name, ids in special.items())
