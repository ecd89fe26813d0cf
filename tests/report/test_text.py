"""The text of a report: its first lines, the branch of the tree, what it advises to record next, what printing shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Divergence, Kind, NodeRef
from probe.notes import Note, note
from probe.records import Phase, Role
from probe.report import branch as branch_module
from probe.report.branch import Line, _laid_out, drawn
from probe.report.inspect import facts
from probe.report.layout import packed, shortened, wrapped
from probe.report.text import _code, _with_values, render
from probe.report.words import texts
from probe.store.reading.reader import Reader
from tests.curves.curve_runs import losses, write_csv
from tests.golden_files import golden
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import GPT, batch, gpt, loss_of, module, record, replaced, scaled_gradient

# ---- The branch of the tree in the text report: what stands in it, and that it fits into a terminal.
#
# ``OVERWRITE_GOLDEN=1 pytest tests/report/test_text.py`` writes the golden files anew.


def branch(a: Path, b: Path, width: int = 120, **options: Any) -> list[str]:
    """Return the lines of the branch, without the numbers, with single blanks between columns."""
    found = drawn(probe.compare(a, b, **options), width)
    lines = [] if found is None else re.sub(r"[≈≥]?\d\.\de[+-]\d+", "<number>", found.plain).splitlines()
    return [re.sub(r"(?<=\S) +", " ", line) for line in lines]


def pair(folder: Path, change: Callable[[Any], object], **options: Any) -> tuple[Path, Path]:
    model = gpt(layers=5)
    change(model)
    return record(folder / "a.h5", gpt(layers=5), **options), record(folder / "b.h5", model, **options)


def doubled(path: str) -> Callable[[Any], object]:
    def change(model: Any) -> None:
        kind = type(module(model, path))
        replaced(model, path, forward=lambda self, *given: kind.forward(self, *given) * 2.0)

    return change


def test_the_way_to_a_module_and_what_stands_beside_it(tmp_path: Path) -> None:
    assert branch(*pair(tmp_path, doubled("layers.2.mlp.up"))) == [
        "Where it lies: relative errors of outputs, in the order of A's calls",
        "  (the whole model) GPT <number> ~ from inside",
        "  ├ … 3 before = equal",
        "  └ layers.2 Block <number> ~ from inside",
        "    ├ … 3 before = equal",
        "    └ mlp MLP <number> ~ from inside",
        "      ├ gate Linear 0 = equal",
        "      ├ act SiLU 0 = equal",
        "      ├ up Linear <number> ✗ wrong, the first",
        "      └ down Linear <number> ~ inherits",
    ]


def test_many_siblings_are_counted(tmp_path: Path) -> None:
    assert branch(*pair(tmp_path, doubled("layers.3"))) == [
        "Where it lies: relative errors of outputs, in the order of A's calls",
        "  (the whole model) GPT <number> ~ from inside",
        "  ├ … 2 more = equal",
        "  ├ layers.1 Block 0 = equal",
        "  ├ layers.2 Block 0 = equal",
        "  ├ layers.3 Block <number> ✗ wrong, the first",
        "  ├ layers.4 Block <number> ~ inherits",
        "  ├ norm RMSNorm <number> ~ inherits",
        "  └ head Linear <number> ~ inherits",
    ]


def test_gradients_that_are_passed_back(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        kind = type(module(model, "layers.1.norm2"))
        replaced(model, "layers.1.norm2", forward=lambda self, x: kind.forward(self, scaled_gradient(x, 2.0)))

    recorded = pair(tmp_path, change)
    lines = branch(*recorded)
    assert lines[0] == "Where it lies: relative errors of gradients passed back, in the order of A's calls"
    assert max(map(cell_len, branch(*recorded, width=80))) <= 80
    assert [line.split()[-4:] for line in lines if "✗" in line] == [["✗", "wrong,", "the", "first"]]
    assert next(line for line in lines if "✗" in line).split()[1:3] == ["norm2", "RMSNorm"]
    assert lines[-1].split()[1:3] == ["mlp", "MLP"] and lines[-1].endswith("= equal")


def test_initial_weights_are_summed_up_above_them(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        module(model, "layers.1.mlp.down").weight.data *= np.float32(1.5)

    lines = branch(*pair(tmp_path, change))
    assert lines[0] == "Where it lies: relative errors of initial weights, in the order of A's calls"
    assert [line.split()[-1] for line in lines[1:] if "inside" in line] == ["inside"] * 3
    assert lines[-1].endswith("✗ wrong, the first") and " down " in lines[-1]


def test_what_the_optimizer_did(tmp_path: Path) -> None:
    """The settings of an optimizer are about the whole model: there is no branch."""
    a, b = (
        record(tmp_path / name, model := gpt(), optimizer=nn.AdamW(model.parameters(), lr=rate))
        for name, rate in (("a.h5", 1e-3), ("b.h5", 2e-3))
    )
    found = probe.compare(a, b)
    assert found.verdict == "diverged" and drawn(found, 120) is None
    assert "Where it lies" not in render(found).plain


def test_a_module_that_only_one_side_has_is_not_wrong_beside_one_that_is(tmp_path: Path) -> None:
    wrong = _without(gpt(layers=3), 1)
    replaced(wrong, "embed", forward=lambda self, ids: nn.Embedding.forward(self, ids) * 2)
    lines = branch(record(tmp_path / "a.h5", gpt(layers=3)), record(tmp_path / "b.h5", wrong))
    assert [line for line in lines if "✗" in line and "only in" in line] == []
    assert any("✗ wrong, the first" in line for line in lines) and any("only in A" in line for line in lines)


def test_a_module_that_only_one_side_has(tmp_path: Path) -> None:
    a, b = record(tmp_path / "a.h5", gpt(layers=3)), record(tmp_path / "b.h5", _without(gpt(layers=3), 1))
    lines = branch(a, b)
    assert [line for line in lines if "only in" in line] == ["  ├ layers.1 Block ✗ only in A"]
    lines = branch(b, a)
    assert [line.split()[1:] for line in lines if "only in" in line] == [
        ["B's", "layers.1", "Block", "✗", "only", "in", "B"]
    ]
    (at,) = [number for number, line in enumerate(lines) if "only in" in line]
    assert "layers.0 " in lines[at - 1] and "layers.1 " in lines[at + 1], "where B calls it"


def _without(model: Any, number: int) -> Any:
    kept = [layer for at, layer in enumerate(model.layers) if at != number]
    model.layers = nn.ModuleList(*kept)
    return model


@pytest.mark.thorough
def test_a_call_that_only_one_side_makes(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        layer = module(model, "layers.1")

        def forward(x: Tensor) -> Tensor:
            x = x + layer.attn(layer.norm1(x))
            x = x + layer.mlp(layer.norm2(x))
            return x + layer.mlp(x)

        layer.forward = forward

    lines = branch(*pair(tmp_path, change))
    (line,) = [line for line in lines if "✗" in line]
    assert line.split()[1:] == ["mlp", "MLP", "✗", "a", "call", "only", "in", "B"]


def test_layers_that_are_swapped_are_the_models_own_code(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        vars(model.layers)["1"], vars(model.layers)["3"] = vars(model.layers)["3"], vars(model.layers)["1"]

    found = probe.compare(*pair(tmp_path, change))
    assert drawn(found, 120) is None and found.first_divergence is not None and not found.first_divergence.path
    assert "layers.1 and layers.3 (Block) are swapped" in str(found)


def test_other_inputs_and_what_is_aligned_have_none(tmp_path: Path) -> None:
    found = probe.compare(*pair(tmp_path, lambda model: None))
    assert found.verdict == "aligned" and drawn(found, 120) is None and "Where it lies" not in render(found).plain


def test_a_recording_that_is_gone_is_said(tmp_path: Path) -> None:
    a, b = pair(tmp_path, doubled("layers.3"))
    found = probe.compare(a, b)
    b.unlink()
    shown = drawn(found, 120)
    assert shown is not None and shown.plain == f"The branch of the tree is not shown: there is no file {b}\n"
    assert render(found).plain.startswith("DIVERGED")


# ---- widths --------------------------------------------------------------------------------------------

LONG = "a_very_long_name_of_a_module_as_generated_code_has_them_" * 2


class Holder(nn.Module):
    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__(**{name: inner, "after": nn.ReLU()})

    def forward(self, x: Tensor) -> Tensor:
        for inner in vars(self).values():
            if isinstance(inner, nn.Module):
                x = inner(x)
        return x


class AClassWithANameThatIsLongerThanMostAreAndStillNotUnheardOf(nn.Linear):
    pass


def deep(factor: float) -> nn.Module:
    wrong = AClassWithANameThatIsLongerThanMostAreAndStillNotUnheardOf(4, 4)
    wrong.weight.data[:] = np.eye(4, dtype=np.float32)
    wrong.bias.data[:] = 0
    kind = type(wrong)
    wrong.__class__ = type(kind.__name__, (kind,), {"forward": lambda self, x: kind.forward(self, x) * factor})
    inner: nn.Module = wrong
    for name in ("weights_of_the_experts", LONG, "自己注意機構🔥", "decoder", "model"):
        inner = Holder(name, inner)
    return inner


@pytest.fixture(scope="module")
def deep_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("deep")
    for name, factor in (("a.h5", 1.0), ("b.h5", 0.5)):
        model = deep(factor)
        with probe.capture(model, folder / name, task="tensor"):
            model(Tensor(np.array([[1.0, -2.0, 0.5, 4.0], [3.0, 0.25, -1.5, 2.0]], np.float32)))
            probe.step()
    return folder / "a.h5", folder / "b.h5"


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_everything_fits(deep_pair: tuple[Path, Path], width: int) -> None:
    text = f"{render(probe.compare(*deep_pair), width=width).plain}\n"
    assert max(map(cell_len, text.splitlines())) <= width
    golden(f"compare-deep-{width}", text)


def test_where_there_is_no_terminal_names_are_whole(deep_pair: tuple[Path, Path]) -> None:
    found = probe.compare(*deep_pair)
    assert f"  A {found.first_divergence.path}  AClassWith" in render(found).plain


@pytest.mark.parametrize(
    ("text", "room", "short"),
    [("abcdefghij", 10, "abcdefghij"), ("abcdefghijk", 10, "abc…fghijk"), ("abc", 1, "…"), ("日本語日本語", 6, "…本語"),
     ("e\u0301" * 9, 5, "e\u0301…e\u0301e\u0301e\u0301")],
)  # fmt: skip
def test_shortened(text: str, room: int, short: str) -> None:
    assert shortened(text, room) == short and cell_len(short) <= room


def test_sentences_break_between_words_and_long_words_are_shortened() -> None:
    assert wrapped("one two three", 10, "- ", "  ") == "- one two\n  three"
    assert wrapped("one " + "x" * 20 + " two", 10, "", "  ") == "one\n  xx…xxxxx\n  two"
    assert wrapped("one " + "x" * 20, 10, whole=True) == "one\n" + "x" * 20
    assert packed(["cos 1.0", "norm 2", "max 3"], 16, "  ", "    ") == "  cos 1.0\n    norm 2\n    max 3"


def test_of_modules_without_a_partner_of_which_weights_were_compared_none_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    verdicts = {"q": "equal", "k": "equal", "v": "noise", "lost": "", "silent": ""}
    branch = object.__new__(branch_module._Branch)
    branch.only = {"A": {"q", "k", "v", "lost"}, "B": set()}
    places = [branch_module._Place("A", number, path, "Linear", float(number)) for number, path in enumerate(verdicts)]
    monkeypatch.setattr(branch_module._Branch, "_verdict", lambda self, place: verdicts[place.path])
    assert branch._summary(places[:2]) == "= equal"
    assert branch._summary(places) == "✓ agree, 1 without partner, 1 not compared"


def test_names_are_whole_where_only_a_summary_is_wide() -> None:
    lines = [
        Line("", "(the whole model)", "Qwen3ForCausalLM", "", "  not compared"),
        Line("├ ", "… 5 before", "", "", "✓ agree, 1 without partner, 1 not compared"),
        Line("└ ", "post_attention_layernorm", "Qwen3RMSNorm", "6.6e-05", "✗ wrong, the first", is_wrong=True),
    ]
    assert [row.plain for row in _laid_out(lines, 80)] == [
        "  (the whole model)           Qwen3ForCausalLM             not compared\n",
        "  ├ … 5 before                        ✓ agree, 1 without partner, 1 not compared\n",
        "  └ post_attention_layernorm  Qwen3RMSNorm      6.6e-05  ✗ wrong, the first\n",
    ]
    assert [row.plain for row in _laid_out(lines[:2], 40)][1] == (
        "  ├ … 5 before  ✓ agree, 1 without\n                partner, 1 not compared\n"
    )


# ---- The first lines of an answer: losses, models, where the code is, settings without a known effect; notes that several steps gave.

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
    assert f"  B layers.1.norm2  RMSNorm  output 0  report/test_text.py:{line}\n" in text
    same = render(probe.compare(tmp_path / "a.h5", record(tmp_path / "c.h5", faulty())), width=200).plain
    assert same.count("toy/nn.py:") == 1, "one class on both sides is said once"


@pytest.mark.parametrize(
    ("file", "called_from", "shown"),
    [
        ("/home/me/port/norm.py", "/home/me/port/block.py:12", "port/norm.py:7, called at block.py:12"),
        ("/env/site-packages/torch/nn/modules/linear.py", "C:\\port\\block.py:12", "called at block.py:12"),
    ],
)
def test_where_a_module_is_called_stands_behind_its_code(file: str, called_from: str, shown: str) -> None:
    assert _code(NodeRef(0, 0, "a", "A", 0, "", file, 7, called_from)) == shown


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


# ---- What the report advises to record next, to learn more of the place it names.


def found(a: tuple[NodeRef, ...], b: tuple[NodeRef, ...], **options: Any) -> Divergence:
    return Divergence(Phase.FORWARD, Role.OUTPUT, Kind.INTRODUCED, 0.9, a, b, None, **options)


def place(path: str, slot: str = "0") -> tuple[NodeRef, ...]:
    return (NodeRef(0, 0, path, "Linear", 0, slot),)


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        (place("h.1.ln"), place("h.1.ln"), 'tensors=["h.1.ln"]).'),
        (place("h.1.ln"), place("blocks.1.n"), 'tensors=["h.1.ln"]) in A, tensors=["blocks.1.n"] in B.'),
        # the module's own code is wrong: its inputs alone do not show that, what it hands to the modules inside does
        (place("h.1.attn", ""), place("h.1.attn", ""), 'tensors=["h.1.attn", "h.1.attn.*"]).'),
        # B has no module of its own for it: the values are those of the modules around
        (place("h.1.act"), (), 'task="tensor").'),
        (place(""), place(""), 'task="tensor").'),
    ],
)
def test_what_to_record_next(a: tuple[NodeRef, ...], b: tuple[NodeRef, ...], options: str) -> None:
    assert _with_values(found(a, b)) == f"To learn more, record its values: probe.start(..., {options}"


def test_only_what_is_claimed_can_be_verified() -> None:
    there = place("h.1.ln")
    assert _with_values(found(there, there)).startswith("To learn more, record")
    claim = {"name": "uniform scale", "verified": False}
    assert _with_values(found(there, there, hints=(claim,))).startswith("To verify it, record")


def test_settings_that_were_recorded_need_no_values(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", gpt())
    model = gpt()
    b = record(tmp_path / "b.h5", model, optimizer=nn.AdamW(model.parameters(), lr=2e-3))
    said = render(probe.compare(a, b)).plain
    assert "the settings differ: lr" in said and "record its values" not in said


@pytest.mark.xfail(strict=True, reason="settings that show only later steps are said to show in no number")
def test_settings_that_show_later_are_not_said_to_show_in_no_number(tmp_path: Path) -> None:
    """Another momentum shows in the updates from the second step on."""
    a, b = gpt(), gpt()
    files = (
        record(tmp_path / "a.h5", a, steps=2, optimizer=nn.SGD(a.parameters(), lr=0.1, momentum=0.9)),
        record(tmp_path / "b.h5", b, steps=2, optimizer=nn.SGD(b.parameters(), lr=0.1, momentum=0.8)),
    )
    found = probe.compare(*files)
    first = found.first_divergence
    assert first is not None and (first.step, first.hint) == (
        1,
        "the settings differ: momentum 0.9 against 0.8 (group 0)",
    )
    assert not any("does not show" in warning for warning in found.warnings)


@pytest.mark.xfail(strict=True, reason="a step that is told before the update is an update of one side alone")
def test_a_step_that_is_told_before_the_update_is_the_cause(tmp_path: Path) -> None:
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with (
        pytest.warns(probe.errors.ProbeWarning, match="comes before the optimizer's step"),
        probe.capture(model, tmp_path / "b.h5"),
    ):
        for number in range(2):
            loss = loss_of(model(batch(number)), batch(number))
            loss.backward()
            probe.step(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
    first = probe.compare(record(tmp_path / "a.h5", gpt(), steps=2), tmp_path / "b.h5").first_divergence
    assert first is not None
    assert first.hint == "probe.step() comes before the optimizer's step in B: call it after that, and record again"


@pytest.mark.xfail(strict=True, reason="of a wrong module no parameter of one side alone is named beside it")
def test_a_bias_that_one_side_lacks_stands_beside_the_wrong_output(tmp_path: Path) -> None:
    a, b = gpt(), gpt()
    path = "layers.1.mlp.down"
    rng = np.random.default_rng(0)
    module(a, path).bias.data[...] = rng.normal(size=module(a, path).bias.data.shape)
    own = module(b, path)
    del own.bias
    own.__class__ = type("OwnLinear", (type(own),), {})  # of another class a bias is not taken for granted
    first = probe.compare(record(tmp_path / "a.h5", a), record(tmp_path / "b.h5", b)).first_divergence
    assert first is not None and first.path == path
    assert "only A has bias, not compared" in first.evidence


# ---- What printing an answer shows, and its short form.


def test_an_answer_prints_as_its_report(tmp_path: Path) -> None:
    def faulty() -> nn.Module:
        model = gpt()
        module(model, "layers.1.norm2").eps = 1e-3
        return model

    found = probe.compare(record(tmp_path / "a.h5", gpt()), record(tmp_path / "b.h5", faulty()))
    assert str(found) == render(found, width=80).plain
    assert str(found).startswith(
        "DIVERGED  A a.h5  B b.h5\n  A and B  GPT  44 modules  8.64 K parameters  1 step  numpy "
    )
    assert "\n\nFirst divergence  step 0 · forward · introduced\n" in str(found)
    assert repr(found) == "<Comparison: diverged, first at layers.1.norm2: step 0, forward>"
    assert repr(found.first_divergence).startswith(
        "<Divergence: layers.1.norm2: step 0, forward output, introduced, confidence 0."
    )
    output = found["layers.1.norm2"].output[0]
    assert repr(output).startswith("<layers.1.norm2 output 0, step 0: ") and repr(output).endswith(", introduced>")
    assert " relative error, norm B/A 0." in str(output)
    assert repr(output) in str(found["layers.1.norm2"])
    again = probe.compare(tmp_path / "a.h5", record(tmp_path / "c.h5", gpt()))
    assert repr(again) == "<Comparison: aligned>"


def test_files_of_one_name_have_their_folders(tmp_path: Path) -> None:
    files = []
    for folder in ("torch", "paddle"):
        (tmp_path / folder).mkdir()
        files.append(record(tmp_path / folder / "run.h5", gpt()))
    found = probe.compare(*files)
    assert str(found).startswith("ALIGNED  A torch/run.h5  B paddle/run.h5\n")
    assert "A torch/run.h5 · B paddle/run.h5" in found._repr_html_()
    assert repr(probe.open(files[0])) == "<probe recording run.h5: numpy, 1 step>"


def test_a_comparison_of_curves_prints_as_its_report(tmp_path: Path) -> None:
    values = losses(200)
    a = write_csv(tmp_path / "a.csv", loss=values)
    found = probe.curves(a, write_csv(tmp_path / "b.csv", loss=values + 0.5 * (values < values[100])))
    assert str(found).startswith("DIVERGED  A a.csv (")
    assert repr(found).startswith("<CurveComparison: diverged, first: ") and "\n" not in repr(found)
    assert repr(probe.curves(a, write_csv(tmp_path / "c.csv", loss=values))).startswith("<CurveComparison: ")
