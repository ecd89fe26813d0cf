"""Qwen2 with a layer inserted, removed, swapped, wrapped, run again or recomputed: the rest stays rightly paired, and it is said.

``OVERWRITE_GOLDEN=1`` writes the golden files anew; numbers are not part of them.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import probe
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison
from probe.report.text import render
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from tests.golden_files import golden

LAYERS = 6
RENAMED = {"Qwen2ForCausalLM": {"model": "backbone", "lm_head": "head"}}
Model = nn.Module


def qwen2(*, equal: bool) -> Qwen2ForCausalLM:
    """Make a model whose layers have weights of their own, or all the same."""
    config = Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    for layer in model.model.layers[1:] if equal else ():
        layer.load_state_dict(model.model.layers[0].state_dict())
    return model


class Checked(nn.Module):
    """Hands on what it is given; ``factor`` is what it does of its own."""

    def __init__(self, inner: Model, factor: float = 1.0) -> None:
        super().__init__()
        self.inner, self.factor = inner, factor
        self.attention_type = getattr(inner, "attention_type", "")

    def forward(self, *args: Any, **named: Any) -> Any:
        made = self.inner(*args, **named)
        return made if self.factor == 1.0 else made * self.factor


class Renamed(nn.Module):
    """The same model under other names."""

    def __init__(self, model: Qwen2ForCausalLM) -> None:
        super().__init__()
        self.backbone, self.head = model.model, model.lm_head

    def forward(self, ids: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        return self.head(self.backbone(ids, use_cache=use_cache).last_hidden_state)


def inserted(layers: nn.ModuleList, at: tuple[int, ...] = (3,)) -> None:
    for place in at:
        new = copy.deepcopy(layers[0])
        torch.manual_seed(7 + place)
        for parameter in new.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.05)
        layers.insert(place, new)


def silent(layers: nn.ModuleList) -> None:
    """Insert a layer that adds nothing to what it is given, as deepening a trained model does."""
    inserted(layers)
    nn.init.zeros_(layers[3].self_attn.o_proj.weight)
    nn.init.zeros_(layers[3].mlp.down_proj.weight)


def removed(layers: nn.ModuleList) -> None:
    del layers[3]


def swapped(layers: nn.ModuleList) -> None:
    layers[1], layers[4] = layers[4], layers[1]


def wrapped(layers: nn.ModuleList) -> None:
    layers[3] = Checked(layers[3])


def scaled(layers: nn.ModuleList) -> None:
    layers[3] = Checked(layers[3], 1.5)


def twice(layers: nn.ModuleList) -> None:
    """Let a layer run its MLP once more, in the middle."""
    layer = layers[3]

    def forward(hidden_states: torch.Tensor, **named: Any) -> torch.Tensor:
        given = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **named)[0] + hidden_states
        given = given + layer.mlp(given)
        return given + layer.mlp(layer.post_attention_layernorm(given))

    layer.forward = forward


def recomputed(layers: nn.ModuleList) -> None:
    for layer in layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = lambda run, *args: torch.utils.checkpoint.checkpoint(
            run, *args, use_reentrant=False
        )


def record(
    path: Path, change: Callable[[nn.ModuleList], None] | None, *, equal: bool, task: str, renamed: bool
) -> Path:
    model = qwen2(equal=equal)
    layers = model.model.layers
    if change is not None:
        change(layers)
    for number, layer in enumerate(layers):
        getattr(layer, "inner", layer).self_attn.layer_idx = number
    model.config.num_hidden_layers = len(layers)
    model.config.layer_types = ["full_attention"] * len(layers)
    whole: Model = Renamed(model) if renamed else model
    ids = torch.arange(16).reshape(2, 8) * 3 % 64
    with probe.capture(whole, path, task=task):
        made = whole(ids, use_cache=False)
        loss = (made if renamed else made.logits).float().pow(2).mean()
        loss.backward()
        probe.step(loss=loss)
    return path


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("qwen2")

    def recording(change: Callable[[nn.ModuleList], None] | None, **how: Any) -> Path:
        name = "-".join([change.__name__ if change else "base", *(f"{k}={v}" for k, v in sorted(how.items()))])
        path = folder / f"{name}.h5"
        return path if path.exists() else record(path, change, **how)

    return recording


def number_of(path: str) -> int:
    return int(re.findall(r"layers\.(\d+)", path)[0])


def assert_rightly_paired(found: Comparison, a: Path, b: Path, truth: dict[int, int]) -> None:
    """Hold every pair of modules inside of layers against the truth; none that exists may be missing."""
    with Reader(a) as first, Reader(b) as second:
        trees = Tree(first.modules), Tree(second.modules)
    pairs = {trees[0].path(pair.a): trees[1].path(pair.b) for pair in found.matching.pairs}
    inside = {mine: theirs for mine, theirs in pairs.items() if "layers." in mine}
    for mine, theirs in inside.items():
        assert truth[number_of(mine)] == number_of(theirs), (mine, theirs)
        assert re.sub(r".*layers\.\d+", "", mine) == re.sub(r".*layers\.\d+(\.inner)?", "", theirs)
    assert len(inside) == 13 * len(truth), "all 13 modules of every layer that both have"


SAME = {number: number for number in range(LAYERS)}
WITHOUT_3 = {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}
BEHIND_3 = {0: 0, 1: 1, 2: 2, 3: 4, 4: 5, 5: 6}
L = "model.layers"
CLASS = "Qwen2DecoderLayer"
CASES: dict[str, tuple[Any, dict[int, int], Verdict, tuple[str, ...], tuple[str, ...], str]] = {
    "inserted": (
        inserted, BEHIND_3, Verdict.DIVERGED, (), (f"{L}.3",),
        f"B has one layer more: {L}.3 ({CLASS}) has no counterpart; A's {L}.3–5 are B's {L}.4–6",
    ),
    "removed": (
        removed, WITHOUT_3, Verdict.DIVERGED, (f"{L}.3",), (),
        f"B has one layer less: A's {L}.3 ({CLASS}) has no counterpart; A's {L}.4–5 are B's {L}.3–4",
    ),
    "swapped": (
        swapped, {**SAME, 1: 4, 4: 1}, Verdict.DIVERGED, (f"{L}.1", f"{L}.4"), (f"{L}.4", f"{L}.1"),
        f"{L}.1 and {L}.4 ({CLASS}) are swapped: what A has at the one, B has at the other",
    ),
    "scaled": (
        scaled, SAME, Verdict.DIVERGED, (), (f"{L}.3",),
        f"{L}.3 does something of its own with what {L}.3.inner, the only module in it, is given or returns",
    ),
    "twice": (
        twice, SAME, Verdict.DIVERGED, (), (f"{L}.3.mlp",),
        f"B calls {L}.3.mlp (Qwen2MLP) one time more in step 0: call 0 of 2, between {L}.3.self_attn and "
        f"{L}.3.post_attention_layernorm, has no counterpart",
    ),
    "silent": (
        silent, BEHIND_3, Verdict.ALIGNED, (), (),
        f"B has one layer more: {L}.3 ({CLASS}) has no counterpart; A's {L}.3–5 are B's {L}.4–6",
    ),
    "wrapped": (
        wrapped, SAME, Verdict.ALIGNED, (), (),
        f"B's {L}.3 (Checked) only holds {L}.3.inner ({CLASS}), which is A's {L}.3: it is stepped over",
    ),
    "recomputed": (
        recomputed, SAME, Verdict.ALIGNED, (), (),
        f"B runs {L}.* ×6 again in backward (recomputed, activation checkpointing), A does not; what runs again is not "
        "compared",
    ),
}  # fmt: skip
"""what is changed in B, which layer is which, the verdict, the places of the first finding, what is said"""


@pytest.mark.parametrize(("renamed", "task"), [(False, "statistics"), (True, "tensor")], ids=["equal names", "mapped"])
@pytest.mark.parametrize("case", CASES)
def test_layers_with_weights_of_their_own(recordings: Callable[..., Path], case: str, renamed: bool, task: str) -> None:
    change, truth, verdict, places_a, places_b, text = CASES[case]
    a = recordings(None, equal=False, task=task, renamed=False)
    b = recordings(change, equal=False, task=task, renamed=renamed)
    found = probe.compare(a, b, RENAMED if renamed else None)
    assert_rightly_paired(found, a, b, truth)
    if not renamed:
        assert_said(found, verdict, places_a, places_b, text)
        numbers = (r"(≈?-?\d+(\.\d+)?e[+-]\d+|≈?\d+\.\d+|\d+(,\d{3})+)", "<number>")
        more = ((r"\S+\.h5", "<file>"), (r"\d+ downstream tensors", "<n> downstream tensors"))
        golden(f"changed-layers-{case}", f"{render(found).plain}\n", numbers, *more)
    else:
        assert [change.kind for change in found.changes if change.text in _all_said(found)]
    if verdict is Verdict.ALIGNED and case != "silent":
        assert (found.only_a, found.only_b) == ((), ())


def _all_said(found: Comparison) -> set[str]:
    return {*found.warnings, *(text for finding in found.divergences for text in finding.evidence)}


def assert_said(found: Comparison, verdict: Verdict, a: tuple[str, ...], b: tuple[str, ...], text: str) -> None:
    first = found.first_divergence
    assert text in _all_said(found), _all_said(found)
    assert text in str(found.as_json())
    if first is None:
        assert not a and not b
    else:
        assert first.evidence[0] == text, "the change itself is the cause"
        assert (tuple(ref.path for ref in first.a), tuple(ref.path for ref in first.b)) == (a, b)
    assert found.verdict is verdict, found.doubts


def test_two_layers_are_one_finding(recordings: Callable[..., Path]) -> None:
    def both(layers: nn.ModuleList) -> None:
        inserted(layers, (3, 4))

    how = {"equal": False, "task": "statistics", "renamed": False}
    a, b = recordings(None, **how), recordings(both, **how)
    found = probe.compare(a, b)
    assert_rightly_paired(found, a, b, {0: 0, 1: 1, 2: 2, 3: 5, 4: 6, 5: 7})
    text = f"B has 2 layers more: {L}.3–4 ({CLASS}) have no counterpart; A's {L}.3–5 are B's {L}.5–7"
    assert_said(found, Verdict.DIVERGED, (), (f"{L}.3", f"{L}.4"), text)


EQUAL = "cannot be told: they have the same weights"


@pytest.mark.parametrize("case", CASES)
def test_layers_with_equal_weights(recordings: Callable[..., Path], case: str) -> None:
    """One more, or less, of equal ones: which it is cannot be told, and that is said; what differs is found as before."""
    change, truth, verdict, places_a, places_b, text = CASES[case]
    a, b = (recordings(each, equal=True, task="tensor", renamed=False) for each in (None, change))
    found = probe.compare(a, b)
    if case == "swapped":  # nothing was changed
        assert (found.verdict, found.changes) == (Verdict.ALIGNED, ())
    elif case == "removed":
        text = f"B has one layer less: A's {L}.5 ({CLASS}) has no counterpart; which of {L}.0–5 it is {EQUAL}"
        assert_rightly_paired(found, a, b, {number: number for number in range(5)})
        assert_said(found, verdict, (f"{L}.5",), (), text)
    else:
        assert_rightly_paired(found, a, b, truth)
        assert_said(found, verdict, places_a, places_b, text)


# A network whose layers have no weights that tell them: by classes and shapes


class Net(nn.Module):
    def __init__(self, *layers: Model) -> None:
        super().__init__()
        self.features = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.features(x).mean()


def cnn(*names: str) -> Net:
    """Make a network; convolutions of one shape have the same weights."""
    made: dict[str, Callable[[], Model]] = {
        "first": lambda: nn.Conv2d(3, 4, 3, padding=1), "conv": lambda: nn.Conv2d(4, 4, 3, padding=1),
        "norm": lambda: nn.BatchNorm2d(4), "relu": nn.ReLU, "pool": lambda: nn.MaxPool2d(2),
        "wide": lambda: nn.Conv2d(4, 8, 3, padding=1),
    }  # fmt: skip
    layers = []
    for name in names:
        torch.manual_seed(1)
        layers.append(made[name]())
    return Net(*layers)


BASE = ("first", "norm", "relu", "conv", "norm", "relu", "wide")
FEATURES = {
    "a pool": (
        ("first", "norm", "relu", "pool", "conv", "norm", "relu", "wide"),
        "B has one layer more: features.3 (MaxPool2d) has no counterpart; A's features.3–6 are B's features.4–7",
        "features.3",
    ),
    "without a norm": (
        ("first", "relu", "conv", "norm", "relu", "wide"),
        "B has one layer less: A's features.1 (BatchNorm2d) has no counterpart; A's features.2–6 are B's features.1–5",
        "features.1",
    ),
    "norm behind relu": (
        ("first", "relu", "norm", "conv", "norm", "relu", "wide"),
        "features.1 and features.2 (BatchNorm2d and ReLU) are swapped: what A has at the one, B has at the other",
        "features.1",
    ),
}


@pytest.mark.parametrize("case", FEATURES)
def test_a_cnn_under_equal_paths(tmp_path: Path, case: str) -> None:
    theirs, text, place = FEATURES[case]
    files = []
    for file, names in (("a.h5", BASE), ("b.h5", theirs)):
        model = cnn(*names)
        torch.manual_seed(2)
        x = torch.randn(2, 3, 8, 8)
        with probe.capture(model, tmp_path / file):
            loss = model(x)
            loss.backward()
            probe.step(loss=loss)
        files.append(tmp_path / file)
    found = probe.compare(*files)
    first = found.first_divergence
    assert first is not None and first.evidence[0] == text
    assert first.path == place
    assert first.kind is (Kind.INTRODUCED if case == "norm behind relu" else Kind.MISSING)
