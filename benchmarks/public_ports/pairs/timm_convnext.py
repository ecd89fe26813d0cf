"""timm's ConvNeXt against torchvision's: blocks of one Sequential, layer scales [C] and [C, 1, 1]."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side

WIDTHS, DEPTHS, CLASSES = (8, 16, 24, 32), (1, 2, 1, 1), 10


def _torchvision() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    further = (*WIDTHS[1:], None)
    return ConvNeXt([CNBlockConfig(*each) for each in zip(WIDTHS, further, DEPTHS, strict=True)], num_classes=CLASSES)


def _timm() -> nn.Module:
    from timm.models.convnext import ConvNeXt

    return ConvNeXt(num_classes=CLASSES, depths=DEPTHS, dims=WIDTHS)


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    images = torch.randn(3, 3, 64, 64, generator=generator)
    return {"images": images, "labels": torch.randint(CLASSES, (3,), generator=generator)}


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["images"]), batch["labels"])


def _max_pooled(training: Any) -> None:
    training.model.head.global_pool.pool = nn.AdaptiveMaxPool2d(1)


A, B = "features.3", "stages.1.blocks"
PAIR = Pair(
    name="timm_convnext",
    a=Side(("torchvision 0.28.0",), _torchvision, _loss),
    b=Side(("timm 1.0.31",), _timm, _loss),
    batch=_batch,
    weights={
        f"stages.{stage}.blocks.{{i}}.gamma": (torch.flatten, f"features.{2 * stage + 1}.{{i}}.layer_scale") for stage in range(4)
    },
    faults=(
        Fault("norm_eps", plant.attribute(f"{B}.1.norm", eps=1e-3), (f"{A}.1.block.2",), ("forward",)),
        Fault("head_norm_eps", plant.attribute("head.norm", eps=1e-5), ("classifier.0",), ("forward",)),
        Fault("gelu_tanh", plant.forward("stages.2.blocks.0.mlp.act", lambda forward, x: F.gelu(x, approximate="tanh")), ("features.5.0.block.4",), ("forward",)),
        Fault("layer_scale", plant.weight(f"{B}.0", lambda x: x * 1.1, "gamma"), (f"{A}.0",), ("init",)),
        Fault("scale_twice", plant.output(f"{B}.1.mlp", lambda x: x * 2), (f"{A}.1", f"{A}.1.block", f"{A}.1.block.5"), ("forward",)),
        Fault("padding", plant.attribute("stages.0.blocks.0.conv_dw", padding_mode="circular", _reversed_padding_repeated_twice=[3, 3, 3, 3]), ("features.1.0.block.0",), ("forward",)),
        Fault("kernel_turned", plant.weight("stages.2.blocks.0.conv_dw", lambda x: x.transpose(-1, -2)), ("features.5.0.block.0",), ("init",)),
        Fault("max_pooling", _max_pooled, ("avgpool",), ("forward",), places_b=("head.global_pool.pool", "head.global_pool")),
        Fault("no_bias", plant.weight("stages.1.downsample.1", lambda x: 0 * x, "bias"), ("features.2.1",), ("init",)),
        Fault("wrong_layer", plant.weights_of(f"{B}.1.mlp.fc1", f"{B}.0.mlp.fc1"), (f"{A}.1.block.3",), ("init",)),
        Fault("residual_lost", plant.forward(f"{B}.1", lambda forward, x: forward(x) - x), (f"{A}.1",), ("forward",)),
        Fault("stochastic_depth", plant.forward(f"{B}.0.drop_path", lambda forward, x: F.dropout(x, 0.2)), (f"{A}.0", f"{A}.0.stochastic_depth"), ("forward",)),
        Fault("gamma_frozen", plant.weight_gradient(f"{B}.0", lambda gradient: 0 * gradient, "gamma"), (f"{A}.0",), ("gradient",)),
        Fault("detached", plant.detached("stages.2.blocks.0.mlp"), ("features.5.0.block.5", "features.5.0.block", "features.5.0"), ("backward", "gradient")),
        Fault("label_smoothing", plant.loss_by(lambda old, model, batch: F.cross_entropy(model(batch["images"]), batch["labels"], label_smoothing=0.1)), ("",), ("loss",)),
        Fault("eps_of_adam", plant.optimizer(eps=1e-4), ("",), ("update",)),
    ),
)  # fmt: skip
