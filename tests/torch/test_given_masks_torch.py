"""Masks are told by what they hide: sdpa without one (is_causal) against eager attention with the same one."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
qwen = pytest.importorskip("transformers.models.qwen2.modeling_qwen2")

import probe  # noqa: E402


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
