"""Sequences of tokens and their log-probabilities, out of files of several programs: `sequences_of`; `table.yaml` names the keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import yaml

from probe.checks.data.batches import IDS, MASK, as_mask, batches_of
from probe.checks.seen import in_time
from probe.errors import FormatError
from probe.ranks.opening import open_reader
from probe.records import Role

TABLE: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("table.yaml").read_text(encoding="utf-8"))
ROLES = ("trainer", "engine")
"""whose log-probabilities A's and B's are, where a file has both"""
HEAD = 16
"""ids of the shortest block of a prefix cache"""
_BORDERS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "positions": lambda values: np.flatnonzero(np.diff(values) <= 0) + 1,
    "documents": lambda values: np.flatnonzero(np.diff(values)) + 1,
    "cu_seqlens": lambda values: values,
}


@dataclass(frozen=True)
class Tokens:
    """The tokens of a sequence that have a log-probability, in order."""

    ids: np.ndarray
    logprobs: np.ndarray
    counts: np.ndarray
    """which of them its mask keeps"""
    start: int | None
    """position of the first one in the sequence; None where the prompt is not known"""
    borders: tuple[int, ...]
    """positions at which documents begin"""
    has_mask: bool
    head: bytes
    """its first `HEAD` ids, prompt and all; nothing where it is shorter, or not known"""


def sequences_of(path: str | Path, role: str) -> list[Tokens]:
    """Read the sequences of a file.

    Parameters
    ----------
    path
        ``.npz``, ``.jsonl``, ``.json``, or a recording (``.h5``) with the values of ids and logits
    role
        one of `ROLES`: whose log-probabilities are taken where the file has both

    Raises
    ------
    FormatError
        the file is none of these, or has no ids and log-probabilities under known keys
    """
    file = Path(path)
    reader = _READERS.get(file.suffix)
    if reader is None:
        raise FormatError(f"{path} is no file of log-probabilities: expected {', '.join(_READERS)}")
    if not file.exists():
        raise FormatError(f"there is no {path}")
    try:
        records = enumerate(reader(file))
        found = [each for at, record in records for each in _of_record(record, role, f"{path}, record {at}")]
    except (ValueError, TypeError, OSError, EOFError, BadZipFile, OverflowError, RecursionError, MemoryError) as error:
        raise FormatError(f"{path} cannot be read: {error}") from None
    if not found:
        raise FormatError(f"{path} holds no sequence: of a recording expected values of ids and logits (task='tensor')")
    return found


def _json(file: Path) -> Iterator[Any]:
    text, is_lines = file.read_text(encoding="utf-8"), file.suffix == ".jsonl"
    found = [json.loads(line) for line in text.splitlines() if line.strip()] if is_lines else json.loads(text)
    yield from found if isinstance(found, list) else [found]


def _arrays(file: Path) -> Iterator[Any]:
    with np.load(file) as found:
        yield {name: found[name] for name in found.files}


def _recording(file: Path) -> Iterator[Any]:
    """Yield ids and log-probabilities of each micro-batch: of the last output that has a row of the vocabulary for each id."""
    with open_reader(file) as reader:
        found = batches_of(reader)
        rows = 0 if found.vocabulary is None else found.vocabulary.rows
        for batch in found.batches:
            ids = batch.get(IDS)
            if ids is None or not ids.has_values:
                continue
            shape = (*ids.tensor.shape, rows)
            outputs = [row for row in in_time(reader, batch.step) if row["role"] == Role.OUTPUT and row["micro"] == batch.micro
                       and row["tensor"] >= 0 and reader.shapes[row["shape"]] == shape]  # fmt: skip
            if outputs:
                z = reader.values(int(outputs[-1]["tensor"]))[:, :-1].astype(np.float64)
                z -= z.max(axis=-1, keepdims=True)
                own = np.take_along_axis(z, ids.values()[:, 1:, None], axis=-1)[..., 0]
                more = {} if (mask := batch.get(MASK)) is None else {"attention": as_mask(mask.values()).astype(int)}
                yield {"ids": ids.values(), "logprobs": own - np.log(np.exp(z).sum(axis=-1)), **more}


_READERS: Mapping[str, Callable[[Path], Iterator[Any]]] = {
    ".jsonl": _json, ".json": _json, ".npz": _arrays, ".h5": _recording,
}  # fmt: skip


def _of_record(record: Any, role: str, where: str) -> Iterator[Tokens]:
    """Yield the sequences of a record: one, or those of a batch."""
    given = _by_form(record, role)
    if given is None:
        keys = ", ".join(record) if isinstance(record, Mapping) else type(record).__name__
        raise FormatError(
            f"{where} has no ids and log-probabilities under known keys (it has {keys}; known are those of "
            f"{'; '.join(TABLE['forms'])}): name them ids and logprobs, and mask, prompt_length and position_ids where there are any"
        )
    ids = given.get("ids", given.get("response"))
    if not _is_nested(ids):
        yield _one(given, where)
        return
    for row in range(len(ids)):
        own = {name: _row(name, value, row, len(ids)) for name, value in given.items()}
        yield _one(own, f"{where}, row {row}")


def _row(name: str, value: Any, row: int, rows: int) -> Any:
    """Return what of a batch belongs to a row; what is given once belongs to all."""
    of_each = _is_nested(value) or name.endswith("length") or name == "logprobs"
    return value[row] if of_each and isinstance(value, (Sequence, np.ndarray)) and len(value) == rows else value


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Sequence, np.ndarray)) and len(value) > 0 and isinstance(value[0], (list, np.ndarray))


def _by_form(record: Any, role: str) -> dict[str, Any] | None:
    """Return what a record holds by what it is; ``logprobs`` are those of the role, else of the other."""
    for keys in TABLE["forms"].values():
        values = ((name, _at(record, path.split("."))) for name, paths in keys.items() for path in reversed(paths))
        got = {name: value for name, value in values if value is not None}
        sides = [got.pop(name, None) for name in (role, *ROLES)]
        logprobs = next((each for each in sides if each is not None), None)
        if logprobs is not None and ("ids" in got or "response" in got):
            return {**got, "logprobs": logprobs}
    return None


def _at(value: Any, parts: Sequence[str]) -> Any:
    """Return what lies at a path; None where nothing does."""
    for number, part in enumerate(parts):
        if part == "*":
            found = [_at(each, parts[number + 1 :]) for each in value] if isinstance(value, list) else []
            return found if any(each is not None for each in found) else None
        if isinstance(value, Mapping):
            value = value.get(part)
        else:
            value = value[int(part)] if isinstance(value, list) and part.isdigit() and int(part) < len(value) else None
    return value


def _one(given: Mapping[str, Any], where: str) -> Tokens:
    """Return a sequence, its padding taken off."""
    is_whole = "ids" in given
    ids = np.asarray(given["ids" if is_whole else "response"], np.int64).reshape(-1)
    size, count = len(ids), len(given["logprobs"])
    if count > size:
        raise FormatError(f"{where} has {count} log-probabilities of {size} tokens: expected as many, or fewer")
    first = size - count
    logprobs = np.array([_number(*each) for each in zip(given["logprobs"], ids[first:], strict=True)], np.float64)
    lengths = {name: int(np.asarray(given[name]).reshape(-1)[0]) for name in given if name.endswith("length")}
    attention = np.asarray(given.get("attention", ())).reshape(-1) != 0
    kept = np.arange(size) < lengths.get("length", size)
    if len(attention) >= size:
        kept &= attention[len(attention) - size :]
    left = int(kept.argmax()) if kept.any() else 0
    counts, has_mask = _counts(given, lengths, count)
    if is_whole and not first and count:
        counts[left] = False  # nothing comes before the first token
    use = first + np.flatnonzero(kept[first:])
    used = slice(int(use[0]), int(use[-1]) + 1) if len(use) else slice(first, first)
    prompt = np.zeros(0, np.int64) if is_whole else _prompt(given, attention, size)
    before = lengths.get("prompt_length") if prompt is None else len(prompt)
    head = ids[:0] if prompt is None else np.append(prompt, ids[kept])[:HEAD]
    borders = [_BORDERS[name](np.asarray(given[name]).reshape(-1)) for name in _BORDERS if name in given]
    part = slice(used.start - first, used.stop - first)
    return Tokens(
        ids[used], logprobs[part], (counts & kept[first:])[part], None if before is None else before + used.start - left,
        tuple(int(at) - left for each in borders for at in each if 0 < at - left < size), has_mask, head.tobytes() if len(head) == HEAD else b"",
    )  # fmt: skip


def _counts(given: Mapping[str, Any], lengths: Mapping[str, int], count: int) -> tuple[np.ndarray, bool]:
    """Return which of the last tokens count, and whether a mask says it."""
    mask = np.asarray(given.get("mask", ()), np.float64).reshape(-1)
    if len(mask) >= count > 0:
        return mask[len(mask) - count :] != 0, True
    if "ids" not in given:
        return np.ones(count, bool), False
    behind = len(given["ids"]) - lengths.get("prompt_length", 0)
    return np.arange(count) >= count - min(lengths.get("response_length", behind), count), False


def _prompt(given: Mapping[str, Any], attention: np.ndarray, size: int) -> np.ndarray | None:
    """Return the ids before a response, without padding; None where they are not known."""
    if "prompt" not in given:
        return None
    prompt = np.asarray(given["prompt"], np.int64).reshape(-1)
    own = np.asarray(given.get("prompt_attention", attention if len(attention) == len(prompt) + size else ())).reshape(
        -1
    )
    return prompt[own[: len(prompt)] != 0] if len(own) else prompt


def _number(value: Any, token: int) -> float:
    if isinstance(value, Mapping):
        value = value.get("logprob", value.get(str(token)))
        value = value.get("logprob") if isinstance(value, Mapping) else value
    return np.nan if value is None else float(value)
