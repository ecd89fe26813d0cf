"""What a recorded model was given: ids, special ids, padding, mask, labels, and the first sample that differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.checks.data import Data, check_data
from probe.checks.data.batches import as_mask
from probe.checks.data.labels import Habit, Shift, habit_of, shift_of
from probe.checks.data.padding import Side, side_of
from probe.checks.outcome import State, Status
from probe.records import ModuleInfo
from tests.cli.running import run as run_command
from tests.golden_files import golden
from tests.toy import nn
from tests.toy.tensor import Tensor

ROWS, PAD = 50, 0
IDS = np.array([[1, 7, 9, 30, 12, 2], [1, 8, 44, 2, 0, 0], [1, 5, 6, 21, 2, 0]])
MASK = (IDS != PAD).astype(np.int64)
LABELS = np.where(IDS == PAD, -100, IDS)
CONFIG = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": PAD, "vocab_size": ROWS}


class Model(nn.Module):
    """Looks ids up."""

    def __init__(self, config: dict[str, Any], rows: int) -> None:
        table = nn.Embedding(rows, 4)
        super().__init__(embed=table, head=nn.Linear(4, rows))
        self.config = config

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        return self.head(self.embed(input_ids))


def recorded(
    path: Path, ids: np.ndarray = IDS, mask: np.ndarray | None = MASK, labels: np.ndarray | None = LABELS, *,
    config: dict[str, Any] = CONFIG, rows: int = ROWS, parts: int = 1, task: str = "tensor", steps: int = 1, **logged: Any,
) -> Path:  # fmt: skip
    nn.manual_seed(0)
    given = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    with probe.capture(model := Model(config, rows), path, task=task):
        for _ in range(steps):
            for at in range(parts):
                named = {
                    name: Tensor(np.array_split(each, parts)[at]) for name, each in given.items() if each is not None
                }
                model(**named).sum().backward()
            for name, value in logged.items():
                probe.log(name, value)
            probe.step()
    return path


def states(found: Data) -> dict[str, State]:
    return {line.topic: line.state for line in found.lines}


def code(found: Data, topic: str) -> str:
    return next(line.said.code for line in found.lines if line.topic == topic)


def test_right_data_pass(tmp_path: Path) -> None:
    found = check_data(recorded(tmp_path / "a.h5"))
    assert found.status is Status.CLEAN and set(states(found).values()) == {State.OK}
    assert set(states(found)) == {
        "ids within the vocabulary",
        "special ids",
        "padding side",
        "mask against pad id",
        "labels",
    }


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("token", [ROWS, -1])
def test_ids_outside_the_vocabulary_are_found_from_statistics_too(tmp_path: Path, token: int, task: str) -> None:
    ids = IDS.copy()
    ids[0, 3] = token
    nn.Embedding.forward, kept = (lambda self, x: Tensor(self.weight.data[x.data % ROWS])), nn.Embedding.forward  # type: ignore[method-assign]
    try:
        path = recorded(tmp_path / "a.h5", ids, labels=None, task=task)
    finally:
        nn.Embedding.forward = kept  # type: ignore[method-assign]
    found = check_data(path)
    assert states(found)["ids within the vocabulary"] is State.FOUND
    facts = found.found[0].facts
    assert (facts["rows"], token in (facts["low"], facts["high"])) == (ROWS, True)


def test_labels_outside_the_vocabulary(tmp_path: Path) -> None:
    labels = LABELS.copy()
    labels[0, 0] = ROWS + 3
    assert [note.code for note in check_data(recorded(tmp_path / "a.h5", labels=labels)).found] == [
        "labels-outside-vocabulary"
    ]


def test_special_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    found = check_data(recorded(tmp_path / "a.h5", config={**CONFIG, "eos_token_id": [2, ROWS]}))
    assert [note.code for note in found.found] == ["special-ids-outside"]


# Padding


@pytest.mark.parametrize(
    ("rows", "side"),
    [
        (["1111", "1111"], Side.NONE), (["1100", "1111"], Side.RIGHT), (["0011", "1111"], Side.LEFT), (["0011", "1100"], Side.BOTH),
        (["1011", "1111"], Side.INSIDE), (["0110", "1111"], Side.BOTH), (["0000", "1100"], Side.RIGHT),
    ],
)  # fmt: skip
def test_where_padding_stands(rows: list[str], side: Side) -> None:
    assert side_of(np.array([[each == "1" for each in row] for row in rows])) is side


def test_masks_of_both_kinds() -> None:
    kept = np.array([True, False])
    for mask in (kept, kept.astype(np.int64), np.array([0.0, -np.inf]), np.array([0.0, -1e9]), np.array([1.0, 0.0])):
        assert as_mask(mask).tolist() == kept.tolist()


def with_hole(ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mask[0, 2] = 0
    labels[0, 2] = -100
    return ids, mask, labels


def with_shown_padding(
    ids: np.ndarray, mask: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    mask[1, 4] = 1
    return ids, mask, labels


def with_trained_padding(
    ids: np.ndarray, mask: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return ids, mask, ids


def shifted_back(ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return ids, mask, np.concatenate([np.full((3, 1), -100), labels[:, :-1]], axis=1)


@pytest.mark.parametrize(
    ("change", "topic", "wanted"),
    [
        (with_hole, "mask against pad id", "mask-against-pad-id"), (with_hole, "padding side", "padding-on-both-sides"),
        (with_shown_padding, "mask against pad id", "mask-against-pad-id"), (with_trained_padding, "labels", "padding-is-trained-on"),
        (shifted_back, "labels", "labels-shifted"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_batch(tmp_path: Path, change: Callable[..., Any], topic: str, wanted: str) -> None:
    found = check_data(recorded(tmp_path / "a.h5", *change(IDS.copy(), MASK.copy(), LABELS.copy())))
    assert found.status is Status.FOUND
    assert wanted in [line.said.code for line in found.lines if line.topic == topic and line.state is State.FOUND]


def test_the_place_of_a_wrong_mask(tmp_path: Path) -> None:
    found = check_data(recorded(tmp_path / "a.h5", *with_shown_padding(IDS.copy(), MASK.copy(), LABELS.copy())))
    facts = next(note for note in found.found if note.code == "mask-against-pad-id").facts
    assert (facts["step"], facts["sample"], facts["position"], facts["token"], facts["is_kept"]) == (0, 1, 4, PAD, True)


def test_an_end_of_sequence_that_is_the_pad_id_too_is_no_fault(tmp_path: Path) -> None:
    ids = np.where(IDS == PAD, 2, IDS)  # padded with the end of the sequence, of which the first counts
    found = check_data(recorded(tmp_path / "a.h5", ids, config={**CONFIG, "pad_token_id": 2}))
    assert states(found)["mask against pad id"] is State.OK and found.status is Status.CLEAN


def test_padding_without_a_mask(tmp_path: Path) -> None:
    found = check_data(recorded(tmp_path / "a.h5", mask=None))
    assert [note.code for note in found.found] == ["padding-without-mask"]


def test_an_end_of_sequence_that_is_the_pad_id_too_needs_no_mask(tmp_path: Path) -> None:
    ids = np.where(IDS == PAD, 2, IDS)
    found = check_data(recorded(tmp_path / "a.h5", ids, mask=None, config={**CONFIG, "pad_token_id": 2}))
    assert "mask against pad id" not in states(found)


# Labels


@pytest.mark.parametrize(
    ("labels", "shift"),
    [
        (LABELS, Shift.NONE), (np.concatenate([LABELS[:, 1:], np.full((3, 1), -100)], axis=1), Shift.NEXT),
        (np.concatenate([np.full((3, 1), -100), LABELS[:, :-1]], axis=1), Shift.PREVIOUS), (np.where(LABELS > 8, 40, -100), Shift.OTHER),
        (np.full_like(LABELS, -100), Shift.OTHER),
    ],
)  # fmt: skip
def test_which_ids_labels_are(labels: np.ndarray, shift: Shift) -> None:
    assert shift_of(IDS, labels) is shift


@pytest.mark.parametrize(
    ("file", "name", "habit"),
    [
        ("/x/site-packages/transformers/models/qwen2/modeling_qwen2.py", "Qwen2ForCausalLM", Habit.MODEL),
        ("C:\\py\\transformers\\models\\gpt2\\modeling_gpt2.py", "GPT2LMHeadModel", Habit.MODEL),
        ("/opt/megatron/core/models/gpt/gpt_model.py", "GPTModel", Habit.BATCH), ("/home/me/model.py", "GPTModel", None),
        ("/x/transformers/models/bert/modeling_bert.py", "BertForMaskedLM", None),
    ],
)  # fmt: skip
def test_who_shifts_labels(file: str, name: str, habit: Habit | None) -> None:
    assert habit_of(ModuleInfo("", name, -1, file)) is habit


def test_the_label_of_the_last_token_is_padding_where_labels_are_the_next_ids(tmp_path: Path) -> None:
    right = np.concatenate([LABELS[:, 1:], np.full((3, 1), -100)], axis=1)
    assert check_data(recorded(tmp_path / "a.h5", labels=right)).status is Status.CLEAN
    wrong = right.copy()
    wrong[1, 3] = PAD  # position 3 is the last token, and position 4 padding
    (said,) = check_data(recorded(tmp_path / "b.h5", labels=wrong)).found
    assert (said.code, said.facts["sample"], said.facts["position"]) == ("padding-is-trained-on", 1, 3)


def test_labels_that_are_the_ids_and_are_given_before_them(tmp_path: Path) -> None:
    with probe.capture(model := Model(CONFIG, ROWS), tmp_path / "a.h5", task="tensor"):
        model(labels=Tensor(IDS), input_ids=Tensor(IDS))
        probe.step()
    assert code(check_data(tmp_path / "a.h5"), "labels") == "labels-shifted"


def test_labels_that_are_the_ids_are_known_from_statistics(tmp_path: Path) -> None:
    found = check_data(recorded(tmp_path / "a.h5", mask=None, labels=IDS, task="statistics"))
    assert states(found)["labels"] is State.OK and "at the same positions" in str(found)


def test_logged_labels_count_too(tmp_path: Path) -> None:
    with probe.capture(model := Model(CONFIG, ROWS), tmp_path / "a.h5", task="tensor"):
        model(Tensor(IDS), attention_mask=Tensor(MASK))
        probe.log("labels", Tensor(LABELS))
        probe.step()
    assert code(check_data(tmp_path / "a.h5"), "labels") == "labels-shifted"


# What needs values


def test_what_statistics_do_not_tell_is_said(tmp_path: Path) -> None:
    found = check_data(recorded(tmp_path / "a.h5", task="statistics"))
    assert found.status is Status.CLEAN
    unknown = {line.topic: line.said.code for line in found.lines if line.state is State.UNKNOWN}
    assert unknown == dict.fromkeys(("padding side", "mask against pad id", "labels"), "data-needs-values")


def test_a_full_mask_is_known_from_statistics(tmp_path: Path) -> None:
    ids = np.where(IDS == PAD, 3, IDS)
    found = check_data(recorded(tmp_path / "a.h5", ids, np.ones_like(ids), ids, task="statistics"))
    assert states(found)["padding side"] is State.OK


@pytest.mark.parametrize("task", ["structure", "norms"])
def test_a_recording_without_inputs_is_not_checked(tmp_path: Path, task: str) -> None:
    path = recorded(tmp_path / "a.h5", task=task)
    assert check_data(path).status is Status.UNCHECKED
    assert run_command("check", "data", path).exit_code == 2


# Two recordings


def test_equal_batches(tmp_path: Path) -> None:
    a, b = (
        recorded(tmp_path / "a.h5", task="statistics", steps=2),
        recorded(tmp_path / "b.h5", task="statistics", steps=2),
    )
    found = check_data(a, b)
    assert states(found)["samples"] is State.OK and found.status is Status.CLEAN


def test_the_first_sample_that_differs(tmp_path: Path) -> None:
    ids = IDS.copy()
    ids[1, 2], ids[2, 1] = 45, 46
    found = check_data(
        recorded(tmp_path / "a.h5"), recorded(tmp_path / "b.h5", ids, labels=np.where(ids == PAD, -100, ids))
    )
    first = found.difference
    assert first is not None and (first.field, first.sample, first.position, first.a, first.b, first.rows) == (
        "token ids", 1, (2,), 44.0, 45.0, (2, 3),
    )  # fmt: skip
    assert first.ids == (tuple(IDS[1].tolist()), tuple(ids[1].tolist())) and first.same_elsewhere == -1


def shifted(labels: np.ndarray) -> np.ndarray:
    return np.concatenate([labels[:, 1:], np.full((len(labels), 1), -100)], axis=1)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("task", "state"), [("tensor", State.OK), ("statistics", State.UNKNOWN)])
def test_labels_that_one_side_shifts_itself_are_right(tmp_path: Path, task: str, state: State, turned: bool) -> None:
    names = [
        recorded(tmp_path / f"{at}.h5", labels=labels, task=task) for at, labels in enumerate((LABELS, shifted(LABELS)))
    ]
    found = check_data(*(names[::-1] if turned else names))
    (line,) = [each for each in found.lines if each.said.code == "labels-of-one-side-shifted"]
    assert (line.state, found.status) == (state, Status.CLEAN)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_labels_that_are_shifted_and_others_are_found(tmp_path: Path, task: str) -> None:
    ids = np.random.default_rng(0).integers(3, ROWS, (2, 64))
    other = np.where(shifted(ids) >= 0, ROWS - 1, -100)
    names = [recorded(tmp_path / f"{at}.h5", ids, None, labels, task=task) for at, labels in enumerate((ids, other))]
    assert {"sample-differs", "batches-differ"} & {each.code for each in check_data(*names).found}


def test_samples_in_another_order(tmp_path: Path) -> None:
    order = [0, 2, 1]
    found = check_data(recorded(tmp_path / "a.h5"), recorded(tmp_path / "b.h5", IDS[order], MASK[order], LABELS[order]))
    assert found.difference is not None and (found.difference.sample, found.difference.same_elsewhere) == (1, 2)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_batch_that_is_split_otherwise_is_put_together(tmp_path: Path, parts: int) -> None:
    whole, split = recorded(tmp_path / "a.h5"), recorded(tmp_path / "b.h5", parts=parts)
    assert states(check_data(whole, split))["samples"] is State.OK
    other = recorded(tmp_path / "c.h5", IDS[::-1], MASK[::-1], LABELS[::-1], parts=parts)
    found = check_data(whole, other).difference
    assert found is not None and (found.sample, found.micro) == (0, 0 if parts == 1 else -1)


def test_from_statistics_the_step_is_named_and_values_are_asked_for(tmp_path: Path) -> None:
    ids = np.where(IDS == 9, 10, IDS)
    a, b = (recorded(tmp_path / f"{at}.h5", each, task="statistics") for at, each in enumerate((IDS, ids)))
    found = check_data(a, b)
    assert found.difference is None and code(found, "samples") == "batches-differ"


def test_other_shapes_padding_and_special_ids(tmp_path: Path) -> None:
    left = np.stack([np.concatenate([row[row == PAD], row[row != PAD]]) for row in IDS])
    b = recorded(tmp_path / "b.h5", left, (left != PAD).astype(np.int64), np.where(left == PAD, -100, left),
                 config={**CONFIG, "bos_token_id": 3})  # fmt: skip
    found = check_data(recorded(tmp_path / "a.h5"), b)
    assert {"padding-sides-differ", "special-ids-differ", "sample-differs"} <= {note.code for note in found.found}
    short = recorded(tmp_path / "c.h5", IDS[:, :5], MASK[:, :5], LABELS[:, :5])
    assert code(check_data(tmp_path / "a.h5", short), "samples") == "batches-of-other-shapes"


def test_the_size_and_version_of_the_dataset(tmp_path: Path) -> None:
    a, b, c = (recorded(tmp_path / f"{size}.h5", dataset_size=size, dataset_version=3.0) for size in (100, 90, 101))
    assert states(check_data(a))["dataset"] is State.OK
    assert code(check_data(a, b), "dataset") == "datasets-differ"
    assert "dataset_size 100 in A, 101 in B" in str(check_data(a, c))


# The command


@pytest.mark.thorough
def test_the_command(tmp_path: Path) -> None:
    right = recorded(tmp_path / "a.h5")
    wrong = recorded(tmp_path / "b.h5", *shifted_back(IDS.copy(), MASK.copy(), LABELS.copy()))
    assert run_command("check", "data", right).exit_code == 0
    result = run_command("check", "data", right, wrong)
    assert result.exit_code == 1 and all(len(line) <= 80 for line in result.stdout.splitlines())
    golden("check-data", result.stdout, (r"^FOUND .*(\n  /.*)*", "FOUND  <files>"))
    document = json.loads(run_command("check", "data", right, wrong, "--json").stdout)
    assert document["status"] == "found" and document["difference"]["field"] == "labels"
    missing = run_command("check", "data", right, "--tokenizer", tmp_path)
    assert missing.exit_code == 3 and "tokenizer" in missing.stderr
