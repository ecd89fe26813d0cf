"""Arguments in another form: cosines and angles, masks under other names and in other notations, sdpa without a mask."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen2 import modeling_qwen2 as qwen

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict

# ---- Rotary modules that return cosines and sines as a tuple, in one tensor, or the angles: which of them are a pair without a mapping.

WIDTH, HEADS, TOKENS = 32, 2, 9
SIZE = WIDTH // HEADS


class RotaryEmbedding(nn.Module):
    def __init__(self, form: str, theta: float = 1e4) -> None:
        super().__init__()
        self.form, self.theta = form, theta

    def forward(self, positions: Tensor) -> Any:
        angles = positions[:, None].float() * self.theta ** -(torch.arange(0, SIZE, 2) / SIZE)
        if self.form == "angles":
            return angles
        angles = torch.cat([angles, angles], -1)
        if self.form == "angles, twice":
            return angles
        return (angles.cos(), angles.sin()) if self.form == "tuple" else torch.stack([angles.cos(), angles.sin()])


def _tables(turns: Any, form: str) -> Any:
    if form.startswith("angles"):
        angles = turns if form == "angles, twice" else torch.cat([turns, turns], -1)
        return angles.cos(), angles.sin()
    return turns


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for each in (self.q, self.k, self.v))
        q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        return self.o(((q @ k.transpose(2, 3) / SIZE**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, name: str, form: str, theta: float = 1e4) -> None:
        super().__init__()
        self.embed, self.name, self.form = nn.Embedding(20, WIDTH), name, form
        self.add_module(name, RotaryEmbedding(form, theta))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        cos, sin = _tables(self.get_submodule(self.name)(torch.arange(TOKENS)), self.form)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), cos, sin)
        return self.head(x)


def _compared(folder: Path, task: str, form: str, theta: float = 1e4) -> Any:
    torch.manual_seed(0)
    a, b = Model("rotary_emb", "tuple"), Model("rope", form, theta)
    b.load_state_dict(a.state_dict())
    for model, path in ((a, folder / "a.h5"), (b, folder / "b.h5")):
        torch.manual_seed(1)
        with probe.capture(model, path, task=task):
            model(torch.randint(0, 20, (2, TOKENS))).square().mean().backward()
            probe.step()
    return probe.compare(folder / "a.h5", folder / "b.h5")


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize(("form", "is_paired"), [("stacked", True), ("angles", False), ("angles, twice", False)])
def test_tables_in_another_form_are_no_difference(tmp_path: Path, form: str, is_paired: bool, task: str) -> None:
    found = _compared(tmp_path, task, form)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert any(slot.path_a == "rotary_emb" and slot.role.label == "output" for slot in found.slots) is is_paired


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.xfail(strict=True, reason="the caller is named, not the module that makes tables of another form")
def test_another_theta_is_named_at_the_rotary_module(tmp_path: Path, task: str) -> None:
    first = _compared(tmp_path, task, "stacked", 1e3).first_divergence
    assert first is not None and (first.phase.label, first.path) == ("forward", "rotary_emb")


# ---- Masks under other names and in other notations are a pair, whatever else a side is given beside them.

LENGTH = 7


class MasksAttention(nn.Module):
    """Takes its mask by any of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x, mask=None, keep=None, extra=None):  # type: ignore[no-untyped-def]
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 4
        scores = scores + mask[:, 0] if keep is None else scores.masked_fill(~keep[:, 0], -math.inf)
        return self.out(scores.softmax(-1) @ v)


class Net(nn.Module):
    """Two layers, which are given the same arguments."""

    def __init__(self, **arguments: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.arguments = arguments
        self.embed, self.head = nn.Embedding(31, 16), nn.Linear(16, 31)
        self.layers = nn.ModuleList(MasksAttention() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x, **self.arguments)
        return self.head(x)


KEEP = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
ADDED = torch.zeros(2, 1, LENGTH, LENGTH).masked_fill(~KEEP, torch.finfo(torch.float32).min)


def compared(folder: Path, a: nn.Module, b: nn.Module) -> Comparison:
    paths = []
    for name, model in (("a", a), ("b", b)):
        torch.manual_seed(1)
        tokens = torch.randint(0, 31, (2, LENGTH))
        with probe.capture(model, folder / f"{name}.h5", task="tensor", steps=[0]):
            loss = model(tokens).logsumexp(-1).mean()
            loss.backward()
            probe.step(loss=loss.item())
        paths.append(folder / f"{name}.h5")
    return probe.compare(*paths)


@pytest.mark.parametrize(
    "extra",
    [
        None, torch.zeros(2, 1, LENGTH, LENGTH), 
        pytest.param(
            torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool),
            marks=pytest.mark.xfail(strict=True, reason="of two masks the one that is meant is not found"),
        ),
        torch.arange(LENGTH).repeat(2, 1),
    ],
)  # fmt: skip
def test_one_more_argument_does_not_undo_the_pair(tmp_path: Path, extra: torch.Tensor | None) -> None:
    more = {} if extra is None else {"extra": extra}
    found = compared(tmp_path, Net(mask=ADDED), Net(keep=KEEP, **more))
    assert found.verdict == "aligned", found.first_divergence
    inputs = [each for each in found.slots if each.path_a == "layers.0" and each.slot_a == "mask"]
    assert [(each.slot_b, each.verdict) for each in inputs] == [("keep", "equal")]


@pytest.mark.xfail(strict=True, reason="the caller is named by what the mask made, not the mask")
def test_a_mask_that_hides_something_else_is_found(tmp_path: Path) -> None:
    other = KEEP.clone()
    other[:, :, 4, 1] = False
    found = compared(tmp_path, Net(mask=ADDED), Net(keep=other, extra=torch.ones_like(other)))
    assert found.verdict == "diverged"
    assert found.first_divergence.evidence[0].startswith("the input mask of layers.0 differs")


# ---- Masks are told by what they hide: sdpa without one (is_causal) against eager attention with the same one.


def model(attention: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return qwen.Qwen2ForCausalLM(qwen.Qwen2Config(
        vocab_size=101, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation=attention, use_cache=False,
    ))  # fmt: skip


def record(path: Path, model: torch.nn.Module) -> Path:
    torch.manual_seed(1)
    tokens = torch.randint(0, 101, (2, 9))
    with probe.capture(model, path, task="tensor", steps=[0]):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        probe.step(loss=loss.item())
    return path


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("scale", "A's attention has scores divided by √head size, B's scores not divided"),
        ("groups", "A's attention has each key and value head repeated in place, B's the key and value heads repeated as a whole"),
    ],
)  # fmt: skip
def test_the_mask_is_not_blamed_for_another_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    a, faulty = record(tmp_path / "a.h5", model("sdpa")), model("eager")
    assert probe.compare(a, record(tmp_path / "right.h5", model("eager"))).verdict == "aligned"
    if fault == "scale":
        faulty.model.layers[1].self_attn.scaling *= 4
    else:
        monkeypatch.setattr(qwen, "repeat_kv", lambda x, n: x.repeat(1, n, 1, 1))
    found = probe.compare(a, record(tmp_path / "b.h5", faulty)).first_divergence
    assert found.path == f"model.layers.{int(fault == 'scale')}.self_attn"
    assert found.hint.startswith(f"{said} (verified from the recorded queries, keys and values)")
