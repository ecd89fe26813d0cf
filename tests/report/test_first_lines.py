"""The first lines of an answer: losses, models, where the code is, settings without a known effect; notes that several steps gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.comparison.notes import Note, note
from probe.comparison.result import NodeRef
from probe.comparison.run import Comparison
from probe.report.inspect import facts
from probe.report.text import _code, render
from probe.report.words import texts
from probe.store.reading.reader import Reader
from tests.toys import GPT, batch, gpt, loss_of, module, record, replaced

NAN = float("nan")


def recorded(path: Path, model: Any, *losses: float | None) -> Path:
    """Record a forward a step, and what is said to be its loss."""
    with probe.capture(model, path):
        for step, loss in enumerate(losses):
            for each in model if isinstance(model, list) else [model]:
                each(batch(step))
            probe.step(**({} if loss is None else {"loss": loss}))
    return path


def compared(tmp_path: Path, a: tuple[float | None, ...], b: tuple[float | None, ...]) -> Comparison:
    return probe.compare(recorded(tmp_path / "a.h5", gpt(), *a), recorded(tmp_path / "b.h5", gpt(), *b))


def header(found: Comparison) -> list[str]:
    return str(found).partition("\n\n")[0].splitlines()


# Losses


@pytest.mark.parametrize(
    ("a", "b", "line"),
    [
        ((1.0855861,), (1.0856122,), "  loss 1.085586 | 1.085612"),
        ((1.08558612,), (1.08558614,), "  loss 1.08558612 | 1.08558614"),  # as many digits as tell them apart
        ((3.0,), (3.0,), "  loss 3.000000 | 3.000000"),
        ((3.0,), (None,), "  loss 3.000000 | –"),
        ((NAN,), (2.5,), "  loss nan | 2.500000"),
        ((3.0, 2.0, 1.0), (3.0, 2.0, 1.5), "  loss 3.000000 | 3.000000 (step 0)  1.000000 | 1.500000 (step 2)"),
    ],
)
def test_the_header_has_the_losses(
    tmp_path: Path, a: tuple[float | None, ...], b: tuple[float | None, ...], line: str
) -> None:
    assert [each for each in header(compared(tmp_path, a, b)) if "loss" in each][-1:] == [line]


def test_without_a_loss_there_is_no_line(tmp_path: Path) -> None:
    found = compared(tmp_path, (None,), (None,))
    assert len(header(found)) == 2 and found.as_json()["runs"]["a"]["losses"] == []  # type: ignore[index]


def test_json_has_the_first_and_the_last_loss(tmp_path: Path) -> None:
    runs = compared(tmp_path, (3.0, 2.0, NAN), (3.0, 2.0, 1.0)).as_json()["runs"]
    assert [runs[side]["losses"] for side in "ab"] == [[[0, 3.0], [2, None]], [[0, 3.0], [2, 1.0]]]  # type: ignore[index]


# Models


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__(embed=nn.Embedding(19, 4))

    def forward(self, ids: Any) -> Any:
        return self.embed(ids)


def test_a_list_is_named_by_its_models_and_has_their_parameters(tmp_path: Path) -> None:
    files = [recorded(tmp_path / f"{name}.h5", [gpt(), Critic()], 1.0) for name in "ab"]
    found = probe.compare(*files)
    count = sum(parameter.data.size for model in (gpt(), Critic()) for parameter in model.parameters())
    assert (found.runs[0].models, found.runs[0].parameters) == (("GPT", "Critic"), count)
    assert header(found)[1].startswith("  A and B  GPT and Critic  46 modules  8.72 K parameters")
    with Reader(files[0]) as reader:
        assert facts(reader)["model"].startswith("GPT and Critic, 47 modules, ")
    shown = probe.open(files[0])._repr_html_()
    assert "GPT and Critic" in shown and f"{count:,} parameters" in shown


# Where the code is


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/me/env/lib/python3.11/site-packages/diffusers/models/attention.py", "diffusers/models/attention.py:7"),
        ("/usr/lib/python3/dist-packages/timm/layers/mlp.py", "timm/layers/mlp.py:7"),
        ("/home/me/port/model/norm.py", "model/norm.py:7"),
        ("C:\\port\\model\\norm.py", "model/norm.py:7"),
        ("norm.py", "norm.py:7"),
        ("/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", ""),  # its documentation says more
        ("", ""),
    ],
)
def test_code_is_named_as_people_know_it(file: str, shown: str) -> None:
    assert _code(NodeRef(0, 0, "a", "A", 0, "", file, 7)) == shown


def test_the_code_of_both_sides_is_in_text_and_json(tmp_path: Path) -> None:
    def forward(self: Any, x: Any) -> Any:
        return nn.RMSNorm.forward(self, x) * 1.1

    def other() -> GPT:
        model = gpt()
        replaced(model, "layers.1.norm2", forward=forward, __module__=__name__)
        return model

    found = probe.compare(record(tmp_path / "a.h5"), record(tmp_path / "b.h5", other()))
    first = found.first_divergence
    assert first is not None and first.b[0].path == "layers.1.norm2"
    line = forward.__code__.co_firstlineno
    place = first.as_json()["b"][0]  # type: ignore[index]
    assert (place["file"], place["line"]) == (__file__, line)
    text = render(found, width=200).plain
    assert f"  B layers.1.norm2  RMSNorm  output 0  report/test_first_lines.py:{line}\n" in text
    same = render(probe.compare(tmp_path / "a.h5", record(tmp_path / "c.h5", faulty())), width=200).plain
    assert same.count("numpy/nn.py:") == 1, "one class on both sides is said once"


def faulty(**config: Any) -> GPT:
    model = gpt()
    module(model, "layers.1.norm2").eps = 1e-3
    model.config = {"model_type": "llama", **config}
    return model


# Settings


def odd(self: Any, x: Any) -> Any:
    return x * np.float32(1.0) + np.float32(0.3) * x[::-1]


def test_a_setting_of_unknown_effect_is_listed_where_nothing_is_certain(tmp_path: Path) -> None:
    a, b = gpt(), gpt()
    a.config, b.config = {"flip_sin_to_cos": True}, {"flip_sin_to_cos": False}
    replaced(b, "layers.1.norm2", forward=odd)
    found = probe.compare(record(tmp_path / "a.h5", a), record(tmp_path / "b.h5", b))
    assert "  flip_sin_to_cos  True  False  effect unknown\n" in render(found, width=80).plain


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_verified_hint_is_enough(tmp_path: Path, task: str) -> None:
    files = record(tmp_path / "a.h5", task=task), record(tmp_path / "b.h5", faulty(flip_sin_to_cos=True), task=task)
    with_setting = gpt()
    with_setting.config = {"model_type": "llama", "flip_sin_to_cos": False}
    files[0].unlink()
    record(files[0], with_setting, task=task)
    found = probe.compare(*files)
    is_verified = any(hint["verified"] for hint in found.first_divergence.hints)  # type: ignore[union-attr]
    assert is_verified == (task == "tensor")
    assert ("flip_sin_to_cos  " in render(found).plain) == (not is_verified)
    assert "flip_sin_to_cos  " in render(found, verbose=True).plain


# Notes


def swapped(step: int) -> Note:
    return note("calls-in-another-order", step=step, paths=("a", "b"))


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ([note("step-aborted", side="A", step=3)], ["A: step 3 was ended by an exception"]),
        (
            [note("logged-otherwise", step=step, name="lr", a=0.1 * step, b=2.0, square="") for step in range(1, 5)],
            ["step 1: lr was logged as 0.1 in A and 2 in B; what was logged is judged by probe curves alone (also in steps 2–4)"],
        ),
        (
            [note("step-aborted", side=side, step=step) for step in (1, 4) for side in "AB"],
            [f"{side}: step 1 was ended by an exception (also in step 4)" for side in "AB"],
        ),
        (
            [note("order-of-calls-not-recorded", change=swapped(step)) for step in (0, 2, 5)],
            [f"{note('order-of-calls-not-recorded', change=swapped(0))} (also in steps 2, 5)"],
        ),
        ([note("same-run")] * 2, ["both files are the same run: it was compared with itself"]),
    ],
)  # fmt: skip
def test_a_note_is_said_once_with_its_steps(notes: list[Note], expected: list[str]) -> None:
    assert list(texts(notes)) == expected


@pytest.mark.thorough
def test_a_report_says_it_once(tmp_path: Path) -> None:
    """Every step of B makes one forward more without gradients."""
    from tests.toys import evaluate

    def twice(model: Any, optimizer: Any, step: int) -> Any:
        evaluate(model, optimizer, step)
        loss = loss_of(model(batch(step)), batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def calls_again(self: Any, ids: Any) -> Any:
        self.embed(ids)
        return GPT.forward(self, ids)

    again = gpt()
    again.__class__ = type("GPT", (GPT,), {"forward": calls_again})
    found = probe.compare(record(tmp_path / "a.h5", steps=4), record(tmp_path / "b.h5", again, steps=4, step=twice))
    text = render(found, verbose=True).plain
    assert len(found.warnings) == len({warning.partition(" (also in")[0] for warning in found.warnings})
    assert "also in steps 1–3)" in text.replace("\n      ", " "), text
