"""ViT: timm's names with queries, keys and values in one, against transformers'."""

from __future__ import annotations

import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

CONFIG = ViTConfig(
    hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4,
    num_labels=5, hidden_dropout_prob=0.0, attn_implementation="eager",
)  # fmt: skip


class PatchEmbed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, CONFIG.patch_size, CONFIG.patch_size)
        self.norm = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.proj(x).flatten(2).transpose(1, 2))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm = nn.Identity()
        self.k_norm = nn.Identity()
        self.attn_drop = nn.Dropout(0.0)
        self.norm = nn.Identity()
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        weights = self.attn_drop((q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).softmax(-1))
        return self.proj_drop(self.proj(self.norm((weights @ v).transpose(1, 2).reshape(batch, length, width))))


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(0.0)
        self.norm = nn.Identity()
        self.fc2 = nn.Linear(hidden, width)
        self.drop2 = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop2(self.fc2(self.norm(self.drop1(self.act(self.fc1(x))))))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, CONFIG.layer_norm_eps)
        self.attn = Attention(width, heads)
        self.ls1 = nn.Identity()
        self.drop_path1 = nn.Identity()
        self.norm2 = nn.LayerNorm(width, CONFIG.layer_norm_eps)
        self.mlp = Mlp(width, hidden)
        self.ls2 = nn.Identity()
        self.drop_path2 = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = CONFIG.hidden_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (CONFIG.image_size // CONFIG.patch_size) ** 2 + 1, width))
        self.patch_embed = PatchEmbed(width)
        self.pos_drop = nn.Dropout(0.0)
        self.patch_drop = nn.Identity()
        self.norm_pre = nn.Identity()
        self.blocks = nn.Sequential(
            *(
                Block(width, CONFIG.num_attention_heads, CONFIG.intermediate_size)
                for _ in range(CONFIG.num_hidden_layers)
            )
        )
        self.norm = nn.LayerNorm(width, CONFIG.layer_norm_eps)
        self.fc_norm = nn.Identity()
        self.head_drop = nn.Dropout(0.0)
        self.head = nn.Linear(width, CONFIG.num_labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        x = self.norm(self.blocks(self.norm_pre(self.patch_drop(self.pos_drop(x)))))
        return self.head(self.head_drop(self.fc_norm(x[:, 0])))


_NAMES = {"norm1": "layernorm_before", "norm2": "layernorm_after", "attn.proj": "attention.o_proj", "mlp.fc1": "mlp.fc1",
          "mlp.fc2": "mlp.fc2"}  # fmt: skip
_TOP = {"patch_embed.proj": "vit.embeddings.patch_embeddings.projection", "norm": "vit.layernorm", "head": "classifier"}


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = VisionTransformer(), ViTForImageClassification(CONFIG)
    for parameter in b.parameters():
        nn.init.normal_(parameter, std=0.1)
    state = b.state_dict()
    made = {"cls_token": state["vit.embeddings.cls_token"], "pos_embed": state["vit.embeddings.position_embeddings"]}
    names = dict(_TOP)
    for i in range(CONFIG.num_hidden_layers):
        names |= {f"blocks.{i}.{ours}": f"vit.layers.{i}.{theirs}" for ours, theirs in _NAMES.items()}
        for slot in ("weight", "bias"):
            parts = [state[f"vit.layers.{i}.attention.{part}_proj.{slot}"] for part in "qkv"]
            made[f"blocks.{i}.attn.qkv.{slot}"] = torch.cat(parts)
    for ours, theirs in names.items():
        made |= {f"{ours}.{slot}": state[f"{theirs}.{slot}"] for slot in ("weight", "bias")}
    a.load_state_dict(made)
    return a, b, (torch.randn(3, 3, CONFIG.image_size, CONFIG.image_size),)
