"""Inputs, labels and masks: equal, in another notation, differentiated by, or guessed from what a model is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe import origins
from probe.answer.comparison import Comparison
from probe.answer.result import Kind, Verdict
from probe.records import Phase, Role
from probe.report.text import render
from tests.toy import nn
from tests.toy.tensor import Tensor, cross_entropy, no_grad, softmax
from tests.toys import GPT, LENGTH, VOCABULARY, WIDTH, batch, gpt, loss_of, module, record
from tests.verdict.planted import TASKS, Model, said

# ---- Inputs and labels: said to be equal where they are, and the first thing that is said where they are not.

LABELS = np.arange(12).reshape(2, 6)
OTHER = np.where(LABELS == 7, 3, LABELS)
IMAGE = np.random.default_rng(0).normal(size=(2, 6)).astype("float32")


class WithLabels(GPT):
    """A model that is given its labels, and computes its loss itself."""

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        return logits if labels is None else (cross_entropy(logits, labels), logits)


def run(
    path: Path, *, before: dict[str, np.ndarray] | None = None, after: dict[str, np.ndarray] | None = None,
    labels: np.ndarray | None = None, evaluate: bool = False, model: nn.Module | None = None, **options: Any,
) -> Path:  # fmt: skip
    """Record two steps in which arrays are logged before and after the model ran, or labels are given to it."""
    model = gpt() if model is None else model
    model.__class__ = WithLabels

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Any:
        for name, array in (before or {}).items():
            probe.log(name, Tensor(array))
        if evaluate:
            with no_grad():
                model(batch(number))
            return 0.0
        given = {} if labels is None else {"labels": Tensor(labels)}
        output = model(batch(number), **given)
        for name, array in (after or {}).items():
            probe.log(name, Tensor(array))
        loss = loss_of(output, batch(number)) if labels is None else output[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return record(path, model, steps=2, step=step, **options)


def compared(tmp_path: Path, a: dict[str, Any], b: dict[str, Any], **options: Any) -> Comparison:
    return probe.compare(run(tmp_path / "a.h5", **a, **options), run(tmp_path / "b.h5", **b, **options))


def line(found: Comparison) -> str:
    return next(each for each in render(found).plain.splitlines() if each.startswith("Inputs: "))


@pytest.mark.parametrize("task", TASKS)
def test_equal_inputs_are_said_to_be(tmp_path: Path, task: str) -> None:
    logged: dict[str, Any] = {"before": {"image": IMAGE}, "after": {"targets": LABELS}}
    found = compared(tmp_path, logged, logged, task=task)
    assert found.verdict is Verdict.ALIGNED
    assert set(found.inputs.equal) == {"image", "targets", "0"}
    assert found.as_json()["inputs"] == {
        "equal": ["image", "0", "targets"], "close": [], "different": [], "not_comparable": [], "only_a": [], "only_b": []
    }  # fmt: skip
    assert line(found) == "Inputs: image, argument 0, targets equal on both sides"


def test_inputs_that_were_rounded_otherwise(tmp_path: Path) -> None:
    rounded = IMAGE * np.float32(1 + 2**-23)
    found = compared(tmp_path, {"before": {"image": IMAGE}}, {"before": {"image": rounded}})
    assert (found.verdict, found.inputs.close) == (Verdict.ALIGNED, ("image",))
    assert line(found) == "Inputs: argument 0 equal on both sides; image equal but for rounding"


def assert_input(found: Comparison, slot: str, role: Role, text: str, more: str = "") -> None:
    first = found.first_divergence
    assert first is not None
    assert (first.kind, first.path, first.role, first.a[0].slot) == (Kind.INPUTS, "", role, slot)
    assert first.evidence[0] == text
    assert first.hint == f"feed both sides the same batch before looking at anything else{more}"
    assert found.divergences == (first,), "what comes behind other inputs is a consequence"
    assert slot in found.inputs.different


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("where", "name", "a", "b"),
    [
        ("before", "image", IMAGE, IMAGE[::-1].copy()),
        ("before", "labels", LABELS, OTHER),
        ("after", "labels", LABELS, OTHER),
    ],
    ids=["floats before", "integers before", "integers after"],
)
def test_a_logged_batch_that_differs(tmp_path: Path, task: str, where: str, name: str, a: Any, b: Any) -> None:
    found = compared(tmp_path, {where: {name: a}}, {where: {name: b}}, task=task)
    is_turned = name == "image" and task == "tensor"
    more = "; B has the indices of axis 0 of A in another order, the last first (verified)" if is_turned else ""
    assert_input(found, name, Role.VALUE, f"{name}, which the program logged beside the model, differs", more)
    assert line(found) == f"Inputs: argument 0 equal on both sides; {name} different"


def test_a_logged_batch_of_another_size(tmp_path: Path) -> None:
    found = compared(tmp_path, {"before": {"y": LABELS}}, {"before": {"y": LABELS[:, :3].copy()}})
    first = found.first_divergence
    assert first is not None and first.kind is Kind.INPUTS
    assert "[2, 6]" in first.evidence[0] and found.inputs.not_comparable == ("y",)


@pytest.mark.xfail(strict=True, reason="what the program logs behind the model is not judged")
def test_floats_that_are_logged_behind_the_model_are_computed_from_it(tmp_path: Path) -> None:
    """They are no inputs: what the program does with the outputs is wrong."""
    found = compared(tmp_path, {"after": {"probabilities": IMAGE}}, {"after": {"probabilities": IMAGE[::-1].copy()}})
    assert found.first_divergence is not None and found.first_divergence.kind is Kind.INTRODUCED
    assert found.inputs.equal == ("0",) and not found.inputs.different


@pytest.mark.parametrize("task", TASKS)
def test_labels_that_are_given_by_keyword(tmp_path: Path, task: str) -> None:
    equal = compared(tmp_path, {"labels": LABELS}, {"labels": LABELS}, task=task)
    assert equal.verdict is Verdict.ALIGNED and set(equal.inputs.equal) == {"0", "labels"}
    for file in tmp_path.iterdir():
        file.unlink()
    found = compared(tmp_path, {"labels": LABELS}, {"labels": OTHER}, task=task)
    assert_input(found, "labels", Role.INPUT, "the model is given different inputs")


@pytest.mark.xfail(
    strict=True, reason="an input on one side is not held against what the other one logs under its name"
)
def test_labels_that_one_side_gives_to_the_model_and_the_other_logs(tmp_path: Path) -> None:
    for labels, kind in ((LABELS, None), (OTHER, Kind.INPUTS)):
        for one_is_a in (True, False):
            folder = tmp_path / f"{kind}-{one_is_a}"
            folder.mkdir()
            sides: list[dict[str, Any]] = [{"labels": LABELS}, {"before": {"labels": labels}}]
            found = compared(folder, *(sides if one_is_a else sides[::-1]))
            first = found.first_divergence
            if kind is None:
                assert "labels" in found.inputs.equal and (first is None or first.kind is not Kind.INPUTS)
            else:
                assert first is not None and (first.kind, first.a[0].slot) == (Kind.INPUTS, "labels")


def test_an_input_that_one_side_alone_has(tmp_path: Path) -> None:
    found = compared(tmp_path, {"labels": LABELS}, {})
    assert found.inputs.only_a == ("labels",) and "labels only in A" in line(found)


def test_an_input_that_differs_in_a_later_step_is_not_called_equal(tmp_path: Path) -> None:
    def other_step(number: int) -> Callable[..., Any]:
        def step(model: nn.Module, optimizer: nn.Optimizer, at: int) -> Any:
            with no_grad():
                model(batch(at if at < 1 else number))
            return 0.0

        return step

    found = probe.compare(
        record(tmp_path / "a.h5", steps=2, step=other_step(1)), record(tmp_path / "b.h5", steps=2, step=other_step(5))
    )
    assert found.first_divergence is not None and found.first_divergence.step == 1
    assert (found.inputs.equal, found.inputs.different) == ((), ("0",))


def test_an_input_that_was_rounded_otherwise_in_one_step_is_not_called_equal(tmp_path: Path) -> None:
    def rounded(factor: float) -> Callable[..., Any]:
        def step(model: nn.Module, optimizer: nn.Optimizer, at: int) -> Any:
            probe.log("image", Tensor(IMAGE * np.float32(factor if at == 0 else 1.0)))
            with no_grad():
                model(batch(at))
            return 0.0

        return step

    a = record(tmp_path / "a.h5", steps=2, step=rounded(1.0))
    found = probe.compare(a, record(tmp_path / "b.h5", steps=2, step=rounded(1 + 2**-23)))
    assert (found.inputs.equal, found.inputs.close) == (("0",), ("image",))


def test_what_is_logged_where_nothing_is_trained(tmp_path: Path) -> None:
    a = run(tmp_path / "a.h5", before={"labels": LABELS}, evaluate=True)
    found = probe.compare(a, run(tmp_path / "b.h5", before={"labels": OTHER}, evaluate=True))
    assert_input(found, "labels", Role.VALUE, "labels, which the program logged beside the model, differs")
    found = probe.compare(a, run(tmp_path / "c.h5", before={"labels": LABELS}, evaluate=True))
    assert found.verdict is Verdict.ALIGNED and set(found.inputs.equal) == {"labels", "0"}


class DistributedDataParallel(nn.Module):
    """A wrapper, by its name."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module=module)

    def forward(self, ids: Tensor) -> Tensor:
        return self.module(ids)


@pytest.mark.parametrize("labels", [LABELS, OTHER], ids=["equal", "other"])
def test_what_is_logged_where_one_side_is_wrapped(tmp_path: Path, labels: np.ndarray) -> None:
    def step(model: nn.Module, optimizer: nn.Optimizer, at: int) -> Any:
        probe.log("labels", Tensor(labels if isinstance(model, DistributedDataParallel) else LABELS))
        loss = loss_of(model(batch(at)), batch(at))
        loss.backward()
        return loss

    a = record(tmp_path / "a.h5", step=step)
    found = probe.compare(a, record(tmp_path / "b.h5", DistributedDataParallel(gpt()), step=step))
    if labels is LABELS:
        assert found.verdict is Verdict.ALIGNED and "labels" in found.inputs.equal
    else:
        assert found.first_divergence is not None and found.first_divergence.kind is Kind.INPUTS


def test_where_no_inputs_were_recorded(tmp_path: Path) -> None:
    found = compared(tmp_path, {}, {}, phases=["update"])
    assert line(found) == "Inputs: none were compared"


def test_other_seeds_and_origins_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(name: str, seed: int, inputs: int) -> Path:
        monkeypatch.setattr(origins, "_facts", {})
        origins.note(seed=seed)
        probe.make_inputs({"x": "float32[2]"}, seed=inputs)
        return record(tmp_path / name)

    a = recorded("a.h5", 1, 1)
    found = probe.compare(a, recorded("b.h5", 2, 3))
    assert said(found, "the seeds are not the same: 1 in A, 2 in B")
    only = ("make_inputs, seed 1: x float32[2] normal only in A", "make_inputs, seed 3: x float32[2] normal only in B")
    assert said(found, f"the inputs do not come from the same: {', '.join(only)}")
    assert not probe.compare(a, recorded("c.h5", 1, 1)).warnings
    monkeypatch.setattr(origins, "_facts", {})
    assert not probe.compare(a, record(tmp_path / "d.h5")).warnings


# ---- Models whose masks say the same in other notations: True is what is kept, or what is masked, or what is added to scores.

KEPT = np.tril(np.ones((1, 1, LENGTH, LENGTH), bool))
KEPT[..., :2] = True
CAUSAL = np.tril(np.ones((1, 1, LENGTH, LENGTH), bool))
KINDS = {"kept": KEPT, "masked": ~KEPT, "added": np.where(KEPT, 0.0, np.finfo("float32").min).astype("float32")}


class Attention(nn.Module):
    """Attention that is given its mask."""

    def __init__(self, kind: str, factor: float) -> None:
        super().__init__(qkv=nn.Linear(WIDTH, 3 * WIDTH), out=nn.Linear(WIDTH, WIDTH), kind=kind, factor=factor)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (self.qkv(x)[..., i * WIDTH : (i + 1) * WIDTH] for i in range(3))
        if mask is None:
            kept = CAUSAL
        else:
            kept = {"kept": mask.data, "masked": ~mask.data.astype(bool), "added": mask.data == 0}[self.kind]
        scores = q @ k.swapaxes(-1, -2) * (self.factor / WIDTH**0.5)
        return self.out(softmax(scores + np.where(kept[:, 0], 0.0, -np.inf)) @ v)


class MasksModel(nn.Module):
    """Two layers, each of which is handed the model's mask."""

    def __init__(self, kind: str, factor: float = 1.0, first: float = 1.0) -> None:
        nn.manual_seed(0)
        layers = nn.Sequential(*(Attention(kind, f) for f in (first, factor)))
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), layers=layers, head=nn.Linear(WIDTH, VOCABULARY))

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x, mask)
        return self.head(x)


def trained(path: Path, kind: str, masks: Any = KINDS, factor: float = 1.0, first: float = 1.0, **options: Any) -> Path:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        given = (Tensor(masks[kind]),) if kind in masks else ()
        loss = loss_of(model(batch(number), *given), batch(number))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return record(path, MasksModel(kind, factor, first), step=step, **options)


@pytest.fixture(params=["tensor", "statistics"])
def task_masks(request: pytest.FixtureRequest) -> str:
    return request.param


def compared_masks(tmp_path: Path, task: str, kinds: tuple[str, str], **options: Any) -> Comparison:
    a = trained(tmp_path / "a.h5", kinds[0], task=task)
    return probe.compare(a, trained(tmp_path / "b.h5", kinds[1], task=task, **options))


@pytest.mark.parametrize("kinds", [("kept", "masked"), ("added", "masked"), ("kept", "added")], ids=str)
def test_masks_that_say_the_same(tmp_path: Path, task_masks: str, kinds: tuple[str, str]) -> None:
    found = compared_masks(tmp_path, task_masks, kinds)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert "argument 0, argument 1 equal on both sides" in render(found).plain


@pytest.mark.parametrize("kinds", [("kept", "masked"), ("added", "masked"), ("kept", "added")], ids=str)
def test_they_hide_no_fault_behind_them(tmp_path: Path, task_masks: str, kinds: tuple[str, str]) -> None:
    first = compared_masks(tmp_path, task_masks, kinds, factor=1.01).first_divergence
    assert first is not None and (first.path, first.confidence > 0.9) == ("layers.1", True)


@pytest.mark.parametrize("kinds", [("kept", "masked"), ("added", "masked"), ("kept", "added")], ids=str)
def test_one_that_masks_more_is_another_input(tmp_path: Path, task_masks: str, kinds: tuple[str, str]) -> None:
    more = KEPT.copy()
    more[..., :2] = np.tril(np.ones((LENGTH, LENGTH), bool))[:, :2]
    masks = {"masked": ~more, "added": np.where(more, 0.0, -np.inf).astype("float32")}
    first = compared_masks(tmp_path, task_masks, kinds, masks=masks).first_divergence
    assert first is not None and first.path == "" and first.a[0].slot == "1"
    assert first.evidence[0].endswith("compared by where they mask")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_causal_mask_that_one_side_alone_is_given_is_not_to_blame(
    tmp_path: Path, task_masks: str, kind: str, swapped: bool
) -> None:
    masks = {"kept": CAUSAL, "masked": ~CAUSAL, "added": np.where(CAUSAL, 0.0, -np.inf).astype("float32")}
    a = trained(tmp_path / "a.h5", "none", task=task_masks)
    same = trained(tmp_path / "same.h5", kind, masks, task=task_masks)
    b = trained(tmp_path / "b.h5", kind, masks, first=1.01, task=task_masks)
    assert probe.compare(a, same).verdict is Verdict.ALIGNED
    found = probe.compare(b, a) if swapped else probe.compare(a, b)
    assert found.first_divergence is not None and found.first_divergence.path == "layers.0"


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_masks_something_else_is_to_blame(tmp_path: Path, task_masks: str, kind: str) -> None:
    a = trained(tmp_path / "a.h5", "none", task=task_masks)
    first = probe.compare(a, trained(tmp_path / "b.h5", kind, task=task_masks)).first_divergence
    assert first is not None and first.path == "layers.0"
    assert any("argument 1" in text or " 1" in text for text in first.evidence), (
        "what one side alone is given is evidence"
    )


# ---- A model that is given labels and makes its inputs of them, against one that is given those inputs: the same form, other names.

LABELS_GUESSED = np.asarray(batch(0).data)


def shifted(labels: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros_like(labels[:, :1]), labels[:, :-1]], axis=1)


class OfLabels(GPT):
    """Makes what it embeds of its labels, as encoder-decoders of transformers do."""

    def forward(self, labels: Tensor) -> Any:
        return cross_entropy(super().forward(Tensor(shifted(labels.data))), labels)


class OfInputs(GPT):
    """Is given what it embeds; the loss is made outside."""

    def forward(self, ids: Tensor) -> Any:
        return super().forward(ids)


def run_guessed(
    path: Path,
    kind: type[GPT],
    task: str,
    change: Any = None,
    given: np.ndarray = LABELS_GUESSED,
    loss: np.ndarray = LABELS_GUESSED,
) -> Path:
    model = gpt()
    model.__class__ = kind
    if change is not None:
        change(model)

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Any:
        if kind is OfLabels:
            value = model(labels=Tensor(given))
        else:
            value = cross_entropy(model(Tensor(shifted(given))), Tensor(loss))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        return value

    return record(path, model, steps=2, step=step, task=task)


def compared_guessed(folder: Path, task: str = "statistics", *, swapped: bool = False, **options: Any) -> Comparison:
    files = run_guessed(folder / "a.h5", OfLabels, task), run_guessed(folder / "b.h5", OfInputs, task, **options)
    return probe.compare(*(files[::-1] if swapped else files))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("swapped", [False, True])
def test_labels_are_not_held_against_inputs_that_are_made_of_them(tmp_path: Path, task: str, swapped: bool) -> None:
    found = compared_guessed(tmp_path, task, swapped=swapped)
    assert found.verdict is Verdict.ALIGNED, found
    ours, theirs = (found.inputs.only_b, found.inputs.only_a) if swapped else (found.inputs.only_a, found.inputs.only_b)
    assert set(ours) <= {"labels"} and set(theirs) <= {"0"}


@pytest.mark.parametrize("task", TASKS)
def test_a_fault_behind_them_is_named(tmp_path: Path, task: str) -> None:
    first = compared_guessed(
        tmp_path, task, change=lambda m: setattr(module(m, "layers.1.norm2"), "eps", 1e-3)
    ).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.norm2")


def test_other_labels_are_a_wrong_loss(tmp_path: Path) -> None:
    first = compared_guessed(
        tmp_path, loss=np.where(LABELS_GUESSED == LABELS_GUESSED[0, 0], LABELS_GUESSED[0, 1], LABELS_GUESSED)
    ).first_divergence
    assert first is not None and (first.phase, first.path) in ((Phase.LOSS, ""), (Phase.BACKWARD, ""))


def test_inputs_that_are_made_of_other_labels_are_other_inputs(tmp_path: Path) -> None:
    first = compared_guessed(tmp_path, given=np.roll(LABELS_GUESSED, 2, axis=1)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "")


class Both(GPT):
    def forward(self, ids: Tensor, labels: Tensor) -> Any:
        return cross_entropy(super().forward(ids), labels)


class ByAnotherName(Both):
    def forward(self, ids: Tensor, targets: Tensor) -> Any:
        return super().forward(ids, targets)


def test_labels_that_are_what_both_sides_are_given_are_still_held_against_others(tmp_path: Path) -> None:
    """What B is given as labels is handed on, too: A hands the same on, but was given it."""
    files = []
    for name, kind, slot, labels in (
        ("a", Both, "labels", np.roll(LABELS_GUESSED, 2, axis=1)),
        ("b", ByAnotherName, "targets", LABELS_GUESSED),
    ):
        model = gpt()
        model.__class__ = kind

        def step(
            model: Model, optimizer: nn.Optimizer, number: int, slot: str = slot, labels: np.ndarray = labels
        ) -> Any:
            loss = model(Tensor(LABELS_GUESSED), **{slot: Tensor(labels)})
            loss.backward()
            return loss

        files.append(record(tmp_path / f"{name}.h5", model, steps=1, step=step))
    first = probe.compare(*files).first_divergence
    assert first is not None and first.kind is Kind.INPUTS


# ---- Frameworks that differentiate by everything that the model is given, integers too, as MindSpore does.


class Layer(nn.Module):
    """Adds a bias that is made of a mask."""

    def __init__(self) -> None:
        super().__init__(linear=nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x) + mask


class Masked(nn.Module):
    """Makes a mask of the ids; ``cut`` takes the hidden states out of the graph."""

    def __init__(self, cut: bool = False) -> None:
        nn.manual_seed(0)
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH), layer=Layer(), head=nn.Linear(WIDTH, VOCABULARY))
        self.cut = cut

    def forward(self, ids: Tensor) -> Tensor:
        mask = Tensor((ids.data[..., None] % 3 - 1).astype("float32"), ids.requires_grad)
        x = self.embed(ids)
        return self.head(self.layer(Tensor(x.data) if self.cut else x, mask))


def files(folder: Path, **options: bool) -> tuple[Path, Path]:
    """Record the model in two frameworks, of which the second differentiates by the ids."""

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        ids = batch(number)
        loss = cross_entropy(model(Tensor(ids.data, asks[0])), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    asks, paths = [False], []
    for name, model in (("a", Masked(**options)), ("b", Masked())):
        asks[0] = name == "b"
        paths.append(record(folder / f"{name}.h5", model, step=step))
    return paths[0], paths[1]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_mask_that_learns_where_the_batch_does_is_no_cut(tmp_path: Path, swapped: bool) -> None:
    a, b = files(tmp_path)
    found = probe.compare(b, a) if swapped else probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found


def test_hidden_states_that_are_cut_off_are_found_all_the_same(tmp_path: Path) -> None:
    found = probe.compare(*files(tmp_path, cut=True))
    assert found.verdict is Verdict.DIVERGED
    assert found.divergences[0].path in ("", "embed"), found
