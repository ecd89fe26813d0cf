"""What is dumped, and the right answers, written before any comparison ran."""

from __future__ import annotations

from dataclasses import dataclass

MSPROBE, PADIFF = "mindstudio-probe", "PaDiff"


@dataclass(frozen=True)
class Fault:
    """A fault, the model that it is planted into, and the module at which it must be named."""

    planted: str
    model: str
    path: str


FAULTS = {
    "eps": Fault("LayerNorm eps 1e-12 → 1e-3 in one norm", "bert", "layers.1.norm1"),
    "gelu": Fault("GELU's tanh form in one layer", "bert", "layers.1.act"),
    "transposed": Fault("a square weight left transposed", "bert", "layers.2.query"),
    "bias": Fault("a layer built without its bias", "bert", "layers.0.up"),
    "padding": Fault("average pooling that does not count the padding", "cnn", "pool2"),
    "gates": Fault("LSTM gates in the order i, g, f, o", "lstm", "lstm"),
    "frozen": Fault("a frozen layer", "bert", "layers.0.down"),
    "halved": Fault("half of a weight's gradient", "bert", "layers.1.key"),
}
MODELS = ("bert", "cnn", "lstm")
PORTED = tuple(FAULTS)[:6]
"""that ports can have; the gradient of one weight is changed in PyTorch alone"""


@dataclass(frozen=True)
class Side:
    """A training whose dump one tool writes."""

    tool: str
    framework: str
    task: str
    name: str
    """a model, or a fault in one"""
    is_again: bool = False
    """the same model with other kernels"""

    @property
    def model(self) -> str:
        """Of `MODELS`."""
        return FAULTS[self.name].model if self.name in FAULTS else self.name

    @property
    def label(self) -> str:
        """The name of the folder."""
        words = (self.tool, self.framework, self.task, self.name, "again" if self.is_again else "")
        return "-".join(filter(None, words)).lower()


@dataclass(frozen=True)
class Pair:
    """Two dumps, and the module that is wrong in the second; nothing is in a clean pair."""

    a: Side
    b: Side

    @property
    def path(self) -> str:
        """The module, the same in both trees."""
        return FAULTS[self.b.name].path if self.b.name in FAULTS else ""


def pairs() -> list[Pair]:
    """Return 20 pairs with a fault, then 10 without."""
    tasks = {name: "statistics" if name in ("gelu", "padding", "gates") else "tensor" for name in FAULTS}
    torch = [(MSPROBE, "torch", task, name, False) for name, task in tasks.items()]
    ports = [(tool, to, "tensor", name, False) for tool, to in PORTS.items() for name in PORTED]
    again = [(MSPROBE, "torch", task, name, True) for task, name in AGAIN]
    clean = [(tool, to, "tensor", name, False) for tool, to in PORTS.items() for name in MODELS]
    sides = [Side(*each) for each in (*torch, *ports, *again, *clean)]
    return [Pair(Side(each.tool, "torch", each.task, each.model), each) for each in sides]


PORTS = {MSPROBE: "mindspore", PADIFF: "paddle"}
AGAIN = (("tensor", "bert"), ("tensor", "cnn"), ("tensor", "lstm"), ("statistics", "bert"))
