"""Faults in the functional code of a module are named at the operation, with the line of code; other kernels are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen2 import modeling_qwen2 as qwen2

import probe

rope, repeated = qwen2.apply_rotary_pos_emb, qwen2.repeat_kv


def eager(scale=1.0, fill=None, dtype=torch.float32, dim=-1, dropout=0.0, axes=(1, 2)):
    """Return the attention of transformers in lines of its own, right as it stands."""

    def attention(module, query, key, value, mask, scaling, **named):
        key, value = (qwen2.repeat_kv(each, module.num_key_value_groups) for each in (key, value))
        scores = torch.matmul(query, key.transpose(2, 3)) * (scaling * scale)
        scores = scores + (mask if fill is None else mask.clamp(min=fill))
        weights = F.softmax(scores.to(dtype), dim=dim).to(query.dtype)
        weights = F.dropout(weights, p=dropout, training=True)
        output = torch.matmul(weights, value)
        return (output.transpose(*axes) if axes else output).contiguous(), weights

    return attention


def turned(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((second, -first), dim=-1)


def interleaved(states, times):
    batch, heads, length, size = states.shape
    return states[:, None].expand(batch, times, heads, length, size).reshape(batch, times * heads, length, size)


def one_off(q, k, cos, sin, **named):
    return rope(q, k, cos.roll(1, 1), sin.roll(1, 1), **named)


def commuted(q, k, cos, sin, **named):
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return tuple(qwen2.rotate_half(states) * sin + states * cos for states in (q, k))


def eps(self, states):
    variance = states.pow(2).mean(-1, keepdim=True)
    return self.weight * (states * torch.rsqrt(variance + 1e-3))


def swapped(self, x):
    return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


def gelu(self, x):
    return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


def unadded(self, hidden_states, **named):
    normed = self.input_layernorm(hidden_states)
    states = normed + self.self_attn(hidden_states=normed, **named)[0]
    return states + self.mlp(self.post_attention_layernorm(states))


ATTENTION, MLP, NORM = "eager_attention_forward", "Qwen2MLP.forward", "Qwen2RMSNorm.forward"
FAULTS = {
    "scale missing": (ATTENTION, eager(scale=4.0), "self_attn/mul", "* (scaling * scale)"),
    "scale doubled": (ATTENTION, eager(scale=2.0), "self_attn/mul", "* (scaling * scale)"),
    "mask value": (ATTENTION, eager(fill=-1.0), "self_attn/add", "mask.clamp(min=fill)"),
    "softmax in bfloat16": (ATTENTION, eager(dtype=torch.bfloat16), "self_attn/softmax", "F.softmax"),
    "softmax over another axis": (ATTENTION, eager(dim=-2), "self_attn/softmax", "F.softmax"),
    "dropout": (ATTENTION, eager(dropout=0.1), "self_attn/dropout", "F.dropout"),
    "rotary sign": ("rotate_half", turned, "self_attn/neg", "-first"),
    "rotary position": ("apply_rotary_pos_emb", one_off, "self_attn/", ""),
    "order of key heads": ("repeat_kv", interleaved, "self_attn/expand", ".expand("),
    "eps": (NORM, eps, "input_layernorm/add", "1e-3"),
    "gate and up": (MLP, swapped, "mlp", ""),
    "activation": (MLP, gelu, "mlp.act_fn/silu", "F.gelu"),
    "residual": ("Qwen2DecoderLayer.forward", unadded, "layers.0/add", "normed +"),
    "transposed": (ATTENTION, eager(axes=None), "self_attn/reshape", ""),
}
"""by name: what is replaced in transformers' Qwen2, by what, the operation that is named, and what stands in B's line"""


def record(path: str, how: str = "eager", **options) -> None:
    torch.manual_seed(0)
    config = qwen2.Qwen2Config(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=32, attn_implementation=how, use_cache=False,
    )  # fmt: skip
    model, ids = (
        qwen2.Qwen2ForCausalLM(config),
        torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(1)),
    )
    probe.start(model, path, level="mix", quiet=True, **options)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    probe.step(loss=loss)
    probe.stop()


@pytest.fixture(scope="module")
def right(tmp_path_factory) -> Path:
    """Return a recording of the right model."""
    path = tmp_path_factory.mktemp("operations") / "a.h5"
    record(str(path))
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_at_its_operation(name, right, monkeypatch, tmp_path) -> None:
    place, fault, path, line = FAULTS[name]
    owner, _, attribute = place.rpartition(".")
    monkeypatch.setattr(getattr(qwen2, owner) if owner else qwen2, attribute, fault)
    record(str(tmp_path / "b.h5"))
    answer = probe.compare(right, tmp_path / "b.h5")
    first = answer.first_divergence
    assert first is not None and path in first.a[0].path, answer
    if line:
        (place,) = first.b
        assert place.file == __file__ and line in Path(__file__).read_text().splitlines()[place.line - 1]


def test_terms_in_another_order_are_not_taken_for_the_fault(right, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(qwen2, "apply_rotary_pos_emb", commuted)
    monkeypatch.setattr(qwen2, "eager_attention_forward", eager(dim=-2))
    record(str(tmp_path / "b.h5"))
    first = probe.compare(right, tmp_path / "b.h5").first_divergence
    assert first.path == "model.layers.0.self_attn/softmax.0" and first.advice.facts["arguments"] == (
        ("dim", "-1", "-2"),
    )


def test_an_argument_that_differs_is_the_hint(right, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(qwen2.Qwen2RMSNorm, "forward", eps)
    record(str(tmp_path / "b.h5"))
    answer = probe.compare(right, tmp_path / "b.h5")
    first = answer.first_divergence
    assert answer.save(tmp_path / "r.html").exists()
    assert first.advice.code == "another-argument" and first.advice.facts["arguments"] == (("1", "1e-06", "0.001"),)


def test_a_module_whose_code_lacks_an_operation_is_told_with_its_lines(right, monkeypatch, tmp_path) -> None:
    def forward(self, hidden_states, **named):
        states = hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **named)[0]
        return self.mlp(self.post_attention_layernorm(states))

    monkeypatch.setattr(qwen2.Qwen2DecoderLayer, "forward", forward)
    record(str(tmp_path / "b.h5"))
    answer = probe.compare(right, tmp_path / "b.h5")
    told, place = str(answer), answer.as_json()["first_divergence"]["b"][0]
    assert place["path"] == "model.layers.0" and (place["file"], place["line"]) == (
        __file__,
        forward.__code__.co_firstlineno,
    )
    file, _, line = place["called_from"].rpartition(":")
    assert file == qwen2.__file__ and "decoder_layer(" in Path(file).read_text().splitlines()[int(line) - 1]
    assert f"called at modeling_qwen2.py:{line}" in told and "A alone calls before it add.1 (modeling_qwen2.py:" in told


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("other", ["sdpa", "rewritten", "commuted", "modules alone"])
def test_right_code_in_other_operations_is_aligned(task, other, right, monkeypatch, tmp_path) -> None:
    if other == "rewritten":
        monkeypatch.setattr(qwen2, "eager_attention_forward", eager())
        monkeypatch.setattr(
            qwen2.Qwen2RMSNorm, "forward", lambda self, x: F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        )
    if other == "commuted":
        monkeypatch.setattr(qwen2, "apply_rotary_pos_emb", commuted)
    options = {"modules": ["*proj", "*norm"]} if other == "modules alone" else {}
    record(str(tmp_path / "b.h5"), "sdpa" if other == "sdpa" else "eager", task=task, **options)
    assert probe.compare(right, tmp_path / "b.h5").verdict == "aligned"
