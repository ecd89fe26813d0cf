"""Train the same model as ``train_hf.py`` (same weights, same batch), in Megatron's structure, and record it.

python docs/examples/train_megatron.py --out b.h5
python docs/examples/train_megatron.py --out c.h5 --fault eps --fault-layer 3
"""

from __future__ import annotations

from collections.abc import Callable

import click
import torch
import torch.nn.functional as F
from convert_qwen2 import megatron_from
from megatron_gpt import TransformerLayer, left_to_right
from train_hf import fixed_batch, next_token_loss, small_qwen2

import probe


def wrong_eps(layer: TransformerLayer) -> None:
    """The norm before the MLP has the eps of another model: pre_mlp_layernorm, forward."""
    layer.pre_mlp_layernorm.eps = 1e-5


def wrong_activation(layer: TransformerLayer) -> None:
    """GELU where the model wants SiLU: mlp, forward."""
    layer.mlp.activation_func = F.gelu


def no_mask(layer: TransformerLayer) -> None:
    """Every token sees the ones after it: self_attention, forward."""
    layer.self_attention.core_attention.attn_mask_type = "no_mask"


def wrong_qkv_order(layer: TransformerLayer) -> None:
    """The converter put all of q, then k, then v, and forgot the groups: self_attention, forward."""
    attention = layer.self_attention
    with torch.no_grad():
        for fused in attention.linear_qkv.parameters():
            parts = fused.unflatten(0, (attention.groups, attention.heads_per_group + 2, attention.head))
            q, k, v = parts[:, :-2], parts[:, -2], parts[:, -1]
            fused.copy_(torch.cat([part.reshape(-1, *fused.shape[1:]) for part in (q, k, v)]))


def gradient_twice(layer: TransformerLayer) -> None:
    """A gradient is summed once too often; the forward pass is right: pre_mlp_layernorm, gradient."""
    layer.pre_mlp_layernorm.weight.register_hook(lambda gradient: 2 * gradient)


FAULTS: dict[str, Callable[[TransformerLayer], None]] = {
    "eps": wrong_eps,
    "gelu": wrong_activation,
    "mask": no_mask,
    "qkv": wrong_qkv_order,
    "grad": gradient_twice,
}


@click.command()
@click.option("--out", required=True, help="The recording to write, such as b.h5.")
@click.option("--task", type=click.Choice(["statistics", "tensor"]), default="statistics", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--fault", type=click.Choice(list(FAULTS)), help="Plant a fault in one layer.")
@click.option("--fault-layer", type=click.IntRange(0, 5), default=3, show_default=True)
def main(out: str, task: str, steps: int, fault: str | None, fault_layer: int) -> None:
    """Train the Megatron-style GPT for a few steps and record them."""
    model = megatron_from(small_qwen2())
    if fault is not None:
        FAULTS[fault](model.decoder.layers[fault_layer])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = fixed_batch()
    positions, mask = left_to_right(tokens)

    probe.start(model, out, task=task)
    for step in range(steps):
        loss = next_token_loss(model(tokens, positions, mask), tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
        click.echo(f"step {step}  loss {loss.item():.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
