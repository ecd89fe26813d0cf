"""Train a small BERT of transformers for two steps and record it; save the weights that it begins with.

python train_torch.py --save bert --out a.h5
"""

from __future__ import annotations

from pathlib import Path

import click
import torch
import torch.nn.functional as F
from inputs import BATCH, CLASSES, POSITIONS, STEPS, VOCABULARY
from transformers import BertConfig, BertForSequenceClassification

import probe


def small_bert(seed: int = 7) -> BertForSequenceClassification:
    """A BERT of 3 layers with random weights, the same ones for the same seed."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=POSITIONS,
        initializer_range=0.1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=CLASSES,
    )
    torch.manual_seed(seed)
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():  # fresh biases are all 0, norm weights all 1
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.train()


@click.command()
@click.option("--save", required=True, type=click.Path(path_type=Path), help="Folder for the initial weights.")
@click.option("--out", required=True, help="The recording to write, such as a.h5.")
@click.option("--task", type=click.Choice(["statistics", "tensor"]), default="statistics", show_default=True)
def main(save: Path, out: str, task: str) -> None:
    """Train transformers' BERT for two steps and record them."""
    model = small_bert()
    model.save_pretrained(save)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    probe.start(model, out, task=task)
    for step in range(STEPS):
        batch = probe.make_inputs(BATCH, seed=step, to="torch")
        labels = batch.pop("labels")
        probe.log("labels", labels)
        loss = F.cross_entropy(model(**batch).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
        click.echo(f"step {step}  loss {loss.item():.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
