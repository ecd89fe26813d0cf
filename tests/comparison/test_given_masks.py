"""Models whose masks say the same in other notations: True is what is kept, or what is masked, or what is added to scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, softmax
from probe.comparison.result import Verdict
from probe.comparison.run import Comparison
from probe.report.text import render
from tests.toys import LENGTH, VOCABULARY, WIDTH, batch, loss_of, record

KEPT = np.tril(np.ones((1, 1, LENGTH, LENGTH), bool))
KEPT[..., :2] = True
CAUSAL = np.tril(np.ones((1, 1, LENGTH, LENGTH), bool))
KINDS = {"kept": KEPT, "masked": ~KEPT, "added": np.where(KEPT, 0.0, np.finfo("float32").min).astype("float32")}
NOTE = "argument 1: two masks, True in one where the other is False: compared by where they mask"


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


class Model(nn.Module):
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

    return record(path, Model(kind, factor, first), step=step, **options)


@pytest.fixture(params=["tensor", "statistics"])
def task(request: pytest.FixtureRequest) -> str:
    return request.param


def compared(tmp_path: Path, task: str, kinds: tuple[str, str], **options: Any) -> Comparison:
    a = trained(tmp_path / "a.h5", kinds[0], task=task)
    return probe.compare(a, trained(tmp_path / "b.h5", kinds[1], task=task, **options))


@pytest.mark.parametrize("kinds", [("kept", "masked"), ("added", "masked"), ("kept", "added")], ids=str)
def test_masks_that_say_the_same(tmp_path: Path, task: str, kinds: tuple[str, str]) -> None:
    found = compared(tmp_path, task, kinds)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert (NOTE in found.warnings) is ("added" not in kinds)
    assert "argument 0, argument 1 equal on both sides" in render(found).plain


@pytest.mark.parametrize("kinds", [("kept", "masked"), ("added", "masked"), ("kept", "added")], ids=str)
def test_they_hide_no_fault_behind_them(tmp_path: Path, task: str, kinds: tuple[str, str]) -> None:
    first = compared(tmp_path, task, kinds, factor=1.01).first_divergence
    assert first is not None and (first.path, first.confidence > 0.9) == ("layers.1", True)


@pytest.mark.parametrize("kinds", [("kept", "masked"), ("added", "masked"), ("kept", "added")], ids=str)
def test_one_that_masks_more_is_another_input(tmp_path: Path, task: str, kinds: tuple[str, str]) -> None:
    more = KEPT.copy()
    more[..., :2] = np.tril(np.ones((LENGTH, LENGTH), bool))[:, :2]
    masks = {"masked": ~more, "added": np.where(more, 0.0, -np.inf).astype("float32")}
    first = compared(tmp_path, task, kinds, masks=masks).first_divergence
    assert first is not None and first.path == "" and first.a[0].slot == "1"
    assert first.evidence[0].endswith("compared by where they mask")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_causal_mask_that_one_side_alone_is_given_is_not_to_blame(
    tmp_path: Path, task: str, kind: str, swapped: bool
) -> None:
    masks = {"kept": CAUSAL, "masked": ~CAUSAL, "added": np.where(CAUSAL, 0.0, -np.inf).astype("float32")}
    a = trained(tmp_path / "a.h5", "none", task=task)
    same = trained(tmp_path / "same.h5", kind, masks, task=task)
    b = trained(tmp_path / "b.h5", kind, masks, first=1.01, task=task)
    assert probe.compare(a, same).verdict is Verdict.ALIGNED
    found = probe.compare(b, a) if swapped else probe.compare(a, b)
    assert found.first_divergence is not None and found.first_divergence.path == "layers.0"
    dtype = "float32" if kind == "added" else "bool"
    said = (
        f"the model is given argument 1 ({dtype} [1, 1, 6, 6]) on {'A' if swapped else 'B'} only: it masks what lies ahead alone, "
        "as causal attention does without it: see that the other side's is"
    )
    assert said in found.warnings


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_masks_something_else_is_to_blame(tmp_path: Path, task: str, kind: str) -> None:
    a = trained(tmp_path / "a.h5", "none", task=task)
    first = probe.compare(a, trained(tmp_path / "b.h5", kind, task=task)).first_divergence
    assert first is not None and (first.path, first.a[0].slot) == ("", "1")
