"""Micro-batches against the whole batch in models of transformers whose tokens are sorted by expert."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import probe  # noqa: E402
from benchmarks.localisation.pairs.pair import Planted, Setup  # noqa: E402
from benchmarks.ranks import splits  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from tests.torch.test_causes_torch import compared, places  # noqa: E402

MIXTRAL = Setup("mixtral", dtype="autocast", steps=1, optimizer="sgd", seed=93325)
MICROS = {"attention": "eager", "micros": 4}


def test_tokens_of_an_expert_stand_in_another_order(tmp_path: Path) -> None:
    """What is inside the experts may be rounded as far as what they return, in 16 bits."""
    found = compared(tmp_path, MIXTRAL, task="tensor", **MICROS)
    assert found.verdict is Verdict.ALIGNED, found
    assert "elements-in-another-order" in {each.code for each in found.notes}


@pytest.mark.parametrize(
    "fault, named",
    [
        (
            Planted("gelu", "model.layers.1.mlp.experts.act_fn"),
            "model.layers.1.mlp.experts",
        ),  # inside no order is known
        (Planted("eps", "model.layers.1.post_attention_layernorm", 0.1), "model.layers.1.post_attention_layernorm"),
    ],
    ids=["in the experts", "before them"],
)
def test_faults_are_named_all_the_same(fault: Planted, named: str, tmp_path: Path) -> None:
    found = compared(tmp_path, MIXTRAL, fault, task="tensor", **MICROS)
    assert places(found)[0] == ("forward", named), found


def test_gradients_of_which_a_bound_alone_is_known_have_not_arrived(tmp_path: Path) -> None:
    """Sketches of joined micro-batches are not to be held against each other; those of weights' gradients are."""
    setup = Setup("mixtral", dtype="autocast", steps=1, seed=93474, clip=0.5)
    found = compared(tmp_path, setup, task="statistics", micros=4)
    assert found.verdict is Verdict.ALIGNED, found


class Layers(torch.nn.Module):
    """Works on [samples, positions, width], or on [positions, samples, width] as Megatron does."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = torch.nn.Embedding(32, 12), torch.nn.LayerNorm(12)
        self.inner, self.head, self.is_turned = torch.nn.Linear(12, 12), torch.nn.Linear(12, 32), is_turned

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = self.head(torch.tanh(self.inner(self.norm(x.transpose(0, 1) if self.is_turned else x))))
        return x.transpose(0, 1) if self.is_turned else x


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("is_turned", [False, True], ids=["samples first", "positions first"])
@pytest.mark.parametrize("fault", [None, "inner"])
def test_micro_batches_whose_axes_stand_in_another_order(
    tmp_path: Path, fault: str | None, is_turned: bool, task: str
) -> None:
    ids = torch.randint(0, 32, (4, 6), generator=torch.Generator().manual_seed(1))
    for name, turns, micros in (("whole", not is_turned, 1), ("micros", is_turned, 2)):
        model = Layers(turns)
        if fault and micros > 1:
            model.inner.register_forward_hook(lambda module, given, made: made * 1.01)
        with probe.capture(model, tmp_path / f"{name}.h5", task=task):
            for own in ids.chunk(micros):
                (torch.nn.functional.cross_entropy(model(own).flatten(0, 1), own.flatten()) / micros).backward()
            probe.step()
    answer = probe.compare(tmp_path / "whole.h5", tmp_path / "micros.h5")
    assert [found.path for found in answer.divergences][:1] == ([fault] if fault else []), answer
    inner = answer["inner"]
    assert fault or {inner.output[0].verdict, inner.grad_output[0].verdict} <= {"equal", "noise"}


@pytest.mark.parametrize(
    ("fault", "micros", "path"),
    [
        (
            "another activation",
            4,
            "model.layers.1.mlp.act_fn",
        ),  # of another class: given other sizes, as all modules are
        ("scale of attention", 8, "model.layers.1.self_attn"),  # a mask of one sample has the shape of cosines
    ],
)
def test_modules_that_other_splits_give_other_sizes(fault: str, micros: int, path: str, tmp_path: Path) -> None:
    """All pairs of splits and faults: ``python -m benchmarks.ranks.splits``."""
    splits.record(tmp_path / "whole.h5", 1, splits.CLEAN, "statistics")
    splits.record(tmp_path / "micros.h5", micros, fault, "statistics")
    first = probe.compare(tmp_path / "whole.h5", tmp_path / "micros.h5").first_divergence
    assert first is not None and first.path == path
