"""What is planted on the side of PaddlePaddle or MindSpore, and the right answers, written before any comparison ran."""

from __future__ import annotations

from dataclasses import dataclass

MODELS = ("mlp", "cnn", "lstm", "encoder", "bert")
OPTIMIZERS = ("sgd", "adam")
TARGETS = ("paddle", "mindspore")
MAPPINGS = {"mindspore": {"encoder": "torch/mindspore"}}


@dataclass(frozen=True)
class Fault:
    """A fault, the model that it is planted into, and where it must be found."""

    planted: str
    model: str
    phase: str
    kind: str
    path: str
    """of the module, the same in both trees; ``""`` for the model as a whole"""


FAULTS = {
    "eps": Fault("LayerNorm eps 1e-12 → 1e-3 in one norm", "bert", "forward", "introduced", "layers.1.norm1"),
    "gelu": Fault("GELU's tanh form in one layer", "bert", "forward", "introduced", "layers.1.act"),
    "transposed": Fault("a square weight left transposed", "bert", "init", "init", "layers.2.query"),
    "momentum": Fault("BatchNorm momentum 0.9 → 0.8", "cnn", "forward", "introduced", "bn1"),
    "bias": Fault("a layer built without its bias", "bert", "forward", "introduced", "layers.0.up"),
    "padding": Fault("average pooling that does not count the padding", "cnn", "forward", "introduced", "pool2"),
    "gates": Fault("LSTM gates in the order i, g, f, o", "lstm", "init", "init", "lstm"),
    "frozen": Fault("a frozen layer", "bert", "gradient", "missing", "layers.0.down"),
    "reduction": Fault("the sum instead of the mean in the loss", "bert", "loss", "introduced", ""),
    "decay": Fault("weight decay 0.01 instead of none", "bert", "update", "update", ""),
}
