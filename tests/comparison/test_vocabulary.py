"""A vocabulary that one side has padded, on small models of the numpy framework."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, cross_entropy
from probe.comparison.result import Kind, Verdict
from probe.records import Phase
from tests.comparison.planted import TASKS, Clean, Recorder, said
from tests.toys import VOCABULARY, batch, gpt, module

EXTRA = 5


def padded(fill: float = 0.0) -> nn.Module:
    """Return the model with rows more in the embedding and in the output weight."""
    model = gpt()
    for name in ("embed", "head"):
        weight = module(model, name).weight
        rows = np.full((EXTRA, weight.shape[1]), fill, np.float32)
        weight.data = np.concatenate([weight.data, rows])
    return model


def step_over(size: int):  # noqa: ANN201
    """Return a step with a loss over so many columns of the logits."""

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        ids = batch(number)
        loss = cross_entropy(model(ids)[:, :-1, :size], Tensor(ids.data[:, 1:]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def record_padded(run: Recorder, model: nn.Module, task: str, size: int = VOCABULARY) -> Path:
    return run(model, task=task, steps=2, step=step_over(size))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("is_a", [True, False])
def test_padding_is_no_finding(clean: Clean, run: Recorder, task: str, is_a: bool) -> None:
    files = [clean(task), record_padded(run, padded(), task)]
    found = probe.compare(*(files[::-1] if is_a else files))
    assert found.verdict is Verdict.ALIGNED
    side, sizes = ("A", "24 in A, 19 in B") if is_a else ("B", "19 in A, 24 in B")
    assert said(
        found, f"weight of embed, weight of head: {side} has 5 rows more ({sizes}), as padding of a vocabulary makes"
    )


@pytest.mark.parametrize("task", TASKS)
def test_what_is_wrong_behind_it_is_found(clean: Clean, run: Recorder, task: str) -> None:
    model = padded()
    module(model, "layers.1.norm2").eps = 1e-3
    first = probe.compare(clean(task), record_padded(run, model, task)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.norm2")


@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_row_that_both_have_is_found(clean: Clean, run: Recorder, task: str) -> None:
    model = padded()
    module(model, "embed").weight.data[3] *= 4
    first = probe.compare(clean(task), record_padded(run, model, task)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "embed")


def swapped_rows() -> nn.Module:
    model = padded()
    weight = module(model, "head").weight
    weight.data = weight.data[[1, 0, *range(2, len(weight.data))]]
    return model


def test_rows_in_another_order_are_named_by_values_and_what_statistics_tell_is_said(
    clean: Clean, run: Recorder
) -> None:
    found = probe.compare(clean("statistics"), record_padded(run, swapped_rows(), "statistics"))
    first = found.first_divergence
    assert first is not None and first.phase is Phase.LOSS
    assert first.evidence[2].startswith("of outputs with a padded vocabulary norm, mean and extremes are compared: ")
    assert said(
        found, "by norm, mean and extremes alone: rows that stand in another order are not seen (task='tensor' "
    )
    found = probe.compare(clean("tensor"), record_padded(run, swapped_rows(), "tensor"))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "head")
    assert not said(found, "rows that stand in another order")


@pytest.mark.parametrize("task", TASKS)
def test_a_loss_over_the_padding_is_found(clean: Clean, run: Recorder, task: str) -> None:
    found = probe.compare(clean(task), record_padded(run, padded(), task, VOCABULARY + EXTRA))
    first = found.first_divergence
    assert first is not None and first.phase is Phase.LOSS


def test_padding_that_is_not_zero_needs_values(clean: Clean, run: Recorder) -> None:
    found = probe.compare(clean("statistics"), record_padded(run, padded(0.5), "statistics"))
    assert found.verdict is Verdict.ALIGNED
    assert said(found, "the vocabulary has 19 entries in A and 24 in B: ")
    found = probe.compare(clean("tensor"), record_padded(run, padded(0.5), "tensor"))
    assert found.verdict is Verdict.ALIGNED


def test_more_rows_of_another_weight_stay_a_finding(run: Recorder) -> None:
    wide = gpt()
    for name in ("gate", "up"):
        found = module(wide, f"layers.1.mlp.{name}")
        found.weight.data = np.concatenate([found.weight.data, np.zeros((EXTRA, found.weight.shape[1]), np.float32)])
        found.bias.data = np.concatenate([found.bias.data, np.zeros(EXTRA, np.float32)])
    down = module(wide, "layers.1.mlp.down")
    down.weight.data = np.concatenate([down.weight.data, np.zeros((down.weight.shape[0], EXTRA), np.float32)], axis=1)
    first = probe.compare(run(), run(wide)).first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.INIT, Kind.SHAPE)


def test_a_rule_silences_a_size(run: Recorder) -> None:
    wide = gpt()
    wide.embed.weight.data = np.concatenate([wide.embed.weight.data] * 2, axis=1)
    narrow = {"forward": lambda self, ids: nn.Embedding.forward(self, ids)[..., :16]}
    wide.embed.__class__ = type("Embedding", (nn.Embedding,), narrow)
    a, b = run(), run(wide)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.SHAPE, "embed")
    rules = [{"path": "embed", "phase": "init", "ignore": True}]
    assert probe.compare(a, b, rules=rules).verdict is not Verdict.DIVERGED


@pytest.mark.parametrize("task", TASKS)
def test_what_is_given_integers_is_an_embedding_whatever_its_class_is_called(run: Recorder, task: str) -> None:
    def looked_up(model: nn.Module) -> nn.Module:
        model.embed.__class__ = type("Lookup", (nn.Embedding,), {})
        return model

    a, b = (
        run(looked_up(gpt()), task=task, steps=2, step=step_over(VOCABULARY)),
        record_padded(run, looked_up(padded()), task),
    )
    assert probe.compare(a, b).verdict is Verdict.ALIGNED


def test_tolerances_are_for_what_both_have(clean: Clean, run: Recorder) -> None:
    tolerances = {"atol": 1e-5, "rtol": 1e-5}
    assert (
        probe.compare(clean("tensor"), record_padded(run, padded(0.5), "tensor"), **tolerances).verdict
        is Verdict.ALIGNED
    )
    model = padded(0.5)
    module(model, "head").weight.data[3, 0] += 1e-2
    first = probe.compare(clean("tensor"), record_padded(run, model, "tensor"), **tolerances).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "head")
