"""What is computed in another order or in other parts; how parts lie in a weight, and rows that a side has padded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Kind, Verdict
from probe.records import Phase
from tests.toy import nn
from tests.toy.tensor import Tensor, cross_entropy, operation
from tests.toys import (
    BATCH,
    GPT,
    LAYERS,
    LENGTH,
    MLP,
    VOCABULARY,
    WIDTH,
    batch,
    evaluate,
    gpt,
    module,
    record,
    replaced,
)
from tests.verdict.planted import TASKS, Clean, Model, Recorder, changed, said

# ---- What is computed in another order, or in other parts.


class Sorter(nn.Module):
    """Runs a module over its rows in an order of its own, or in two parts; returns them as they came."""

    def __init__(self, how: str, inner: Model) -> None:
        super().__init__(how=how, inner=inner)
        self.__class__ = type(f"{'' if how == 'as they are' else 'Other'}Sorter", (Sorter,), {})  # other code

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        if self.how == "as they are":
            return self.inner(rows).reshape(*x.shape)
        order = np.random.default_rng(1).permutation(rows.shape[0])
        if self.how == "in parts":
            order = np.arange(rows.shape[0])
            parts = [self.inner(rows[order[:5]]).data, self.inner(rows[order[5:]]).data]
            spread = operation(np.concatenate(parts), (x, lambda g: g.reshape(x.shape)))
            return spread.reshape(*x.shape)
        return self.inner(rows[order])[np.argsort(order)].reshape(*x.shape)


def _with_sorter(how: str, inner: Callable[[], Model] = nn.SiLU) -> GPT:
    return changed(lambda m: setattr(module(m, "layers.1.mlp"), "after", Sorter(how, inner()))
                   or replaced(m, "layers.1.mlp", forward=lambda s, x: s.after(MLP.forward(s, x))))  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_rows_in_another_order_inside_a_call_that_returns_the_same(run: Recorder, task: str) -> None:
    a, b = run(_with_sorter("as they are"), task=task), run(_with_sorter("shuffled"), task=task)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert said(found, "at input 0 of layers.1.mlp.after.inner and 1 more the sides differ")
    assert "introduced" not in {slot.verdict for slot in found["layers.1.mlp.after.inner"]}


def test_rows_in_parts_inside_a_call_that_returns_the_same(run: Recorder) -> None:
    def forward_only(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        return evaluate(model, optimizer, number)

    found = probe.compare(
        run(_with_sorter("as they are"), step=forward_only), run(_with_sorter("in parts"), step=forward_only)
    )
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert not found["layers.1.mlp.after.inner"][0].metrics.is_known


def test_rows_in_another_order_that_are_not_put_back(run: Recorder) -> None:
    wrong = _with_sorter("shuffled")
    replaced(wrong, "layers.1.mlp.after", forward=lambda s, x: s.inner(x.reshape(-1, WIDTH)[::-1]).reshape(*x.shape))
    first = probe.compare(run(_with_sorter("as they are")), run(wrong)).first_divergence
    assert first is not None and first.path == "layers.1.mlp.after"


def test_what_vanishes_behind_a_call_is_said(run: Recorder) -> None:
    class Plus(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.much

    def model(much: float) -> GPT:
        made = _with_sorter("as they are", lambda: Plus(much=much))
        replaced(made, "layers.1.mlp.after", forward=lambda s, x: s.inner(x) - s.inner.much)
        return made

    found = probe.compare(run(model(0.5)), run(model(0.25)))
    assert found.verdict is Verdict.ALIGNED, "neither the loss nor a gradient keeps anything of it"
    assert said(found, "at output 0 of layers.1.mlp.after.inner the sides differ")


class Window(nn.Module):
    """The difference of neighbours; what it is given without a row behind the last one, it pads by itself."""

    by = np.float32(1)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.shape[1] > LENGTH else _padded(x)

        def back(g: np.ndarray) -> np.ndarray:
            behind = np.pad(g, ((0, 0), (0, 1), (0, 0)))
            return behind - self.by * np.roll(behind, 1, 1)

        return operation(x.data[:, :-1] - self.by * x.data[:, 1:], (x, back))


def _padded(x: Tensor) -> Tensor:
    return operation(np.pad(x.data, ((0, 0), (0, 1), (0, 0))), (x, lambda g: g[:, :-1]))


def _with_window(*, inside: bool, by: float = 1) -> GPT:
    def change(model: Model) -> None:
        module(model, "layers.1.mlp").window = Window()
        replaced(model, "layers.1.mlp.window", by=np.float32(by))
        replaced(model, "layers.1.mlp", forward=lambda s, x: MLP.forward(s, s.window(x if inside else _padded(x))))

    return changed(change)


@pytest.mark.parametrize("task", TASKS)
def test_padding_by_the_module_on_one_side_and_before_it_on_the_other(run: Recorder, task: str) -> None:
    """MindSpore's ``pad_mode="same"``, and ``F.pad`` before a convolution without padding."""
    a, b = run(_with_window(inside=False), task=task), run(_with_window(inside=True), task=task)
    for found in (probe.compare(a, b), probe.compare(b, a)):
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        (text,) = found.warnings
        assert text.startswith("could not be compared: input 0 of layers.1.mlp.window (shape [2, ")


@pytest.mark.parametrize("task", TASKS)
def test_another_shape_where_what_is_returned_differs_is_a_divergence(run: Recorder, task: str) -> None:
    a, b = run(_with_window(inside=False), task=task), run(_with_window(inside=True, by=1.001), task=task)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INTRODUCED, "layers.1.mlp.window")


# ---- Rows in one other order in all layers: a layout where both sides read them so, and a fault where what uses them does not.

ORDER = np.random.default_rng(3).permutation(WIDTH // 2)
"""of the rows of the first head"""
SMALL = 0.1
"""queries and keys as small as before training: whatever their order, scores are about 0"""


def model(*names: str) -> nn.Module:
    """Make a model in which the named weights of all layers have the rows of their first head in another order."""
    made = gpt()
    for layer in range(LAYERS):
        for name in ("attn.q", "attn.k"):
            module(made, f"layers.{layer}.{name}").weight.data *= SMALL
        for name in names:
            rows = module(made, f"layers.{layer}.{name}").weight.data
            rows[: len(ORDER)] = rows[ORDER]
    return made


@pytest.mark.parametrize(
    ("name", "task"),
    [(name, task) for name in ("attn.q", "attn.k", "mlp.up") for task in ("tensor", "statistics")]
    + [("attn.v", "tensor")],
)
def test_rows_that_nothing_reads_in_that_order_are_a_fault(run: Recorder, name: str, task: str) -> None:
    first = probe.compare(run(model(), task=task), run(model(name), task=task)).first_divergence
    assert first is not None and (first.phase, first.a[0].path) == (Phase.INIT, f"layers.0.{name}")


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_queries_and_keys_in_the_same_order_are_a_layout(run: Recorder, task: str) -> None:
    found = probe.compare(run(model(), task=task), run(model("attn.q", "attn.k"), task=task))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert sum("hold the same rows in another order" in text for text in found.warnings) == 2


# ---- Errors that lie in padding alone: kernels differ in rows that see no key, and nobody looks at these.

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


@pytest.mark.xfail(strict=True, reason="what differs in padding alone is no note of its own")
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


@pytest.mark.xfail(strict=True, reason="a loss that counts the padding is charged to what returns it")
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
    assert found.verdict is Verdict.ALIGNED


def test_padding_that_a_loss_is_computed_from_is_charged(tmp_path: Path) -> None:
    first = compared(tmp_path, _other_rows(PADDING), returns_loss=False, counts_all=True).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.attn")


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


# ---- A vocabulary that one side has padded, on small models of the numpy framework.

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
    how = "compared by norm, mean and extremes alone" if task == "statistics" else "compared"
    assert said(
        found, f"a table, such as the vocabulary, has {24 if is_a else 19} rows in A and {19 if is_a else 24} in B: "
    )
    assert said(found, f"what both have is {how}")


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
    assert said(found, "a table, such as the vocabulary, has 19 rows in A and 24 in B: ")
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


class Behind(nn.Embedding):
    """It keeps two rows in front for other uses, as learned positions do in some code bases."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(Tensor(ids.data + 2))


@pytest.mark.parametrize("task", TASKS)
def test_rows_in_front_are_no_finding(clean: Clean, run: Recorder, task: str) -> None:
    model = gpt()
    model.embed.__class__ = Behind
    rows = np.full((2, model.embed.weight.shape[1]), 0.5, np.float32)
    model.embed.weight.data = np.concatenate([rows, model.embed.weight.data])
    files = [run(gpt(), task=task), run(model, task=task)]
    for a, b in (files, files[::-1]):
        found = probe.compare(a, b)
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        told = [warning for warning in found.warnings if warning.startswith("a table, such as the vocabulary, ")]
        how = "what both have is compared" if task == "tensor" else "without recorded values"
        assert len(told) == 1 and how in told[0]
        weights = [s.verdict for s in found["embed"] if s.phase is Phase.INIT and s.metrics.is_known]
        assert set(weights) == ({"equal"} if task == "tensor" else set())


def test_a_padded_tensor_is_read_some_rows_at_a_time(
    clean: Clean, run: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.verdict.distance.values.READ", 64)
    model = padded(0.5)
    module(model, "head").weight.data[VOCABULARY - 1] += 1
    first = probe.compare(clean("tensor"), record_padded(run, model, "tensor")).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "head")
    assert first.metrics.max_abs_at[0] == VOCABULARY - 1
