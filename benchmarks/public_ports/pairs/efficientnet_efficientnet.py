"""efficientnet_pytorch against timm: one activation module called everywhere, and activations inside the norms."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import same

CLASSES, IMAGE, EPS, MOMENTUM = 10, 32, 1e-3, 0.01
BLOCKS = {"_blocks.1": "blocks.1.0", "_blocks.2": "blocks.1.1", "_blocks.3": "blocks.2.0", "_blocks.4": "blocks.2.1"}
"""those with an expansion; the first one has none"""
FIRST_A, FIRST_B = "_blocks.0", "blocks.0.0"


def _efficientnet_pytorch() -> nn.Module:
    from efficientnet_pytorch import EfficientNet
    from efficientnet_pytorch.utils import BlockDecoder, GlobalParams

    blocks = ["r1_k3_s11_e1_i32_o64_se0.25", "r2_k3_s22_e4_i64_o96_se0.25", "r2_k5_s22_e4_i96_o128_se0.25"]
    options = GlobalParams(
        width_coefficient=0.25, depth_coefficient=1.0, image_size=IMAGE, dropout_rate=0.0, num_classes=CLASSES,
        batch_norm_momentum=1 - MOMENTUM, batch_norm_epsilon=EPS, drop_connect_rate=0.0, depth_divisor=8, min_depth=None,
        include_top=True,
    )  # fmt: skip
    return EfficientNet(BlockDecoder.decode(blocks), options)


def _timm() -> nn.Module:
    from timm.models._efficientnet_builder import decode_arch_def
    from timm.models.efficientnet import EfficientNet

    stages = [["ds_r1_k3_s1_e1_c16_se0.25"], ["ir_r2_k3_s2_e4_c24_se0.25"], ["ir_r2_k5_s2_e4_c32_se0.25"]]
    return EfficientNet(
        decode_arch_def(stages), num_classes=CLASSES, num_features=320, stem_size=8, pad_type="same", act_layer=nn.SiLU,
        norm_layer=partial(nn.BatchNorm2d, eps=EPS, momentum=MOMENTUM),
    )  # fmt: skip


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    return {
        "image": torch.randn(6, 3, IMAGE, IMAGE, generator=generator),
        "label": torch.randint(CLASSES, (6,), generator=generator),
    }


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["image"]), batch["label"])


def _smoothed(old: Any, model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["image"]), batch["label"], label_smoothing=0.1)


def _every_norm(**values: float) -> plant.Plant:
    def change(training: Any) -> None:
        for module in training.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for name, value in values.items():
                    setattr(module, name, value)

    return change


def _padded_on_both_sides(old: nn.Conv2d) -> nn.Conv2d:
    """Return the convolution as PyTorch pads: TensorFlow pads an even image at its end alone."""
    new = nn.Conv2d(
        old.in_channels, old.out_channels, old.kernel_size, old.stride, padding=1, groups=old.groups, bias=False
    )
    new.weight = old.weight
    return new


def _frozen(training: Any) -> None:
    training.module("conv_stem").weight.requires_grad_(False)


_ACTIVATED = {f"{FIRST_A}._bn1": f"{FIRST_B}.bn1", "_bn0": "bn1", "_bn1": "bn2"} | {
    f"{a}._bn{i}": f"{b}.bn{i + 1}" for a, b in BLOCKS.items() for i in (0, 1)
}
"""norms that are followed by the activation in A and hold it in B: the same weights, other outputs"""
_OF_NORM = ("weight", "bias", "running_mean", "running_var")


PAIR = Pair(
    name="efficientnet_efficientnet",
    set="blind",
    a=Side(("efficientnet_pytorch 0.7.1",), _efficientnet_pytorch, _loss),
    b=Side(("timm 1.0.31",), _timm, _loss),
    batch=_batch,
    weights={f"{b}.{name}": (same, f"{a}.{name}") for a, b in _ACTIVATED.items() for name in _OF_NORM},
    faults=(
        Fault("norm_eps", _every_norm(eps=1e-5), ("_bn0", "_swish"), ("forward",), places_b=("bn1",)),
        Fault("padded_on_both_sides", plant.replaced("blocks.1.0.conv_dw", _padded_on_both_sides), ("_blocks.1._depthwise_conv",), ("forward",)),
        Fault("relu_in_squeeze", plant.replaced("blocks.2.0.se.act1", lambda old: nn.ReLU()), ("_blocks.3", "_blocks.3._swish"), ("forward",), places_b=("blocks.2.0.se.act1",)),
        Fault("hard_gate", plant.replaced("blocks.1.1.se.gate", lambda old: nn.Hardsigmoid()), ("_blocks.2",), ("forward",), places_b=("blocks.1.1.se.gate", "blocks.1.1.se")),
        Fault("no_skip", plant.attribute("blocks.2.1", has_skip=False), ("_blocks.4",), ("forward",)),
        Fault("norm_momentum", _every_norm(momentum=0.1), ("_bn0", "_bn1", "_blocks.*._bn*", ""), ("forward", "update"), places_b=tuple(_ACTIVATED.values())),
        Fault("kernel_flipped", plant.weight("blocks.2.0.conv_dw", lambda x: x.flip(-1)), ("_blocks.3._depthwise_conv",), ("init",)),
        Fault("stem_frozen", _frozen, ("_conv_stem",), ("gradient", "backward", "update")),
        Fault("label_smoothing", plant.loss_by(_smoothed), ("",), ("loss",)),
        Fault("head_learns_faster", plant.optimizer("classifier*", lr=1e-2), ("_fc",), ("update",)),
    ),
)  # fmt: skip
