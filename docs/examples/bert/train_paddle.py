"""Train the BERT of ``bert_paddle.py`` for two steps from converted weights, and record it.

python train_paddle.py --weights bert.pdparams --out b.h5
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import click
import paddle
import paddle.nn.functional as F
from bert_paddle import BertConfig, BertForSequenceClassification
from inputs import BATCH, CLASSES, POSITIONS, STEPS, VOCABULARY

import probe

CONFIG = BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=POSITIONS,
    num_labels=CLASSES,
)


def eps(model: BertForSequenceClassification) -> None:
    """PaddlePaddle's default epsilon, 1e-5, in one norm; BERT has 1e-12."""
    model.bert.encoder.layers[1].norm1._epsilon = 1e-5


def gelu(model: BertForSequenceClassification) -> None:
    """GELU's tanh form in one layer."""
    model.bert.encoder.layers[1].activation = functools.partial(F.gelu, approximate=True)


def padding(model: BertForSequenceClassification) -> None:
    """Learn an embedding of the padding token."""
    model.bert.embeddings.word_embeddings._padding_idx = None


def transposed(model: BertForSequenceClassification) -> None:
    """Leave a square weight as PyTorch stores it."""
    weight = model.bert.encoder.layers[1].self_attn.q_proj.weight
    weight.set_value(weight.T.clone())


def dropout(model: BertForSequenceClassification) -> None:
    """Leave dropout on."""
    model.bert.encoder.layers[1].dropout1.p = 0.1


FAULTS: dict[str, Callable[[BertForSequenceClassification], None]] = {
    fault.__name__: fault for fault in (eps, gelu, padding, transposed, dropout)
}


@click.command()
@click.option("--weights", required=True, help="What probe convert has written.")
@click.option("--out", required=True, help="The recording to write, such as b.h5.")
@click.option("--task", type=click.Choice(["statistics", "tensor"]), default="statistics", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the first batch; 0 on the other side.")
@click.option("--fault", type=click.Choice(list(FAULTS)), help="Plant a fault.")
def main(weights: str, out: str, task: str, seed: int, fault: str | None) -> None:
    """Train the BERT of PaddlePaddle for two steps and record them."""
    model = BertForSequenceClassification(CONFIG)
    missing, unexpected = model.set_state_dict(paddle.load(weights))
    assert not missing and not unexpected, (missing, unexpected)
    if fault:
        FAULTS[fault](model)
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters())

    probe.start(model, out, task=task)
    for step in range(STEPS):
        batch = probe.make_inputs(BATCH, seed=seed + step, to="paddle")
        labels = batch.pop("labels")
        probe.log("labels", labels)
        loss = F.cross_entropy(model(**batch), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        probe.step(loss=loss)
        click.echo(f"step {step}  loss {loss.item():.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
