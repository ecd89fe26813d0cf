"""Train a small mixture of experts of transformers for two steps; ``--wrong``: the experts of layer 2 return 1.05 times what they should."""

from __future__ import annotations

import argparse

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--wrong", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
model = Qwen3MoeForCausalLM(
    Qwen3MoeConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, moe_intermediate_size=64, num_experts=16, num_experts_per_tok=2,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, use_cache=False,
    )
)  # fmt: skip
if options.wrong:
    experts = model.model.layers[2].mlp.experts
    right = experts.forward
    experts.forward = lambda *args: 1.05 * right(*args)
if options.bf16:
    rotary = model.model.rotary_emb
    frequencies = rotary.inv_freq, rotary.original_inv_freq
    model.to(torch.bfloat16)
    rotary.inv_freq, rotary.original_inv_freq = frequencies  # as from_pretrained(dtype=torch.bfloat16) leaves them
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, 256, (4, 128), generator=torch.Generator().manual_seed(1))
for _ in range(2):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")
