"""Models that other people wrote, paired without a mapping."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.mapping import LayerMapping  # noqa: E402
from probe.matching import match  # noqa: E402
from probe.matching.automatic.completing import complete  # noqa: E402
from probe.matching.automatic.outline import outline_of  # noqa: E402
from probe.store.reading.reader import Reader  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

from convert_qwen2 import megatron_from  # noqa: E402
from megatron_gpt import left_to_right  # noqa: E402
from train_hf import fixed_batch, next_token_loss, small_qwen2  # noqa: E402
from train_megatron import FAULTS  # noqa: E402

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
