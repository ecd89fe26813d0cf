"""Clean pairs by number: any model, size, dtype, kernels, batch split, optimizer and steps that go together."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from benchmarks.localisation.pairs.making import clean
from benchmarks.localisation.pairs.pair import Pair

CONVOLUTIONS = ("cnn", "resnet", "unet", "gan")
NORMALISED = ("cnn", "resnet", "gan")
"""those whose batch normalisation makes a split of the batch another model"""
ATTENTION = ("qwen2", "llama", "mixtral", "gpt2", "bert", "vit", "t5", "whisper")
DRAWN = (*ATTENTION, "mamba", "cnn", "resnet", "lstm", "unet", "gan", "encoder", "recommender", "vae")
"""the architectures that are drawn; neither they nor their order may change: a number stays the same pair"""


def random_pair(number: int) -> Pair:
    """Return a clean pair; the same one for the same number."""
    chance = random.Random(number)
    architecture = chance.choice(DRAWN)
    dtype = chance.choice(["fp32", "fp32", "bf16", "autocast", "fp16"])
    if dtype == "fp16" and architecture in (*CONVOLUTIONS, "mamba", "t5"):
        dtype = "bf16"  # their values or gradients leave fp16's range
    setup: dict[str, Any] = {
        "dtype": dtype,
        "optimizer": "sgd" if dtype == "fp16" else chance.choice(["adamw", "adamw", "sgd"]),
        "steps": chance.randint(1, 4),
        "seed": number + 1,
        "clip": chance.choice([0.0, 0.0, 0.5]) if architecture != "gan" else 0.0,
    }
    if architecture not in NORMALISED and chance.random() < 0.25:
        setup["micros"] = 2
    sizes = random.Random(-1 - number)
    if architecture in (*ATTENTION, "mamba") and sizes.random() < 0.4:
        setup |= {"width": sizes.choice([1, 2, 4]), "layers": sizes.choice([0, 2, 5, 8])}
    pair = clean(architecture, "drawn", _other(architecture, setup, chance), **setup)
    return replace(pair, name=f"random/{number}/{pair.name}", set="drawn")


def _other(architecture: str, setup: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return fields in which B differs legitimately: one or two."""
    ways: list[dict[str, Any]] = [{"threads": 2}, {"split": 2}, {"split": 4}]
    if architecture in ATTENTION:
        ways += [{"attention": "eager"}] * 3
    if architecture in CONVOLUTIONS:
        ways += [{"channels_last": True}] * 3
    if setup["dtype"] != "autocast":
        ways += [{"doubled": True}]
    if architecture not in NORMALISED:
        ways += [{"micros": 4}]
    chosen: dict[str, Any] = {}
    for way in chance.sample(ways, chance.choice([1, 2])):
        chosen |= way
    return chosen
