"""The pairs of PyTorch with PaddlePaddle and MindSpore. They were written before any answer was looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.localisation.faults.registry import FAULTS
from benchmarks.localisation.pairs.making import Table
from benchmarks.localisation.pairs.pair import Pair, Planted, Setup, Truth
from benchmarks.localisation.tools.frameworks.training import PACKED_MAPPING

_MAPPINGS: dict[tuple[str, str], Any] = {
    ("mindspore", "port-encoder"): "torch/mindspore",
    ("paddle", "port-packed"): PACKED_MAPPING,
    ("mindspore", "port-packed"): PACKED_MAPPING,
}


def framework_port(
    framework: str,
    architecture: str,
    fault: str = "",
    path: str = "",
    *,
    answer: str | None = None,
    size: float | None = None,
    step: int = 0,
    phases: tuple[str, ...] = (),
    **setup: Any,
) -> Pair:
    """Return a pair of a model and its port, which may have one fault.

    Parameters
    ----------
    path
        the port's module
    answer
        the right module of the baseline, where it is not ``path``
    phases
        the right ones, where they are not the fault's
    """
    setup = {"optimizer": "sgd", "steps": step + 1 if fault else 3, **setup}
    a = Setup(architecture.replace("packed", "bert"), **setup)
    b = replace(a, architecture=architecture, framework=framework)
    mapping = _MAPPINGS.get((framework, architecture))
    name = [architecture, framework, a.dtype, fault or "clean", path, "" if size is None else f"{size:g}", a.optimizer]
    name += [f"steps{a.steps}"] if a.steps > 1 else []
    label = "/".join(part for part in name if part)
    if not fault:
        return Pair(label, a, b, mapping=mapping, about=f"a port to {framework}")
    b = replace(b, planted=(Planted(fault, path, size, step),))
    known = FAULTS[fault]
    if answer is None:
        answer = "" if known.is_whole or known.phases == ("update",) and fault != "left_out" else path
    truth = Truth(answer, phases or known.phases, step)
    return Pair(label, a, b, truth, mapping=mapping, about=known.about)


def _framework_fault(pair: Pair, truth: Truth, about: str) -> Pair:
    """Return a pair of which the first fault is the framework's own: found by this benchmark, confirmed without probe."""
    name = pair.name.replace("/clean/", "/own/") if "/clean/" in pair.name else f"{pair.name}/own"
    return replace(pair, name=name, truth=truth, about=about)


_NONE = ("gradient", "update")
"""MindSpore makes no gradients of parameters that its optimizer was not given"""
_PADDLE: tuple[Pair, ...] = (
    framework_port("paddle", "port-bert", "eps", "layers.1.norm1", size=1e-5),
    framework_port("paddle", "port-bert", "gelu_tanh", "layers.2.act"),
    framework_port("paddle", "port-bert", "transposed", "layers.0.key"),
    framework_port("paddle", "port-bert", "gradient", "layers.1.down", size=1e-2),
    framework_port("paddle", "port-bert", "detached", "layers.2.up"),
    framework_port("paddle", "port-bert", "left_out", "layers.0.out"),
    framework_port("paddle", "port-bert", "loss_scaled", size=1e-4),
    framework_port("paddle", "port-bert", "lr", size=0.05, optimizer="adam"),
    framework_port("paddle", "port-bert", "scaled", "layers.1.value", size=1e-3, step=1),
    framework_port("paddle", "port-cnn", "pool_padding", "pool2"),
    framework_port("paddle", "port-cnn", "weight_gradient", "head", size=1e-3),
    framework_port("paddle", "port-cnn", "momentum", "bn2", size=0.2),
    framework_port("paddle", "port-encoder", "scaled", "layers.1.linear2", size=1e-3),
    framework_port("paddle", "port-lstm", "gates", "lstm"),
    framework_port("paddle", "port-mlp", "frozen", "fc1"),
    framework_port("paddle", "port-mlp", "beta2", size=0.99, steps=2, optimizer="adam"),
    framework_port("paddle", "port-packed", "shifted", "blocks.1.attention.proj", size=1e-4, answer="layers.1.out"),
    framework_port("paddle", "port-packed", "gradient", "blocks.2.mlp.up", size=1e-2, answer="layers.2.up"),
    framework_port("paddle", "port-packed", "rows", "layers.1.up"),
    framework_port("paddle", "port-packed", "decay", size=0.01),
    *(framework_port("paddle", f"port-{name}", optimizer="adam") for name in ("mlp", "cnn", "lstm", "encoder", "bert")),
    framework_port("paddle", "port-packed"),
    framework_port("paddle", "port-cnn"),
)
_MINDSPORE: tuple[Pair, ...] = (
    framework_port("mindspore", "port-bert", "eps", "layers.0.norm2", size=1e-5),
    framework_port("mindspore", "port-bert", "gelu_tanh", "layers.1.act"),
    framework_port("mindspore", "port-bert", "transposed", "layers.2.out"),
    framework_port("mindspore", "port-bert", "output_gradient", "layers.1.query", size=1e-2),
    framework_port("mindspore", "port-bert", "detached", "layers.0.down"),
    framework_port("mindspore", "port-bert", "sum"),
    framework_port("mindspore", "port-bert", "decay", size=0.01),
    framework_port("mindspore", "port-cnn", "pool_padding", "pool2"),
    framework_port("mindspore", "port-cnn", "weight_gradient", "head", size=1e-2),
    framework_port("mindspore", "port-cnn", "lr", size=0.1),
    framework_port("mindspore", "port-encoder", "shifted", "layers.0.dense1", size=1e-3, answer="layers.0.linear1"),
    framework_port("mindspore", "port-encoder", "frozen", "layers.1.dense2", answer="layers.1.linear2"),
    framework_port("mindspore", "port-lstm", "scaled", "lstm", size=1e-4),
    framework_port("mindspore", "port-lstm", "gradient_lost", "head"),
    framework_port("mindspore", "port-mlp", "beta1", size=0.8, steps=2, optimizer="adam"),
    framework_port("mindspore", "port-mlp", "scaled", "act", size=0.05, dtype="fp16"),
    framework_port("mindspore", "port-mlp", "gradient", "fc2", size=1.0, dtype="fp16"),
    framework_port("mindspore", "port-cnn", "shifted", "conv2", size=0.2, dtype="fp16"),
    framework_port("mindspore", "port-mlp", "lr", size=1.0, dtype="fp16"),
    _framework_fault(
        framework_port("mindspore", "port-cnn", "lr", size=1.0, dtype="fp16"),
        Truth("bn1", ("forward", "update"), also=("bn2",)),
        "MindSpore's BatchNorm keeps no running statistics in fp16 on the CPU; then the learning rate × 2",
    ),
    _framework_fault(
        framework_port("mindspore", "port-lstm", dtype="fp16"),
        Truth("lstm", ("backward",)),
        "what MindSpore's LSTM passes back in fp16 on the CPU is not finite",
    ),
    framework_port("mindspore", "port-packed", "scaled", "blocks.0.mlp.down", size=1e-4, answer="layers.0.down"),
    framework_port("mindspore", "port-packed", "gradient", "blocks.1.attention.proj", size=1e-2, answer="layers.1.out"),
    framework_port("mindspore", "port-packed", "left_out", "blocks.2.mlp.down", answer="layers.2.down", phases=_NONE),
    *(
        framework_port("mindspore", f"port-{name}", optimizer="adam")
        for name in ("mlp", "cnn", "lstm", "encoder", "bert")
    ),
    framework_port("mindspore", "port-packed"),
    framework_port("mindspore", "port-mlp", dtype="fp16"),
)
FRAMEWORKS: Table = {"ports": (*_PADDLE, *_MINDSPORE)}
