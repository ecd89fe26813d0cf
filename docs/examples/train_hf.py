"""Train a small Qwen2 of Hugging Face's for a step and record it.

python docs/examples/train_hf.py --out a.h5
"""

from __future__ import annotations

import click
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

import probe

SEED = 7


def small_qwen2(seed: int = SEED) -> Qwen2ForCausalLM:
    """A Qwen2 of 6 layers with random weights, the same ones for the same seed."""
    config = Qwen2Config(
        vocab_size=320,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        use_cache=False,
    )
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # fresh biases are all 0, norm weights all 1
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.train()


def fixed_batch(seed: int = SEED, vocab_size: int = 320) -> Tensor:
    """Token ids, [batch 2, sequence 32], the same ones for the same seed."""
    return torch.randint(vocab_size, (2, 32), generator=torch.Generator().manual_seed(seed))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of ``logits`` [b, s, v] against the token that follows each position."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@click.command()
@click.option("--out", required=True, help="The recording to write, such as a.h5.")
@click.option("--task", type=click.Choice(["statistics", "tensor"]), default="statistics", show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True)
def main(out: str, task: str, steps: int) -> None:
    """Train Hugging Face's Qwen2 for a few steps and record them."""
    model = small_qwen2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = fixed_batch()

    probe.start(model, out, task=task)
    for step in range(steps):
        loss = next_token_loss(model(input_ids=tokens).logits, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
        click.echo(f"step {step}  loss {loss.item():.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
