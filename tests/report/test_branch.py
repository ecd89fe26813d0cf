"""The branch of the tree in the text report: what stands in it, and that it fits into a terminal.

``OVERWRITE_GOLDEN=1 pytest tests/report/test_branch.py`` writes the golden files anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.report import branch as branch_module
from probe.report.branch import Line, _laid_out, drawn
from probe.report.layout import packed, shortened, wrapped
from probe.report.text import render
from tests.golden_files import golden
from tests.toys import gpt, module, record, replaced, scaled_gradient


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


def test_several_at_once(tmp_path: Path) -> None:
    def change(model: Any) -> None:
        vars(model.layers)["1"], vars(model.layers)["3"] = vars(model.layers)["3"], vars(model.layers)["1"]

    lines = branch(*pair(tmp_path, change))
    assert [line.split()[1] for line in lines if "✗" in line] == ["layers.1", "layers.3"]


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
