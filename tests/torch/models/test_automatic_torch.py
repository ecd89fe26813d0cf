"""Models that other people wrote, paired without a mapping; layers inserted, removed, swapped, wrapped, run again or recomputed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from convert_qwen2 import megatron_from
from megatron_gpt import left_to_right
from torch import nn
from train_hf import fixed_batch, next_token_loss, small_qwen2
from train_megatron import FAULTS
from transformers import Qwen2Config, Qwen2ForCausalLM

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Kind, Verdict
from probe.mapping import LayerMapping
from probe.matching import match
from probe.matching.automatic.completing import complete
from probe.matching.automatic.outline import outline_of
from probe.report.text import render
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from tests.golden_files import golden

# ---- Models that other people wrote, paired without a mapping.

LAYERS = 6


def pairs_of(a: Path, b: Path) -> dict[str, str]:
    with Reader(a) as first, Reader(b) as second:
        sides = outline_of(first), outline_of(second)
        trees = sides[0].tree, sides[1].tree
        certain = match(*trees, LayerMapping(), lambda _: frozenset(), lambda _: frozenset())
        return {trees[0].path(pair.a): trees[1].path(pair.b) for pair in complete(certain, *sides).pairs}


def record_hf(path: Path, task: str = "statistics") -> Path:
    model, tokens = small_qwen2(), fixed_batch()
    with probe.capture(model, path, task=task):
        loss = next_token_loss(model(input_ids=tokens).logits, tokens)
        loss.backward()
        probe.step(loss=loss)
    return path


def record_megatron(path: Path, task: str = "statistics", fault: str = "") -> Path:
    model, tokens = megatron_from(small_qwen2()), fixed_batch()
    if fault:
        FAULTS[fault](model.decoder.layers[3])
    with probe.capture(model, path, task=task):
        loss = next_token_loss(model(tokens, *left_to_right(tokens)), tokens)
        loss.backward()
        probe.step(loss=loss)
    return path


PER_LAYER = {
    "": "", ".self_attn": ".self_attention", ".self_attn.q_proj": ".self_attention.linear_qkv",
    ".self_attn.o_proj": ".self_attention.linear_proj", ".mlp": ".mlp", ".mlp.gate_proj": ".mlp.linear_fc1",
    ".mlp.down_proj": ".mlp.linear_fc2", ".input_layernorm": ".input_layernorm",
    ".post_attention_layernorm": ".pre_mlp_layernorm",
}  # fmt: skip


@pytest.mark.parametrize("task", ["statistics", "structure"])
def test_qwen2_against_megatron(tmp_path: Path, task: str) -> None:
    found = pairs_of(record_hf(tmp_path / "a.h5", task), record_megatron(tmp_path / "b.h5", task))
    expected = {
        f"model.layers.{n}{a}": f"decoder.layers.{n}{b}" for n in range(LAYERS) for a, b in PER_LAYER.items()
    } | {
        "": "", "model.embed_tokens": "embedding.word_embeddings", "model.layers": "decoder.layers",
        "model.norm": "decoder.final_layernorm", "lm_head": "output_layer",
    }  # fmt: skip
    assert expected.items() <= found.items()
    assert set(found) - set(expected) <= {"model.rotary_emb"}


def test_a_fault_in_megatron_is_found_without_a_mapping(tmp_path: Path) -> None:
    a = record_hf(tmp_path / "a.h5")
    assert probe.compare(a, record_megatron(tmp_path / "b.h5")).verdict is Verdict.ALIGNED
    found = probe.compare(a, record_megatron(tmp_path / "c.h5", fault="eps"))
    first = found.first_divergence
    assert first is not None
    assert (first.a[0].path, first.b[0].path) == (
        "model.layers.3.post_attention_layernorm", "decoder.layers.3.pre_mlp_layernorm",
    )  # fmt: skip
    assert any("pairs of modules matched without a mapping" in text for text in found.warnings)


class MetaAttention(torch.nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        size = width // heads
        self.heads, self.groups, self.size = heads, groups, size
        self.wq, self.wk = torch.nn.Linear(width, width, False), torch.nn.Linear(width, groups * size, False)
        self.wv, self.wo = torch.nn.Linear(width, groups * size, False), torch.nn.Linear(width, width, False)

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = (
            t * turn[0] + torch.cat([-t[..., self.size // 2 :], t[..., : self.size // 2]], -1) * turn[1] for t in (q, k)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(torch.nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w2 = torch.nn.Linear(width, inner, False), torch.nn.Linear(inner, width, False)
        self.w3 = torch.nn.Linear(width, inner, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))


class MetaBlock(torch.nn.Module):
    def __init__(self, config: object) -> None:
        super().__init__()
        width = config.hidden_size
        self.attention = MetaAttention(width, config.num_attention_heads, config.num_key_value_heads)
        self.feed_forward = FeedForward(width, config.intermediate_size)
        self.attention_norm, self.ffn_norm = (torch.nn.RMSNorm(width, eps=config.rms_norm_eps) for _ in range(2))

    def forward(self, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), turn)
        return x + self.feed_forward(self.ffn_norm(x))


class MetaLlama(torch.nn.Module):
    def __init__(self, config: object) -> None:
        super().__init__()
        self.tok_embeddings = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = torch.nn.ModuleList(MetaBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = torch.nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.output = torch.nn.Linear(config.hidden_size, config.vocab_size, False)
        self.size = config.hidden_size // config.num_attention_heads

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        steps = torch.outer(torch.arange(ids.shape[1]), 10000 ** (-torch.arange(0, self.size, 2) / self.size))
        turn = torch.cat([steps, steps], -1).cos(), torch.cat([steps, steps], -1).sin()
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x, turn)
        return self.output(self.norm(x))


META = {
    "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


@pytest.mark.parametrize("are_same_weights", [True, False])
def test_llama_against_meta(tmp_path: Path, are_same_weights: bool) -> None:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    hf, meta = transformers.LlamaForCausalLM(config), MetaLlama(config)
    names = {f"layers.{n}.{b}": f"model.layers.{n}.{a}" for n in range(3) for a, b in META.items()} | {
        "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
    }  # fmt: skip
    if are_same_weights:
        state = hf.state_dict()
        meta.load_state_dict({f"{b}.weight": state[f"{a}.weight"] for b, a in names.items()})
    ids = torch.randint(0, 64, (2, 8))
    for name, model in (("a", hf), ("b", meta)):
        with probe.capture(model, tmp_path / f"{name}.h5"):
            out = model(ids)
            loss = getattr(out, "logits", out).square().mean()
            loss.backward()
            probe.step(loss=loss)
    found = pairs_of(tmp_path / "a.h5", tmp_path / "b.h5")
    expected = {a: b for b, a in names.items()} | {f"model.layers.{n}": f"layers.{n}" for n in range(3)}
    assert expected.items() <= found.items()
    if are_same_weights:
        assert probe.compare(tmp_path / "a.h5", tmp_path / "b.h5").verdict is Verdict.ALIGNED


def test_bert_against_a_transformer_encoder(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    bert = transformers.models.bert.modeling_bert.BertEncoder(config)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, layer_norm_eps=1e-12)
    encoder = torch.nn.TransformerEncoder(layer, 2)
    for ours, theirs in zip(encoder.layers, bert.layer, strict=True):
        parts = theirs.attention.self
        with torch.no_grad():
            ours.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in (parts.query, parts.key, parts.value)]))
            ours.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in (parts.query, parts.key, parts.value)]))
        for mine, its in (
            (ours.self_attn.out_proj, theirs.attention.output.dense), (ours.norm1, theirs.attention.output.LayerNorm),
            (ours.linear1, theirs.intermediate.dense), (ours.linear2, theirs.output.dense),
            (ours.norm2, theirs.output.LayerNorm),
        ):  # fmt: skip
            mine.load_state_dict(its.state_dict())
    x, wanted = torch.randn(2, 7, 32), torch.randn(2, 7, 32)  # behind a norm, the mean square has no gradient
    for name, model in (("a", encoder), ("b", bert)):
        with probe.capture(model, tmp_path / f"{name}.h5"):
            out = model(x)
            loss = (getattr(out, "last_hidden_state", out) * wanted).mean()
            loss.backward()
            probe.step(loss=loss)
    found = pairs_of(tmp_path / "a.h5", tmp_path / "b.h5")
    for n in range(2):
        assert found[f"layers.{n}"] == f"layer.{n}"
        assert found[f"layers.{n}.linear1"] == f"layer.{n}.intermediate.dense"
        assert found[f"layers.{n}.linear2"] == f"layer.{n}.output.dense"
        assert found[f"layers.{n}.norm1"] == f"layer.{n}.attention.output.LayerNorm"
        assert found[f"layers.{n}.norm2"] == f"layer.{n}.output.LayerNorm"
        assert found[f"layers.{n}.self_attn.out_proj"] == f"layer.{n}.attention.output.dense"
        assert f"layers.{n}.self_attn" not in found, "BERT's attention returns what its norm made of it"
    assert probe.compare(tmp_path / "a.h5", tmp_path / "b.h5").verdict is not Verdict.DIVERGED


# ---- Qwen2 with a layer inserted, removed, swapped, wrapped, run again or recomputed: the rest stays rightly paired, and it is said.
#
# ``OVERWRITE_GOLDEN=1`` writes the golden files anew; numbers are not part of them.

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
        swapped, {**SAME, 1: 4, 4: 1}, Verdict.DIVERGED, ("model",), ("model",),
        f"{L}.1 and {L}.4 ({CLASS}) are swapped: what A has at the one, B has at the other",
    ),
    "scaled": (
        scaled, SAME, Verdict.DIVERGED, ("model",), ("model",),
        f"B's {L}.3 (Checked) only holds {L}.3.inner ({CLASS}), which is A's {L}.3: it is stepped over",
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


@pytest.mark.parametrize("case", CASES)
def test_layers_with_weights_of_their_own(recordings: Callable[..., Path], case: str) -> None:
    _, _, verdict, places_a, places_b, text = CASES[case]
    found = _with_own_weights(recordings, case, renamed=False)
    assert_said(found, verdict, places_a, places_b, text)
    numbers = (r"(≈?-?\d+(\.\d+)?e[+-]\d+|≈?\d+\.\d+|\d+(,\d{3})+)", "<number>")
    more = ((r"\S+\.h5", "<file>"), (r"\d+ downstream tensors", "<n> downstream tensors"))
    golden(f"changed-layers-{case}", f"{render(found).plain}\n", numbers, *more)


@pytest.mark.parametrize("case", CASES)
def test_layers_with_weights_of_their_own_under_other_names(recordings: Callable[..., Path], case: str) -> None:
    found = _with_own_weights(recordings, case, renamed=True)
    assert [change.kind for change in found.changes if change.text in _all_said(found)]


def _with_own_weights(recordings: Callable[..., Path], case: str, *, renamed: bool) -> Comparison:
    change, truth, verdict, *_ = CASES[case]
    task = "tensor" if renamed else "statistics"
    a = recordings(None, equal=False, task=task, renamed=False)
    b = recordings(change, equal=False, task=task, renamed=renamed)
    found = probe.compare(a, b, RENAMED if renamed else None)
    assert_rightly_paired(found, a, b, truth)
    if verdict is Verdict.ALIGNED and case != "silent":
        assert (found.only_a, found.only_b) == ((), ())
    return found


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
    assert_said(found, Verdict.DIVERGED, ("model",), ("model",), text)


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
        "features",
    ),
    "without a norm": (
        ("first", "relu", "conv", "norm", "relu", "wide"),
        "B has one layer less: A's features.1 (BatchNorm2d) has no counterpart; A's features.2–6 are B's features.1–5",
        "features.1",
    ),
    "norm behind relu": (
        ("first", "relu", "norm", "conv", "norm", "relu", "wide"),
        "features.1 and features.2 (BatchNorm2d and ReLU) are swapped: what A has at the one, B has at the other",
        "features",
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
    assert first.kind is (Kind.MISSING if case == "without a norm" else Kind.INTRODUCED)
