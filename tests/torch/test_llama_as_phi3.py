"""Llama against Phi-3, which is the same model with q, k and v, and gate and up, in one: without a mapping, from statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

COMMON = {
    "vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
PACKED = {"self_attn.qkv_proj": ("q", "k", "v"), "mlp.gate_up_proj": ("gate", "up")}


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON))


def phi3(fault: str = "") -> Any:
    """Return the same as Phi-3; in layer 1 the first two parts of one weight may be exchanged."""
    options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0, "original_max_position_embeddings": 128}
    net = transformers.Phi3ForCausalLM(transformers.Phi3Config(**COMMON, **options))
    state = llama().state_dict()
    for n in range(COMMON["num_hidden_layers"]):
        for whole, parts in PACKED.items():
            first, second, *rest = parts
            order = (second, first, *rest) if (n, whole) == (1, fault) else parts
            at = f"model.layers.{n}.{whole.partition('.')[0]}"
            pieces = {part: state.pop(f"{at}.{part}_proj.weight") for part in parts}
            state[f"model.layers.{n}.{whole}.weight"] = torch.cat([pieces[part] for part in order])
    net.load_state_dict(state)
    return net


def recorded(path: Path, net: Any) -> Path:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    with probe.capture(net, path):
        for step in range(2):
            ids = torch.randint(3, 160, (2, 20), generator=torch.Generator().manual_seed(step))
            loss = net(ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("fault", ["", *PACKED])
def test_the_order_of_parts_is_seen(tmp_path: Path, fault: str) -> None:
    found = probe.compare(recorded(tmp_path / "a.h5", llama()), recorded(tmp_path / "b.h5", phi3(fault)))
    first = found.first_divergence
    if not fault:
        assert found.verdict is Verdict.ALIGNED, first
        return
    assert first is not None and first.phase is Phase.INIT
    assert [(ref.path, ref.slot) for ref in first.b] == [(f"model.layers.1.{fault}", "weight")]
    one, other, *rest = (f"{part}_proj" for part in PACKED[fault])
    order = ", ".join((other, one, *rest))
    assert first.hint.startswith(
        f"B's model.layers.1.{fault}.weight holds {order} one after the other, where {one}, {other}"
    )
