"""`check_data`: whether what a model was given can be right, and the first sample in which two runs were given something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from probe.checks.data.batches import IDS, Batches, batches_of
from probe.checks.data.difference import SampleDifference, compare_samples
from probe.checks.data.labels import habit_of, label_lines
from probe.checks.data.padding import Side, padding_lines
from probe.checks.data.tokens import Tokenizer, id_lines, load_tokenizer, special_between, special_ids, special_lines
from probe.checks.outcome import CheckResult, Line, fault, fine, unchecked
from probe.ranks.opening import open_reader
from probe.records import Task
from probe.store.reading.reader import Reader

_DATASET = "dataset"
"""in the name of numbers that the program logs about its data: ``dataset_size``, ``dataset_version``"""
_PAD = "pad_token_id"


@dataclass(frozen=True)
class Sample:
    """A sample in words."""

    side: str
    step: int
    sample: int
    text: str


@dataclass(frozen=True, repr=False)
class Data(CheckResult):
    """What was found of the data of one recording, or of two."""

    check = "data"
    difference: SampleDifference | None = None
    """the first sample that differs between two recordings, where values tell it"""
    samples: tuple[Sample, ...] = ()
    """the first sample, or the one that differs, in words; of a tokenizer"""


@dataclass(frozen=True)
class _One:
    """One recording, looked at."""

    batches: Batches
    special: dict[str, tuple[int, ...]]
    padding: Side | None
    dataset: dict[str, float]
    lines: list[Line]


def check_data(a: str | Path, b: str | Path | None = None, *, tokenizer: str | Path | None = None) -> Data:
    """Check what a recorded model was given: ids, special ids, padding, mask and labels; and against a second recording.

    Parameters
    ----------
    a, b
        recordings; statistics tell ranges and whether batches are equal, ``task="tensor"`` tells all
    tokenizer
        a folder with a tokenizer of transformers: samples are shown as text, and its special ids are held against the model's

    Raises
    ------
    StoreError, FormatError
        a file cannot be read
    ConfigError
        the tokenizer cannot be loaded
    """
    words = None if tokenizer is None else load_tokenizer(tokenizer)
    with ExitStack() as opened:
        readers = [opened.enter_context(open_reader(path)) for path in ([a] if b is None else [a, b])]
        for reader in readers:
            reader.require_steps()
        names = [""] if b is None else ["A", "B"]
        files = tuple(str(reader.path) for reader in readers)
        sides = [_looked_at(reader, words, name) for reader, name in zip(readers, names, strict=True)]
        lines = [line for side in sides for line in side.lines]
        difference = None
        if len(sides) == 2:
            difference, more = compare_samples(sides[0].batches, sides[1].batches)
            lines += [*more, *_between(*sides)]
        else:
            lines += _dataset_alone(sides[0])
        samples = () if words is None else tuple(_samples(words, sides, names, difference))
        return Data(files, tuple(lines), difference, samples)


def _looked_at(reader: Reader, words: Tokenizer | None, side: str) -> _One:
    """Look at one recording."""
    dataset = {name: value for _, name, value in reader.scalars if _DATASET in name.casefold()}
    special = special_ids(reader.info.model_config)
    if reader.info.config.get("task") in (Task.STRUCTURE, Task.NORMS):
        line = unchecked("data", "no-inputs-recorded", side, task=str(reader.info.config.get("task")))
        return _One(Batches((), ()), special, None, dataset, [line])
    found = batches_of(reader)
    pad = special.get(_PAD, ())
    if not pad and words is not None and _PAD in words.special:
        pad = (words.special[_PAD],)
    others = [each for name, ids in special.items() if name != _PAD for each in ids]
    padding, of_padding = padding_lines(found, pad, others, side)
    root = reader.modules[0]
    lines = [
        *id_lines(found, side), *special_lines(found, special, words, side), *of_padding, *label_lines(found, habit_of(root), side),
    ]  # fmt: skip
    return _One(found, special, padding, dataset, lines)


def _between(a: _One, b: _One) -> Iterator[Line]:
    """Yield what differs between two recordings beside their samples."""
    yield from special_between(a.special, b.special)
    if a.padding is not None and b.padding is not None and a.padding is not b.padding:
        yield fault("padding side", "padding-sides-differ", a=a.padding.value, b=b.padding.value)
    both = [name for name in a.dataset if name in b.dataset]
    differing = tuple(f"{name} {a.dataset[name]:g} in A, {b.dataset[name]:g} in B" for name in both if a.dataset[name] != b.dataset[name])  # fmt: skip
    if differing:
        yield fault("dataset", "datasets-differ", differing=differing)
    elif both:
        yield fine("dataset", "datasets-equal", names=tuple(f"{name} {a.dataset[name]:g}" for name in both))


def _dataset_alone(one: _One) -> Iterator[Line]:
    if one.dataset:
        told = tuple(f"{name} {value:g}" for name, value in one.dataset.items())
        yield fine("dataset", "dataset-logged", names=told)


def _samples(
    words: Tokenizer, sides: list[_One], names: list[str], difference: SampleDifference | None
) -> Iterator[Sample]:
    """Yield the sample that differs on both sides, else the first of each recording."""
    if difference is not None and difference.ids is not None:
        for name, ids in zip(names, difference.ids, strict=True):
            yield Sample(name, difference.step, difference.sample, words.text(ids))
        return
    for side, name in zip(sides, names, strict=True):
        batch = next(
            (each for each in side.batches.batches if (ids := each.get(IDS)) is not None and ids.has_values), None
        )
        if batch is not None:
            rows = batch.fields[IDS].values()
            yield Sample(name, batch.step, 0, words.text(rows.reshape(-1, rows.shape[-1])[0].tolist()))
