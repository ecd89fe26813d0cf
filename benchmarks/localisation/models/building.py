"""Models with their weights, and the batches of their steps.

Weights and data are drawn by name from a fixed seed: a fault that adds or removes a module does not change the others'.
"""

from __future__ import annotations

import re
import zlib

import torch
from torch import Tensor, nn

from benchmarks.localisation.models.batches import Batch
from benchmarks.localisation.models.registry import ARCHITECTURES
from benchmarks.localisation.pairs.pair import Setup

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "autocast": torch.float32}
_KEPT = re.compile(r"A_log$|\.D$|dt_proj\.bias$")
"""parameters whose initial values have a meaning"""


def build(setup: Setup) -> nn.Module:
    """Return the model of a setup with its weights, without its faults."""
    architecture = ARCHITECTURES[setup.architecture]
    torch.manual_seed(setup.seed)
    model = architecture.build(setup).train()
    if architecture.weights_of is not None:
        other = build(Setup(architecture.baseline, seed=setup.seed, width=setup.width, layers=setup.layers))
        model.load_state_dict(architecture.weights_of(other.state_dict()))
    else:
        _draw_weights(model, setup.seed)
    if setup.rounded_to:
        model.to(DTYPES[setup.rounded_to])
    model.to(DTYPES[setup.dtype])
    if setup.channels_last:
        model.to(memory_format=torch.channels_last)
    return model


def batch(setup: Setup, step: int) -> Batch:
    """Return the batch of a step."""
    generator = torch.Generator().manual_seed(1000 * setup.seed + step)
    found = ARCHITECTURES[setup.architecture].batch(generator)
    first, dtype = DTYPES[setup.rounded_to or setup.dtype], DTYPES[setup.dtype]
    found = {key: value.to(first).to(dtype) if value.is_floating_point() else value for key, value in found.items()}
    if setup.channels_last:
        found = {k: v.to(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in found.items()}
    return found


@torch.no_grad()
def _draw_weights(model: nn.Module, seed: int) -> None:
    for name, parameter in model.named_parameters():
        if not _KEPT.search(name):
            parameter.copy_(_weight(name, parameter, seed))


def _weight(name: str, parameter: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    noise = torch.randn(parameter.shape, generator=generator)
    if parameter.dim() < 2:
        return 0.1 * noise + (0.0 if name.endswith("bias") or "bias_" in name else 1.0)
    is_table = re.search(r"embed|shared|wte|wpe|tables|relative|position|cls_token", name)
    if is_table:  # of unit variance at the models' own widths; wider ones would saturate every softmax
        return noise * min(1.0, 32 / parameter.shape[-1]) ** 0.5
    fan_in = parameter[0].numel() if parameter.dim() != 3 or "conv" in name else parameter.shape[-1]
    return noise * fan_in**-0.5
