"""Whose names a configuration uses, and what it is a configuration of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.errors import ConfigError
from probe.settings.setting import Dialect, Part
from probe.settings.source import Form, Names, Source, flattened
from probe.settings.table import DIALECTS, OWN_SECTIONS, TABLE

_PARAMS_JSON = frozenset(DIALECTS["params_json"])
_HUGGING_FACE = (Dialect.TRANSFORMERS, Dialect.PADDLENLP)
_SURE = 2
"""keys of one code base alone"""
_TRAINING_SECTIONS = ("optimizer", "runner_wrapper", "lr_schedule")
_CHECKPOINT = "use_checkpoint_args"
_MODEL_NEEDED = ("num_layers", "hidden_size", "num_attention_heads")


def source_of(
    path: str, form: Form, values: Mapping[Any, Any], variables: Mapping[str, str] | None = None,
    unknown: frozenset[str] = frozenset(), is_complete: bool = True,
) -> Source:  # fmt: skip
    """Return what nested values are: whose, and of what.

    Names with an unknown value tell that too. Where further entries are unknown, nothing that is missing has its
    default. Raises ConfigError where none of them is a setting.
    """
    keys = flattened(values)
    seen = {**keys, **dict.fromkeys(unknown)}
    names = Names(seen)
    dialect = dialect_of(seen)
    if not any(names.find(key) for row in TABLE for key in row.keys(dialect)) and not variables:
        raise ConfigError(
            f"{path}: none of its {len(keys)} entries is a setting that probe knows; see docs/reference/settings.md"
        )
    parts = _parts(dialect, names)
    is_config = form is Form.ARGUMENTS_JSON and dialect in _HUGGING_FACE and Part.MODEL in parts
    parts = parts if is_complete else frozenset()
    return Source(path, Form.CONFIG_JSON if is_config else form, dialect, keys, parts, variables or {},
                  also=others(seen, dialect), unknown=unknown, is_complete=is_complete)  # fmt: skip


def dialect_of(keys: Mapping[str, Any]) -> Dialect:
    """Return whose names keys are."""
    if keys.keys() >= _PARAMS_JSON:
        return Dialect.META
    scores = _scores(keys)
    best = max(scores, key=lambda dialect: scores[dialect])
    return best if scores[best] else Dialect.TRANSFORMERS


def others(keys: Mapping[str, Any], dialect: Dialect) -> tuple[Dialect, ...]:
    """Return the dialects whose names may be among keys too, where too few of them tell whose they are."""
    return tuple(each for each in Dialect if each is not dialect) if _scores(keys).get(dialect, _SURE) < _SURE else ()


def _scores(keys: Mapping[str, Any]) -> dict[Dialect, int]:
    own = [key for key in keys if OWN_SECTIONS.isdisjoint(key.split(".")[:-1])]
    sections = {key.rpartition(".")[0] for key in own}
    present = {end for key in [*own, *sections] for end in _ends(key)}
    return {
        Dialect(dialect): marks.get("counts", 1) * sum(mark in present for mark in marks["keys"])
        for dialect, marks in DIALECTS["marks"].items()
    }


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[at:to]) for at in range(len(parts)) for to in range(at + 1, len(parts) + 1)]


def _parts(dialect: Dialect, names: Names) -> frozenset[Part]:
    """Return what a configuration is of."""
    if dialect in _HUGGING_FACE:
        return frozenset(Part(part) for part, keys in DIALECTS["parts"].items() if any(map(names.find, keys)))
    if dialect is Dialect.MINDFORMERS:
        is_trained = any(names.find(f"{section}.type") for section in _TRAINING_SECTIONS)
        return frozenset({Part.MODEL, Part.TRAINING} if is_trained else {Part.MODEL})
    if dialect is Dialect.MEGATRON:
        is_model = names.get(_CHECKPOINT) is not True and all(map(names.find, _MODEL_NEEDED))
        is_trained = any(map(names.find, ("lr", "train_iters", "micro_batch_size")))
        return frozenset(part for part, is_there in zip(Part, (is_model, is_trained), strict=True) if is_there)
    return frozenset({Part.MODEL} if dialect is Dialect.META else ())
