"""What the model is given, in recordings of whole runs: hashes, ids on request, and what `probe curves` says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.curve_comparison.result import Sample
from probe.errors import NotRecordedError
from probe.records import HashKind
from probe.store.reading.reader import Reader
from probe.testing import Recording
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad

VOCABULARY = 30
FAULT = 12


class Net(nn.Module):
    """Is given ids and, by name, a scale of floats."""

    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, 4), layers=nn.ModuleList(nn.Linear(4, 4)), head=nn.Linear(4, 3))

    def forward(self, input_ids: Tensor, scale: Tensor) -> Tensor:
        (layer,) = self.layers
        return self.head(layer(self.embed(input_ids)) * scale)


@pytest.fixture(autouse=True)
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    probe.stop()


def batches(count: int = 20, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, (3, 5)) for _ in range(count)]


def train(name: str, given: Sequence[np.ndarray], *, parts: int = 1, keyword: str = "", **options: Any) -> str:
    nn.manual_seed(0)
    model = Net()
    optimizer = nn.SGD(model.parameters(), 0.1)
    scale = np.ones(4, np.float32)
    with probe.capture(model, name, **{"task": "norms", **options}):
        for ids in given:
            total = 0.0
            for part in np.array_split(ids, parts):
                inputs = {keyword: Tensor(part)} if keyword else {}
                out = model(*(() if keyword else (Tensor(part),)), **inputs, scale=Tensor(scale))
                loss = (out * out).sum() * (0.01 / parts)
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            with no_grad():
                model(Tensor(given[0]), scale=Tensor(scale))
            probe.step(loss=total)
    return name


def inputs(name: str) -> list[Any]:
    return Recording(Path(name)).find(role="input")


# What is recorded


@pytest.mark.parametrize(
    "options, slots, has_values",
    [
        ({}, {"0"}, False),
        ({"batch": "hash"}, {"0"}, False),
        ({"batch": "all"}, {"0", "scale"}, False),
        ({"batch": "ids"}, {"0"}, True),
        ({"modules": "layers.0"}, {"0"}, False),
        ({"phases": "update"}, set(), False),
    ],
)
def test_norms_have_the_hash_of_what_the_model_is_given(
    options: dict[str, Any], slots: set[str], has_values: bool
) -> None:
    given = batches(3)
    found = inputs(train("a.h5", given, **options))
    assert {(s.step, s.micro, s.path, s.slot) for s in found} == {
        (step, 0, "", slot) for step in range(3) for slot in slots
    }
    assert all(s.hash_kind != HashKind.NONE for s in found)
    for s in found:
        assert (s.values is not None) == has_values
        if has_values:
            assert np.array_equal(s.values, given[s.step])
    with Reader("a.h5") as reader:
        assert not reader.sketches.any()


def test_ids_beside_statistics() -> None:
    found = inputs(train("a.h5", batches(2), task="statistics", batch="ids"))
    assert {(s.path, s.slot) for s in found if s.values is not None} == {("", "0")}
    assert {s.path for s in found} > {"", "embed", "head"}


def test_the_ids_of_a_step() -> None:
    given = batches(4)
    with probe.open(train("a.h5", given, parts=3, batch="ids")) as run:
        assert [np.array_equal(run.batch(2, micro)["0"], given[2][micro : micro + 1]) for micro in range(3)] == [
            True
        ] * 3
        with pytest.raises(
            NotRecordedError, match='has no values of what the model was given in step 9: record with batch="ids"'
        ):
            run.batch(9)
    with probe.open(train("b.h5", given)) as run, pytest.raises(NotRecordedError):
        run.batch(0)


# What is said of two runs


def test_the_same_data() -> None:
    given = batches()
    found = probe.curves(train("a.h5", given), train("b.h5", given)).batches
    assert found is not None and (found.steps, found.first, found.samples) == (20, None, ())
    assert "the models are given the same in 20 steps" in str(probe.curves("a.h5", "b.h5"))


@pytest.mark.parametrize("task", ["norms", "statistics"])
def test_other_data_from_a_step_on(task: str) -> None:
    given, others = batches(), batches(seed=1)
    a = train("a.h5", given, task=task)
    b = train("b.h5", [*given[:FAULT], *others[FAULT:]], task=task, batch="ids")
    answer = probe.curves(a, b)
    found = answer.batches
    assert found is not None and (found.first, found.names, found.moved) == (FAULT, ("argument 0",), None)
    assert answer.first_step == FAULT
    rows = tuple(map(tuple, others[FAULT].tolist()))
    assert found.samples == (Sample("B", "argument 0", (3, 5), rows),)
    text = str(answer)
    assert f"other data from step {FAULT} on (argument 0): look at the" in text
    assert "  B: argument 0 [3, 5]\n    0: " in text and max(map(len, text.splitlines())) <= 80
    assert answer.as_json()["batches"]["first"] == FAULT  # type: ignore[index]


@pytest.mark.parametrize("by, said", [(1, "B has A's 1 step later"), (-2, "B has A's 2 steps earlier")])
def test_data_that_come_earlier_or_later(by: int, said: str) -> None:
    given = batches(24)
    moved = [*given[:FAULT], *(given[step - by] for step in range(FAULT, 22))]
    answer = probe.curves(train("a.h5", given[:22]), train("b.h5", moved))
    assert answer.batches is not None and (answer.batches.first, answer.batches.moved) == (FAULT, by)
    assert said in " ".join(str(answer).split())


def test_a_jump_of_the_loss_shows_the_samples_of_its_step() -> None:
    given = batches()
    train("a.h5", given, batch="ids")
    forward = Net.forward
    calls: list[None] = []

    def jumping(self: Net, input_ids: Tensor, scale: Tensor) -> Tensor:
        calls.append(None)
        return forward(self, input_ids, scale) * (3.0 if len(calls) == 2 * FAULT + 1 else 1.0)

    Net.forward = jumping  # type: ignore[method-assign]
    try:
        train("b.h5", given, batch="ids")
    finally:
        Net.forward = forward  # type: ignore[method-assign]
    answer = probe.curves("a.h5", "b.h5")
    assert answer.first_step == FAULT and answer.batches is not None and answer.batches.first is None
    assert answer.batches.samples == (Sample("A", "argument 0", (3, 5), tuple(map(tuple, given[FAULT].tolist()))),)
    assert f"what the models were given is the same on both sides up to step {FAULT}" in str(answer)


def test_other_names_and_other_parts() -> None:
    given, others = batches(), batches(seed=1)
    train("a.h5", given)
    found = probe.curves("a.h5", train("named.h5", given, keyword="input_ids")).batches
    assert found is not None and (found.steps, found.first) == (20, None)
    found = probe.curves("a.h5", train("other.h5", others, keyword="input_ids")).batches
    assert found is not None and found.first == 0
    assert probe.curves("a.h5", train("parts.h5", given, parts=3)).batches is None  # other hashes of the same data


def test_what_other_dtypes_hold_is_not_known() -> None:
    given = batches()
    train("a.h5", given)
    found = probe.curves("a.h5", train("b.h5", [each.astype(np.int32) for each in given])).batches
    assert found is not None and found.first is None


@pytest.mark.thorough
def test_probe_compare_says_of_norms_what_it_said() -> None:
    train("a.h5", batches())
    for other in (batches(), batches(seed=1)):
        train("b.h5", other, overwrite=True)
        answer = probe.compare("a.h5", "b.h5")
        assert answer.verdict == "undecided" and "compare two such recordings" in " ".join(str(answer).split())
