"""Micro-batches against the whole batch in models of transformers whose tokens are sorted by expert."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.localisation.pairs.pair import Planted, Setup  # noqa: E402
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
