"""segment-anything's image encoder against transformers: windows with padding, positions relative in two axes, channels last."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side

HIDDEN, HEADS, LAYERS, CHANNELS, IMAGE, PATCH, WINDOW = 32, 4, 4, 16, 32, 4, 3
GLOBAL = (1, 3)
A, B = "blocks", "vision_encoder.layers"


def _segment_anything() -> nn.Module:
    from segment_anything.modeling import ImageEncoderViT

    return ImageEncoderViT(
        img_size=IMAGE, patch_size=PATCH, embed_dim=HIDDEN, depth=LAYERS, num_heads=HEADS, mlp_ratio=2, out_chans=CHANNELS,
        norm_layer=partial(nn.LayerNorm, eps=1e-6), use_rel_pos=True, window_size=WINDOW, global_attn_indexes=GLOBAL,
    )  # fmt: skip


def _transformers() -> nn.Module:
    from transformers import SamVisionConfig, SamVisionModel

    return SamVisionModel(
        SamVisionConfig(
            hidden_size=HIDDEN, output_channels=CHANNELS, num_hidden_layers=LAYERS, num_attention_heads=HEADS, image_size=IMAGE,
            patch_size=PATCH, window_size=WINDOW, global_attn_indexes=list(GLOBAL), mlp_dim=2 * HIDDEN, layer_norm_eps=1e-6,
        )
    )  # fmt: skip


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    side = IMAGE // PATCH
    return {
        "image": torch.randn(2, 3, IMAGE, IMAGE, generator=generator),
        "target": torch.randn(2, CHANNELS, side, side, generator=generator),
    }


def _loss_a(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["image"]), batch["target"])


def _loss_b(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["image"]).last_hidden_state, batch["target"])


def _axes_exchanged(old: Any, query: Tensor, of_rows: Tensor, of_columns: Tensor, *sizes: Any) -> Tensor:
    return old(query, of_columns, of_rows, *sizes)


def _of_scaled_query(old: Any, query: Tensor, *others: Any) -> Tensor:
    return old(query * query.shape[-1] ** -0.5, *others)


def _rows_detached(old: Any, query: Tensor, of_rows: Tensor, *others: Any) -> Tensor:
    return old(query, of_rows.detach(), *others)


def _key_first(packed: Tensor) -> Tensor:
    query, key, value = packed.chunk(3)
    return torch.cat((key, query, value))


def _packed(training: Any) -> None:
    for name in ("weight", "bias"):
        plant.weight(f"{B}.1.attn.qkv", _key_first, name)(training)


def _blue_first(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "image": batch["image"].flip(1)}


PAIR = Pair(
    name="segment_anything_encoder",
    set="blind",
    a=Side(("segment-anything 1.0",), _segment_anything, _loss_a),
    b=Side(("transformers 5.23.0",), _transformers, _loss_b),
    batch=_batch,
    weights={"vision_encoder.pos_embed": (lambda positions: positions, "pos_embed")},
    faults=(
        Fault("windowed_for_global", plant.attribute(f"{B}.1", window_size=WINDOW), (f"{A}.1", f"{A}.1.attn"), ("forward",)),
        Fault("relative_axes_exchanged", plant.calls(f"{B}.0.attn", "get_decomposed_rel_pos", _axes_exchanged), (f"{A}.0.attn",), ("forward",)),
        Fault("relative_of_scaled_query", plant.calls(f"{B}.3.attn", "get_decomposed_rel_pos", _of_scaled_query), (f"{A}.3.attn",), ("forward",)),
        Fault("neck_norm_eps", plant.attribute("vision_encoder.neck.layer_norm2", eps=1e-5), ("neck.3",), ("forward",)),
        Fault("gelu_tanh", plant.replaced(f"{B}.2.mlp.act", lambda old: nn.GELU(approximate="tanh")), (f"{A}.2.mlp.act",), ("forward",)),
        Fault("blue_first", plant.batches(_blue_first), ("", "patch_embed", "patch_embed.proj"), ("forward",)),
        Fault("positions_transposed", plant.weight("vision_encoder", lambda x: x.transpose(1, 2), "pos_embed"), ("",), ("init",)),
        Fault("packed_in_other_order", _packed, (f"{A}.1.attn.qkv",), ("init",)),
        Fault("relative_rows_detached", plant.calls(f"{B}.2.attn", "get_decomposed_rel_pos", _rows_detached), (f"{A}.2.attn",), ("gradient", "backward")),
        Fault("relative_without_decay", plant.optimizer("*rel_pos*", weight_decay=0.0), (f"{A}.*.attn", ""), ("update",)),
    ),
)  # fmt: skip
