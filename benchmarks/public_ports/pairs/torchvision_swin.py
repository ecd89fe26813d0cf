"""torchvision's Swin against transformers: windows cut inside of one's attention and around the other's, weights packed and apart."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.localisation.tools import surgery
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import same

WIDTH, HEADS, DEPTHS, WINDOW, IMAGE, PATCH, CLASSES = 16, (2, 4), (2, 2), 4, 32, 2, 10
STAGES = "swin.encoder.layers"
BLOCKS = {
    f"features.{2 * stage + 1}.{index}": f"{STAGES}.{stage}.blocks.{index}"
    for stage, depth in enumerate(DEPTHS)
    for index in range(depth)
}


def _torchvision() -> nn.Module:
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        [PATCH, PATCH], WIDTH, list(DEPTHS), list(HEADS), [WINDOW, WINDOW], mlp_ratio=2.0, stochastic_depth_prob=0.0,
        num_classes=CLASSES,
    )  # fmt: skip


def _transformers() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=IMAGE, patch_size=PATCH, embed_dim=WIDTH, depths=list(DEPTHS), num_heads=list(HEADS), window_size=WINDOW,
        mlp_ratio=2.0, drop_path_rate=0.0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5,
        num_labels=CLASSES,
    )  # fmt: skip
    return SwinForImageClassification(config)


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    return {
        "image": torch.randn(3, 3, IMAGE, IMAGE, generator=generator),
        "label": torch.randint(CLASSES, (3,), generator=generator),
    }


def _loss_a(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["image"]), batch["label"])


def _loss_b(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(pixel_values=batch["image"]).logits, batch["label"])


def _part(index: int) -> Any:
    return lambda packed: packed.chunk(3)[index]


def _merged_by_rows(training: Any) -> None:
    """Put the four neighbours side by side row by row, not column by column."""
    merging = training.module(f"{STAGES}.0.downsample")

    def forward(original: Any, x: Tensor, sizes: tuple[int, int]) -> Tensor:
        image = x.unflatten(1, sizes)
        neighbours = [image[:, row::2, column::2] for row in range(2) for column in range(2)]
        return merging.reduction(merging.norm(torch.cat(neighbours, -1).flatten(1, 2)))

    surgery.around(merging, forward)


def _index_transposed(index: Tensor) -> Tensor:
    return index.unflatten(0, (WINDOW**2, WINDOW**2)).T.flatten()


_TABLE = "relative_position_bias_table"
_WEIGHTS = {
    f"{b}.attention.{letter}_proj.{name}": (_part(index), f"{a}.attn.qkv.{name}")
    for a, b in BLOCKS.items()
    for index, letter in enumerate("qkv")
    for name in ("weight", "bias")
} | {f"{b}.attention.relative_position_bias.{_TABLE}": (same, f"{a}.attn.{_TABLE}") for a, b in BLOCKS.items()}
PAIR = Pair(
    name="torchvision_swin",
    set="blind",
    a=Side(("torchvision 0.28.0",), _torchvision, _loss_a),
    b=Side(("transformers 5.23.0",), _transformers, _loss_b),
    batch=_batch,
    weights=_WEIGHTS,
    faults=(
        Fault("not_shifted", plant.attribute(f"{STAGES}.0.blocks.1", shift_size=0), ("features.1.1.attn", "features.1.1"), ("forward",)),
        Fault("shift_unmasked", plant.calls(f"{STAGES}.1.blocks.1", "get_attn_mask", lambda old, *args, **kwargs: None), ("features.3.1.attn", "features.3.1"), ("forward",), places_b=(f"{STAGES}.1.blocks.1.attention",)),
        Fault("merged_by_rows", _merged_by_rows, ("features.2",), ("forward",)),
        Fault("scale_of_width", plant.attribute(f"{STAGES}.1.blocks.0.attention", scaling=(2 * WIDTH) ** -0.5), ("features.3.0.attn",), ("forward",), places_b=(f"{STAGES}.1.blocks.0.attention",)),
        Fault("gelu_tanh", plant.replaced(f"{STAGES}.1.blocks.1.mlp.activation_fn", lambda old: nn.GELU(approximate="tanh")), ("features.3.1.mlp.1",), ("forward",)),
        Fault("embedding_norm_eps", plant.attribute("swin.embeddings.norm", eps=1e-6), ("features.0.2",), ("forward",)),
        Fault("index_transposed", plant.weight(f"{STAGES}.0.blocks.0.attention.relative_position_bias", _index_transposed, "relative_position_index"), ("features.1.0.attn",), ("init", "forward"), places_b=(f"{STAGES}.0.blocks.0.attention.relative_position_bias", f"{STAGES}.0.blocks.0.attention")),
        Fault("no_value_bias", plant.weight(f"{STAGES}.0.blocks.1.attention.v_proj", lambda x: 0 * x, "bias"), ("features.1.1.attn.qkv",), ("init",), places_b=(f"{STAGES}.0.blocks.1.attention.v_proj",)),
        Fault("relative_bias_detached", plant.detached(f"{STAGES}.1.blocks.0.attention.relative_position_bias"), ("features.3.0.attn",), ("gradient", "backward"), places_b=(f"{STAGES}.1.blocks.0.attention.relative_position_bias",)),
        Fault("layerwise_learning_rate", plant.optimizer(f"{STAGES}.0.*", lr=0.75e-3), ("features.1.*", "features.2*", ""), ("update",)),
    ),
)  # fmt: skip
