"""timm's ViT against transformers: packed attention, loose class token and positions, the head on the normed class token."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import same, stacked

HIDDEN, HEADS, LAYERS, CLASSES = 32, 4, 3, 10
A, B = "vit.layers", "blocks"


def _transformers() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * HIDDEN,
            image_size=16, patch_size=4, num_labels=CLASSES, layer_norm_eps=1e-6,
        )
    )  # fmt: skip


def _timm() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=16, patch_size=4, num_classes=CLASSES, embed_dim=HIDDEN, depth=LAYERS, num_heads=HEADS,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )  # fmt: skip


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    images = torch.randn(4, 3, 16, 16, generator=generator)
    return {"images": images, "labels": torch.randint(CLASSES, (4,), generator=generator)}


def _loss_a(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["images"]).logits, batch["labels"])


def _loss_b(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["images"]), batch["labels"])


def _mean_pooled(training: Any) -> None:
    training.model.global_pool = "avg"


def _post_norm(block: Any, x: Tensor) -> Tensor:
    x = block.norm1(x + block.attn(x))
    return block.norm2(x + block.mlp(x))


PAIR = Pair(
    name="timm_vit",
    a=Side(("transformers 5.23.0",), _transformers, _loss_a),
    b=Side(("timm 1.0.31",), _timm, _loss_b),
    batch=_batch,
    weights={
        "cls_token": (same, "vit.embeddings.cls_token"),
        "pos_embed": (same, "vit.embeddings.position_embeddings"),
        **{f"{B}.{{i}}.attn.qkv.{kind}": (stacked, *(f"{A}.{{i}}.attention.{part}_proj.{kind}" for part in "qkv")) for kind in ("weight", "bias")},
    },
    faults=(
        Fault("norm_eps", plant.attribute(f"{B}.1.norm1", eps=1e-4), (f"{A}.1.layernorm_before",), ("forward",)),
        Fault("final_norm_eps", plant.attribute("norm", eps=1e-5), ("vit.layernorm",), ("forward",)),
        Fault("gelu_tanh", plant.forward(f"{B}.0.mlp.act", lambda forward, x: F.gelu(x, approximate="tanh")), (f"{A}.0.mlp.activation_fn",), ("forward",)),
        Fault("heads", plant.attribute(f"{B}.1.attn", num_heads=8, head_dim=4), (f"{A}.1.attention",), ("forward",)),
        Fault("post_norm", plant.forward(f"{B}.2", lambda forward, x, *args, **kwargs: _post_norm(forward.__self__, x)), (f"{A}.2", f"{A}.2.attention", f"{A}.2.layernorm_before", f"{A}.2.attention.*_proj"), ("forward",)),
        Fault("mean_pooling", _mean_pooled, ("vit", "classifier", "vit.layernorm", ""), ("forward",)),
        Fault("position_grid", plant.weight("", lambda x: torch.cat([x[:, :1], x[:, 1:].unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2)], 1), "pos_embed"), ("vit.embeddings",), ("init",)),
        Fault("class_last", plant.calls("", "_pos_embed", lambda embed, x: embed(x).roll(-1, 1)), ("vit.embeddings", f"{A}.0", ""), ("forward",)),
        Fault("image_channels", plant.first_input("patch_embed", lambda x: x.flip(1)), ("vit.embeddings.patch_embeddings", "vit.embeddings.patch_embeddings.projection"), ("forward",)),
        Fault("no_bias", plant.weight(f"{B}.2.attn.qkv", lambda x: torch.cat([x[:64], 0 * x[64:]]), "bias"), (f"{A}.2.attention.v_proj", f"{A}.2.attention.[qk]_proj"), ("init",)),
        Fault("wrong_layer", plant.weights_of(f"{B}.2.norm2", f"{B}.1.norm2"), (f"{A}.2.layernorm_after",), ("init",)),
        Fault("transposed", plant.weight(f"{B}.1.attn.proj", lambda x: x.t()), (f"{A}.1.attention.o_proj",), ("init",)),
        Fault("dropout", plant.attribute(f"{B}.1.mlp.drop2", p=0.1), (f"{A}.1.mlp", f"{A}.1", f"{A}.1.dropout"), ("forward",), places_b=(f"{B}.1.mlp.drop2",)),
        Fault("residual", plant.forward(f"{B}.0.attn", lambda forward, x, *args, **kwargs: forward(x, *args, **kwargs) + x), (f"{A}.0.attention",), ("forward",)),
        Fault("frozen", plant.weight_gradient("patch_embed.proj", lambda gradient: 0 * gradient), ("vit.embeddings.patch_embeddings.projection",), ("gradient", "backward")),
        Fault("loss_scale", plant.loss_scaled(4.0), ("",), ("loss",)),
        Fault("decay", plant.optimizer(weight_decay=lambda old: old / 2), ("",), ("update",)),
    ),
)  # fmt: skip
