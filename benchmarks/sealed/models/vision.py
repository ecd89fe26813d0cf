"""ViT, ConvNeXt and SigLIP of transformers against ports with other layouts, and Swin against itself."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import HERE, Sides, model
from ...blind.training import Training, batches, give, ids, normal, token_loss
from ..frame import after, bad_backward, before, detached, kernels, ported, times
from ..parts import attend, heads, norm, weights


def images(name, size, classes=6, number=4, **options):
    """A classifier of random images."""
    return lambda make: Training(
        hub.made(make),
        lambda model, batch: model(batch["pixels"]).logits,
        token_loss,
        batches(lambda g: {"pixels": normal(g, number, 3, size, size), "labels": ids(g, number, below=classes)}, name),
        **options,
    )


def vit():
    return images("s-vit", 16)(hub.of("vit"))


class TorchVit(nn.Module):
    """Patches by a linear layer, torch's encoder with packed projections."""

    def __init__(self):
        super().__init__()
        self.patch, self.start = nn.Linear(48, 32), nn.Parameter(torch.zeros(1, 1, 32))
        self.where, self.mean, self.std = nn.Parameter(torch.zeros(1, 17, 32)), 0.0, 1.0
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(32, 1e-6), enable_nested_tensor=False)
        self.classify = nn.Linear(32, 6)

    def patches(self, x):
        return F.unfold((x - self.mean) / self.std, 4, stride=4).mT

    def forward(self, x):
        x = self.patch(self.patches(x))
        x = torch.cat([self.start.expand(len(x), -1, -1), x], 1) + self.where
        return self.classify(self.encoder(x)[:, 0])


V = "vit.layers.#."
VIT_RULES = {
    "patch.weight": lambda a: a("vit.embeddings.patch_embeddings.projection.weight").flatten(1),
    "patch.bias": "vit.embeddings.patch_embeddings.projection.bias",
    "start": "vit.embeddings.cls_token",
    "where": "vit.embeddings.position_embeddings",
    "classify.weight": "classifier.weight",
    "classify.bias": "classifier.bias",
    **{
        f"encoder.layers.#.self_attn.in_proj_{p}": [f"{V}attention.{n}_proj.{p}" for n in "qkv"]
        for p in ("weight", "bias")
    },
    **{
        f"encoder.layers.#.{new}.{p}": f"{V}{old}.{p}"
        for p in ("weight", "bias")
        for new, old in (
            ("self_attn.out_proj", "attention.o_proj"),
            ("linear1", "mlp.fc1"),
            ("linear2", "mlp.fc2"),
            ("norm1", "layernorm_before"),
            ("norm2", "layernorm_after"),
        )
    },
    **{f"encoder.norm.{p}": f"vit.layernorm.{p}" for p in ("weight", "bias")},
}


def _transposed_patches(self, x):
    return F.unfold(x.mT, 4, stride=4).mT


VIT = model(
    "s-vit",
    vit,
    {
        "norm-last": P.setting(HERE, norm_first=False),
        "gelu-tanh": P.setting(HERE, activation=lambda x: F.gelu(x, approximate="tanh")),
        "rows-and-columns": P.method("", "patches", _transposed_patches),
        "mean-subtracted": P.each_batch(lambda b: b | {"pixels": (b["pixels"] - 0.1) / 1.1}),
        "position-rows": P.values("", "where", lambda w: torch.cat([w[:, :1], w[:, 1:].flip(1)], 1)),
        "query-detached": P.around(HERE, lambda forward, q, k, v, **o: forward(q.detach(), k, v, **o)),
        "value-bias": P.parameter_gradient(HERE, "in_proj_bias", lambda g: torch.cat([g[:64], g[64:] * 0])),
        "smoothing": P.criterion(lambda y, b: F.cross_entropy(y, b["labels"], label_smoothing=0.1)),
        "norm-eps": P.setting(HERE, eps=1e-5),
        "sdpa-a": Sides(a=kernels("sdpa")),
    },
    port=ported(vit, TorchVit, VIT_RULES, 3, give("pixels")),
)


class NhwcBlock(nn.Module):
    """ConvNeXt's block on [batch, height, width, channels] with bare parameters."""

    def __init__(self, size: int):
        super().__init__()
        self.p = weights(
            taps=(size, 1, 7, 7),
            taps_b=(size,),
            g=(size,),
            b=(size,),
            up=(4 * size, size),
            up_b=(4 * size,),
            down=(size, 4 * size),
            down_b=(size,),
            scale=(size,),
        )
        self.padding, self.eps = 3, 1e-6

    def spread(self, x):
        return F.conv2d(x.permute(0, 3, 1, 2), self.p.taps, self.p.taps_b, padding=self.padding, groups=x.shape[-1])

    def inner(self, x):
        return F.linear(F.gelu(F.linear(x, self.p.up, self.p.up_b)), self.p.down, self.p.down_b)

    def forward(self, x):
        y = norm(self.spread(x).permute(0, 2, 3, 1), self.p.g, self.p.b, self.eps)
        return x + self.p.scale * self.inner(y)


class Shrink(nn.Module):
    """Squares of 2 by 2 into one, by a linear layer."""

    def __init__(self, size: int, to: int):
        super().__init__()
        self.lin = nn.Linear(4 * size, to)

    def forward(self, x):
        x = x.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 1, 3, 5, 2, 4)
        return self.lin(x.flatten(3))


class NhwcNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.stem_norm = Shrink(3, 16), nn.LayerNorm(16, 1e-6)
        self.low, self.high = (nn.ModuleList([NhwcBlock(s) for _ in range(2)]) for s in (16, 24))
        self.mid_norm, self.mid, self.end = nn.LayerNorm(16, 1e-6), Shrink(16, 24), nn.LayerNorm(24, 1e-12)
        self.fc = nn.Linear(24, 6)

    def pooled(self, x):
        return x.mean((1, 2))

    def forward(self, x):
        x = self.stem_norm(self.stem(x.permute(0, 2, 3, 1)))
        for block in self.low:
            x = block(x)
        x = self.mid(self.mid_norm(x))
        for block in self.high:
            x = block(x)
        return self.fc(self.end(self.pooled(x)))


def convnext():
    return images("s-convnext", 16)(hub.of("convnext"))


def _flat(name):
    return lambda a: a(name).flatten(1)


CE = "convnext.encoder.stages."
CONVNEXT_RULES = {
    "stem.lin.weight": _flat("convnext.embeddings.patch_embeddings.weight"),
    "mid.lin.weight": _flat(CE + "1.downsampling_layer.1.weight"),
    "stem.lin.bias": "convnext.embeddings.patch_embeddings.bias",
    "mid.lin.bias": CE + "1.downsampling_layer.1.bias",
    **{
        f"{new}.{p}": f"{old}.{p}"
        for p in ("weight", "bias")
        for new, old in (
            ("stem_norm", "convnext.embeddings.layernorm"),
            ("mid_norm", CE + "1.downsampling_layer.0"),
            ("end", "convnext.layernorm"),
            ("fc", "classifier"),
        )
    },
    **{
        f"{stage}.#.p.{new}": f"{CE}{i}.layers.#.{old}"
        for i, stage in enumerate(("low", "high"))
        for new, old in (
            ("taps", "dwconv.weight"),
            ("taps_b", "dwconv.bias"),
            ("g", "layernorm.weight"),
            ("b", "layernorm.bias"),
            ("up", "pwconv1.weight"),
            ("up_b", "pwconv1.bias"),
            ("down", "pwconv2.weight"),
            ("down_b", "pwconv2.bias"),
            ("scale", "layer_scale_parameter"),
        )
    },
}

CONVNEXT = model(
    "s-convnext",
    convnext,
    {
        "taps-flipped": P.values(HERE, "taps", lambda w: w.mT),
        "reflect": P.method(
            HERE,
            "spread",
            lambda self, x: F.conv2d(
                F.pad(x.permute(0, 3, 1, 2), (3, 3, 3, 3), "reflect"), self.p.taps, self.p.taps_b, groups=x.shape[-1]
            ),
        ),
        "max-pooled": P.method("", "pooled", lambda self, x: x.amax((1, 2))),
        "swish": P.method(
            HERE,
            "inner",
            lambda self, x: F.linear(F.silu(F.linear(x, self.p.up, self.p.up_b)), self.p.down, self.p.down_b),
        ),
        "scale-detached": P.around(
            "low.0", lambda forward, x: _without_gradient(forward.__self__.p, "scale", forward, x)
        ),
        "stem-frozen": P.frozen("stem"),
        "batch-later": P.each_batch(lambda b: {k: v.flip(0) for k, v in b.items()} | {"labels": b["labels"]}, step=1),
        "channels-last-a": Sides(a=lambda t: _last(t)),
    },
    port=ported(convnext, NhwcNet, CONVNEXT_RULES, 2, give("pixels")),
)


def _last(training):
    training.model.to(memory_format=torch.channels_last)


def _without_gradient(owner, name, forward, x):
    kept = owner[name]
    kept.requires_grad_(False)
    try:
        return forward(x) + 0 * kept.sum()
    finally:
        kept.requires_grad_(True)


class FusedBlock(nn.Module):
    """Pre-norm block with one packed projection."""

    def __init__(self, size: int, wide: int, number: int):
        super().__init__()
        self.number, self.ln_a, self.ln_b = number, nn.LayerNorm(size, 1e-6), nn.LayerNorm(size, 1e-6)
        self.qkv, self.join = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.ffn = nn.Sequential(nn.Linear(size, wide), nn.GELU("tanh"), nn.Linear(wide, size))

    def mixed(self, q, k, v):
        return attend(q, k, v)

    def forward(self, x):
        x = x + self.join(self.mixed(*(heads(t, self.number) for t in self.qkv(self.ln_a(x)).chunk(3, -1))))
        return x + self.ffn(self.ln_b(x))


class Pooled(nn.Module):
    """One learned query over all patches."""

    def __init__(self, size: int, wide: int, number: int):
        super().__init__()
        self.number, self.query = number, nn.Parameter(torch.zeros(1, 1, size))
        self.q, self.kv, self.o = nn.Linear(size, size), nn.Linear(size, 2 * size), nn.Linear(size, size)
        self.ln, self.ffn = (
            nn.LayerNorm(size, 1e-6),
            nn.Sequential(nn.Linear(size, wide), nn.GELU("tanh"), nn.Linear(wide, size)),
        )

    def forward(self, x):
        k, v = self.kv(x).chunk(2, -1)
        x = self.o(attend(*(heads(t, self.number) for t in (self.q(self.query.expand(len(x), -1, -1)), k, v))))
        return (x + self.ffn(self.ln(x)))[:, 0]


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut, self.where = nn.Conv2d(3, 32, 4, 4), nn.Parameter(torch.zeros(16, 32))
        self.see, self.see_norm = nn.Sequential(*(FusedBlock(32, 48, 4) for _ in range(2))), nn.LayerNorm(32, 1e-6)
        self.pool, self.word, self.place = Pooled(32, 48, 4), nn.Embedding(50, 32), nn.Parameter(torch.zeros(8, 32))
        self.read, self.read_norm = nn.Sequential(*(FusedBlock(32, 48, 4) for _ in range(2))), nn.LayerNorm(32, 1e-6)
        self.project = nn.Linear(32, 32)
        self.warmth, self.shift = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def logits(self, text, image):
        return F.normalize(text) @ F.normalize(image).T * self.warmth.exp() + self.shift

    def last(self, x):
        return x[:, -1]

    def forward(self, ids, pixels):
        seen = self.pool(self.see_norm(self.see(self.cut(pixels).flatten(2).mT + self.where)))
        text = self.project(self.last(self.read_norm(self.read(self.word(ids) + self.place))))
        return self.logits(text, seen)


def pairwise(logits, batch):
    """SigLIP's loss."""
    signs = 2 * torch.eye(len(logits)) - 1
    return -F.logsigmoid(signs * logits.float()).sum(-1).mean()


def siglip():
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = hub.made(
        lambda T: T.SiglipModel(
            T.SiglipConfig(
                text_config=tower | special | {"vocab_size": 50, "max_position_embeddings": 8},
                vision_config=tower | {"image_size": 16, "patch_size": 4},
            )
        )
    )
    return Training(
        model,
        lambda m, b: m(input_ids=b["text"], pixel_values=b["pixels"]).logits_per_text,
        pairwise,
        batches(lambda g: {"text": ids(g, 4, 8, below=47) + 3, "pixels": normal(g, 4, 3, 16, 16)}, "s-siglip"),
    )


def _tower(new, old):
    at = f"{old}.encoder.layers.#."
    return {f"{new}.#.qkv.{p}": [f"{at}self_attn.{n}_proj.{p}" for n in "qkv"] for p in ("weight", "bias")} | {
        f"{new}.#.{b}.{p}": f"{at}{a}.{p}"
        for p in ("weight", "bias")
        for b, a in (
            ("join", "self_attn.out_proj"),
            ("ln_a", "layer_norm1"),
            ("ln_b", "layer_norm2"),
            ("ffn.0", "mlp.fc1"),
            ("ffn.2", "mlp.fc2"),
        )
    }


VH = "vision_model.head."
SIGLIP_RULES = (
    _tower("see", "vision_model")
    | _tower("read", "text_model")
    | {
        "warmth": "logit_scale",
        "shift": "logit_bias",
        "where": "vision_model.embeddings.position_embedding.weight",
        "place": "text_model.embeddings.position_embedding.weight",
        "word.weight": "text_model.embeddings.token_embedding.weight",
        "pool.query": VH + "probe",
        **{
            f"pool.{new}.{p}": lambda a, p=p, part=part: part(a(f"{VH}attention.in_proj_{p}"))
            for p in ("weight", "bias")
            for new, part in (("q", lambda t: t[:32]), ("kv", lambda t: t[32:]))
        },
        **{
            f"{new}.{p}": f"{old}.{p}"
            for p in ("weight", "bias")
            for new, old in (
                ("cut", "vision_model.embeddings.patch_embedding"),
                ("see_norm", "vision_model.post_layernorm"),
                ("read_norm", "text_model.final_layer_norm"),
                ("project", "text_model.head"),
                ("pool.o", VH + "attention.out_proj"),
                ("pool.ln", VH + "layernorm"),
                ("pool.ffn.0", VH + "mlp.fc1"),
                ("pool.ffn.2", VH + "mlp.fc2"),
            )
        },
    }
)

SIGLIP = model(
    "s-siglip",
    siglip,
    {
        "text-causal": P.method(HERE, "mixed", lambda self, q, k, v: attend(q, k, v, causal=True)),
        "first-word": P.method("", "last", lambda self, x: x[:, 0]),
        "not-normalised": P.method(
            "", "logits", lambda self, t, i: t @ F.normalize(i).T * self.warmth.exp() + self.shift
        ),
        "softmax-loss": P.criterion(lambda y, b: F.cross_entropy(y, torch.arange(len(y)))),
        "tower-detached": before("pool", torch.Tensor.detach),
        "gelu-exact": P.exchanged("see.1.ffn.1", lambda _: nn.GELU()),
        "scale-twice": lambda t: _own_rate(t, "warmth"),
    },
    port=ported(siglip, TwoTowers, SIGLIP_RULES, 2, give("text", "pixels")),
)


def _own_rate(training, name):
    held, own = training.optimizer, dict(training.model.named_parameters())[name]
    group = held.param_groups[0]
    group["params"] = [p for p in group["params"] if p is not own]
    held.add_param_group({"params": [own], "lr": 10 * group["lr"]})


def swin():
    return images("s-swin", 16)(hub.of("swin"))


SW = "swin.encoder.layers."
SWIN = model(
    "s-swin",
    swin,
    {
        "no-shift": P.setting(HERE, shift_size=0),
        "table-flipped": P.values(HERE, "relative_position_bias_table", lambda w: w.flip(0)),
        "bias-left-out": after(HERE, times(0.0)),
        "merge-order": before(
            SW + "0.downsample.norm", lambda x: x[..., [*range(16), *range(32, 48), *range(16, 32), *range(48, 64)]]
        ),
        "merge-backward": bad_backward(HERE, times(0.25)),
        "half-softmax": after(HERE, lambda y: y.to(torch.float16).float()),
        "block-detached": detached(HERE),
        "*": kernels("sdpa"),
    },
)

MODELS = (VIT, CONVNEXT, SIGLIP, SWIN)
