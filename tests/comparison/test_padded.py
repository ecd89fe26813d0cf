"""Errors that lie in padding alone: kernels differ in rows that see no key, and nobody looks at these."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, cross_entropy
from probe.comparison.result import Verdict
from probe.comparison.run import Comparison
from probe.records import Phase
from tests.comparison.planted import Model, said
from tests.toys import BATCH, GPT, LENGTH, batch, gpt, module, record, replaced

MASK = np.ones((BATCH, LENGTH), np.int64)
MASK[1, 4:] = 0
LABELS = np.arange(BATCH * LENGTH).reshape(BATCH, LENGTH)


class Padded(GPT):
    counts_all = False
    returns_loss = True
    times = 1.0

    def loss_of(self, logits: Tensor, attention_mask: Tensor) -> Tensor:
        kept = 1.0 if self.counts_all else attention_mask.data[..., None].astype(np.float32)
        return cross_entropy(logits * kept, Tensor(LABELS)) * self.times

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Any:
        logits = super().forward(ids)
        return (logits, self.loss_of(logits, attention_mask)) if self.returns_loss else logits


def run(
    path: Path, change: Callable[[Model], object] | None = None, task: str = "tensor",
    masks: tuple[np.ndarray, ...] = (MASK,), **settings: Any,
) -> Path:  # fmt: skip
    model = gpt()
    model.__class__ = Padded
    vars(model).update(settings)
    if change is not None:
        change(model)

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Any:
        for mask in map(Tensor, masks):
            returned = model(batch(number), attention_mask=mask)
            loss = returned[1] if settings.get("returns_loss", True) else model.loss_of(returned, mask)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return record(path, model, steps=2, step=step, task=task)


def compared(folder: Path, change: Callable[[Model], object], **options: Any) -> Comparison:
    return probe.compare(run(folder / "a.h5", **options), run(folder / "b.h5", change, **options))


def _other_rows(places: np.ndarray, times: float = 0.5) -> Callable[[Model], object]:
    kept = np.where(places, times, 1)[..., None].astype(np.float32)
    return lambda m: replaced(m, "layers.1.attn", forward=lambda s, x: nn.Attention.forward(s, x) * kept)


PADDING = MASK == 0
SAID = "tensors differ only where attention_mask is 0, in padding (verified), first the output 0 of layers.1.attn (rel"


def test_what_differs_in_padding_alone_is_a_note(tmp_path: Path) -> None:
    found = compared(tmp_path, _other_rows(PADDING))
    assert found.verdict is Verdict.ALIGNED
    assert len([text for text in found.warnings if SAID in text]) == 1, "once, not in every step"


def test_a_fault_behind_it_is_found(tmp_path: Path) -> None:
    def change(model: Model) -> None:
        _other_rows(PADDING)(model)
        module(model, "layers.2.norm1").eps = 1e-3

    first = compared(tmp_path, change).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.2.norm1")


@pytest.mark.parametrize("also", [(0, 0), (1, 3)])
def test_what_differs_elsewhere_too_is_a_divergence(tmp_path: Path, also: tuple[int, int]) -> None:
    places = PADDING.copy()
    places[also] = True
    first = compared(tmp_path, _other_rows(places)).first_divergence
    assert first is not None and first.path == "layers.1.attn"


def test_without_padding_nothing_is_left_out(tmp_path: Path) -> None:
    first = compared(tmp_path, _other_rows(PADDING), masks=(np.ones_like(MASK),)).first_divergence
    assert first is not None and first.path == "layers.1.attn"


def test_a_loss_that_counts_the_padding_shows_it(tmp_path: Path) -> None:
    def change(model: Model) -> None:
        _other_rows(PADDING)(model)
        model.counts_all = True  # type: ignore[attr-defined]

    found = compared(tmp_path, change)
    assert found.first_divergence is not None and found.first_divergence.phase is Phase.LOSS
    assert said(found, "in padding (verified)")


@pytest.mark.parametrize("second", [np.ones_like(MASK), MASK[::-1]], ids=["none", "other"])
def test_each_micro_batch_has_its_own_padding(tmp_path: Path, second: np.ndarray) -> None:
    calls = itertools.count()

    def kept() -> np.ndarray:
        return np.where((MASK, second)[next(calls) % 2] == 0, 0.5, 1)[..., None].astype(np.float32)

    def change(model: Model) -> None:
        replaced(model, "layers.1.attn", forward=lambda s, x: nn.Attention.forward(s, x) * kept())

    found = compared(tmp_path, change, masks=(MASK, second))
    assert found.verdict is Verdict.ALIGNED and said(found, SAID)


def test_another_loss_is_no_matter_of_padding(tmp_path: Path) -> None:
    """The model returns logits only, and the program computes the loss of what is no padding."""
    found = compared(tmp_path, lambda m: (_other_rows(PADDING)(m), setattr(m, "times", 1.25)), returns_loss=False)
    assert found.first_divergence is not None and found.first_divergence.phase is Phase.LOSS
    assert said(found, SAID)


def test_padding_that_a_loss_is_computed_from_is_charged(tmp_path: Path) -> None:
    first = compared(tmp_path, _other_rows(PADDING), returns_loss=False, counts_all=True).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.attn")


def test_statistics_say_that_it_may_be_padding(tmp_path: Path) -> None:
    first = compared(tmp_path, _other_rows(PADDING, 0.0), task="statistics").first_divergence
    assert first is not None and first.path == "layers.1.attn"
    assert first.hint.startswith(
        "2 tokens are zero in B alone, and attention_mask is 0 for 2: it may lie in padding alone, which task='tensor' tells"
    )


def test_integers_that_are_zero_are_no_padding(tmp_path: Path) -> None:
    """Numbers of buckets, of which one is 0."""

    def looks_up(buckets: np.ndarray) -> Callable[[Model], object]:
        def change(model: Model) -> None:
            attention = module(model, "layers.1.attn")
            attention.__class__ = type("Attention", (nn.Attention,), {
                "forward": lambda s, x: nn.Attention.forward(s, x) + s.table(Tensor(buckets)).sum(),
            })  # fmt: skip
            nn.manual_seed(3)
            attention.table = nn.Embedding(LENGTH, 1)

        return change

    buckets = 1 + np.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % (LENGTH - 1)
    other = buckets.copy()
    other[1] = 0
    files = [
        run(tmp_path / f"{name}.h5", looks_up(each), "statistics") for name, each in (("a", buckets), ("b", other))
    ]
    first = probe.compare(*files).first_divergence
    assert first is not None and first.path == "layers.1.attn" and "padding" not in first.hint


def test_a_loss_of_logits_that_were_compared_is_up_to_the_loss_function(tmp_path: Path) -> None:
    first = compared(tmp_path, lambda m: setattr(m, "times", 1.25), task="statistics").first_divergence
    assert first is not None and first.phase is Phase.LOSS
    assert first.hint == "look at the loss function: reduction, label smoothing, ignored index, weights"
    assert not any("was not compared" in text for text in first.evidence)
