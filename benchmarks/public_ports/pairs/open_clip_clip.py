"""open_clip's CLIP against transformers: packed attention, loose parameters, and the image's last norm before its pooling."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import stacked

HIDDEN, HEADS, LAYERS, VOCABULARY, LENGTH, SHARED = 32, 4, 2, 64, 10, 24
TOWERS = {"vision_model.encoder.layers": "visual.transformer.resblocks", "text_model.encoder.layers": "transformer.resblocks"}  # fmt: skip
VA, VB, TA, TB = (each for pair in TOWERS.items() for each in pair)


def _transformers() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    shape = {"hidden_size": HIDDEN, "intermediate_size": 4 * HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "projection_dim": SHARED}  # fmt: skip
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "eos_token_id": VOCABULARY - 1, "bos_token_id": VOCABULARY - 2}  # fmt: skip
    return CLIPModel(
        CLIPConfig(
            text_config={**shape, **text},
            vision_config={**shape, "patch_size": 8, "image_size": 16},
            projection_dim=SHARED,
        )
    )


def _open_clip() -> nn.Module:
    from open_clip.model import CLIP

    vision = {"layers": LAYERS, "width": HIDDEN, "head_width": HIDDEN // HEADS, "patch_size": 8, "image_size": 16}
    text = {"context_length": LENGTH, "vocab_size": VOCABULARY, "width": HIDDEN, "heads": HEADS, "layers": LAYERS}
    return CLIP(embed_dim=SHARED, vision_cfg=vision, text_cfg=text, quick_gelu=True)


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    text = torch.randint(1, VOCABULARY - 2, (4, LENGTH), generator=generator)
    text[:, -1] = VOCABULARY - 1
    return {"images": torch.randn(4, 3, 16, 16, generator=generator), "text": text}


def _contrast(logits: Tensor) -> Tensor:
    wanted = torch.arange(len(logits))
    return (F.cross_entropy(logits, wanted) + F.cross_entropy(logits.t(), wanted)) / 2


def _loss_a(model: nn.Module, batch: Batch) -> Tensor:
    return _contrast(model(input_ids=batch["text"], pixel_values=batch["images"]).logits_per_image)


def _loss_b(model: nn.Module, batch: Batch) -> Tensor:
    images, text, scale = model(batch["images"], batch["text"])
    return _contrast(scale * images @ text.t())


def _turned(x: Tensor) -> Tensor:
    return x.t()


def _one_way(model: nn.Module, batch: Batch) -> Tensor:
    images, text, scale = model(batch["images"], batch["text"])
    return F.cross_entropy(scale * images @ text.t(), torch.arange(len(images)))


def _unmasked(training: Any) -> None:
    training.model.attn_mask = torch.zeros_like(training.model.attn_mask)


def _sequence_pooled(training: Any) -> None:
    """Take the mean of all patches in the place of the class token."""
    training.model.visual.pool_type = "avg"


PAIR = Pair(
    name="open_clip_clip",
    a=Side(("transformers 5.23.0",), _transformers, _loss_a),
    b=Side(("open_clip_torch 3.3.0",), _open_clip, _loss_b),
    batch=_batch,
    weights={
        **{f"{b}.{{i}}.attn.in_proj_{kind}": (stacked, *(f"{a}.{{i}}.self_attn.{part}_proj.{kind}" for part in "qkv")) for a, b in TOWERS.items() for kind in ("weight", "bias")},
        **{f"{b}.{{i}}.attn.out_proj.{kind}": (stacked, f"{a}.{{i}}.self_attn.out_proj.{kind}") for a, b in TOWERS.items() for kind in ("weight", "bias")},
        "positional_embedding": (stacked, "text_model.embeddings.position_embedding.weight"),
        "visual.positional_embedding": (stacked, "vision_model.embeddings.position_embedding.weight"),
        "visual.class_embedding": (stacked, "vision_model.embeddings.class_embedding"),
        "text_projection": (_turned, "text_projection.weight"),
        "visual.proj": (_turned, "visual_projection.weight"),
    },
    faults=(
        Fault("norm_eps", plant.attribute("visual.ln_pre", eps=1e-3), ("vision_model.pre_layrnorm",), ("forward",)),
        Fault("text_norm_eps", plant.attribute(f"{TB}.1.ln_2", eps=1e-3), (f"{TA}.1.layer_norm2",), ("forward",)),
        Fault("gelu", plant.replaced(f"{VB}.1.mlp.gelu", lambda old: nn.GELU()), (f"{VA}.1.mlp.activation_fn",), ("forward",)),
        Fault("heads", plant.attribute(f"{VB}.0.attn", num_heads=2, head_dim=16), (f"{VA}.0.self_attn",), ("forward",)),
        Fault("no_mask", _unmasked, (f"{TA}.0.self_attn", f"{TA}.0", ""), ("forward", "init")),
        Fault("pooling", _sequence_pooled, ("vision_model", "vision_model.post_layernorm", "visual_projection", ""), ("forward",)),
        Fault("position_offset", plant.weight("", lambda x: x.roll(1, 0), "positional_embedding"), ("text_model.embeddings.position_embedding",), ("init",)),
        Fault("class_token", plant.weight("visual", lambda x: 0 * x, "class_embedding"), ("vision_model.embeddings",), ("init",)),
        Fault("projection", plant.weight("visual", lambda x: x * 1.02, "proj"), ("visual_projection",), ("init",)),
        Fault("packed_order", plant.weight(f"{TB}.0.attn", lambda x: torch.cat([x[32:64], x[:32], x[64:]]), "in_proj_weight"), tuple(f"{TA}.0.self_attn.{part}_proj" for part in "qkv") + (f"{TA}.0.self_attn",), ("init",)),
        Fault("logit_scale", plant.weight("", lambda x: x + 0.5, "logit_scale"), ("",), ("init",)),
        Fault("wrong_layer", plant.weights_of(f"{VB}.1.mlp.c_fc", f"{VB}.0.mlp.c_fc"), (f"{VA}.1.mlp.fc1",), ("init",)),
        Fault("residual", plant.forward(f"{TB}.0.mlp", lambda forward, x: forward(x) + x), (f"{TA}.0.mlp",), ("forward",)),
        Fault("detached", plant.detached(f"{VB}.1.mlp.c_fc"), (f"{VA}.1.mlp.fc1",), ("backward", "gradient")),
        Fault("one_way", plant.loss_by(lambda old, model, batch: _one_way(model, batch)), ("",), ("loss",)),
        Fault("learning_rate", plant.optimizer(lr=5e-4), ("",), ("update",)),
    ),
)  # fmt: skip
