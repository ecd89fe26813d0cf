"""The UNet, the DiT and the autoencoder of diffusers: two ports and the same code on both sides."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import plant as P
from ...blind.spec import HERE, Sides, model
from ...blind.training import Training, batches, give, ids, lively, normal, squared
from ..frame import Ema, after, bad_backward, before, channels_last, detached, ported, times
from ..parts import attend, heads, norm


def noisy(name, size=8, **more):
    """Noised images, their steps, and the noise."""

    def data(g):
        clean, noise, at = normal(g, 4, 3, size, size), normal(g, 4, 3, size, size), ids(g, 4, below=1000)
        keep = (math.pi / 2 * at / 1000).cos()[:, None, None, None]
        batch = {"x": keep * clean + (1 - keep**2).sqrt() * noise, "at": at, "target": noise}
        return batch | {key: ids(g, 4, below=below) for key, below in more.items()}

    return batches(data, name)


def sines(at, size, shift, dtype):
    """Cosines, then sines, of the step."""
    rate = torch.exp(-math.log(10000) * torch.arange(size // 2).float() / (size // 2 - shift))
    angle = at[:, None].float() * rate
    return torch.cat([angle.cos(), angle.sin()], -1).to(dtype)


def unet():
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    )
    return Training(lively(model).train(), lambda m, b: m(b["x"], b["at"]).sample, squared, noisy("s-unet"))


class Res(nn.Module):
    """Ho's residual block."""

    def __init__(self, size: int, to: int):
        super().__init__()
        self.n1, self.c1, self.t = nn.GroupNorm(4, size), nn.Conv2d(size, to, 3, padding=1), nn.Linear(64, to)
        self.n2, self.c2 = nn.GroupNorm(4, to), nn.Conv2d(to, to, 3, padding=1)
        self.skip = nn.Conv2d(size, to, 1) if size != to else nn.Identity()

    def timed(self, y, t):
        return y + self.t(F.silu(t))[:, :, None, None]

    def forward(self, x, t):
        y = self.timed(self.c1(F.silu(self.n1(x))), t)
        return self.skip(x) + self.c2(F.silu(self.n2(y)))


class Look(nn.Module):
    """Attention over pixels with 1 by 1 convolutions."""

    def __init__(self, size: int):
        super().__init__()
        self.number, self.norm = size // 8, nn.GroupNorm(4, size)
        self.qkv, self.out = nn.Conv2d(size, 3 * size, 1), nn.Conv2d(size, size, 1)
        self.scale = 8**-0.5

    def forward(self, x):
        q, k, v = (heads(t.mT, self.number) for t in self.qkv(self.norm(x)).flatten(2).chunk(3, 1))
        return x + self.out(attend(q, k, v, self.scale).mT.unflatten(2, x.shape[2:]))


class OwnUnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.time = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64)),
        )
        self.d0, self.shrink, self.d1, self.d1_look = Res(16, 16), nn.Conv2d(16, 16, 3, 2, 1), Res(16, 32), Look(32)
        self.m0, self.m_look, self.m1 = Res(32, 32), Look(32), Res(32, 32)
        self.u0, self.u0_look, self.u1, self.u1_look = Res(64, 32), Look(32), Res(48, 32), Look(32)
        self.grow, self.u2, self.u3 = nn.Conv2d(32, 32, 3, padding=1), Res(48, 16), Res(32, 16)
        self.end_norm, self.end = nn.GroupNorm(4, 16), nn.Conv2d(16, 3, 3, padding=1)

    def step(self, at):
        return sines(at, 16, 0, self.end.weight.dtype)

    def joined(self, x, kept):
        return torch.cat([x, kept], 1)

    def forward(self, x, at):
        t = self.time(self.step(at))
        a = self.first(x)
        b = self.d0(a, t)
        c = self.shrink(b)
        d = self.d1_look(self.d1(c, t))
        x = self.m1(self.m_look(self.m0(d, t)), t)
        x = self.u0_look(self.u0(self.joined(x, d), t))
        x = self.u1_look(self.u1(self.joined(x, c), t))
        x = self.grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.u3(self.joined(self.u2(self.joined(x, b), t), a), t)
        return self.end(F.silu(self.end_norm(x)))


RES = {
    "d0": "down_blocks.0.resnets.0",
    "d1": "down_blocks.1.resnets.0",
    "m0": "mid_block.resnets.0",
    "m1": "mid_block.resnets.1",
    "u0": "up_blocks.0.resnets.0",
    "u1": "up_blocks.0.resnets.1",
    "u2": "up_blocks.1.resnets.0",
    "u3": "up_blocks.1.resnets.1",
}
LOOK = {
    "d1_look": "down_blocks.1.attentions.0",
    "m_look": "mid_block.attentions.0",
    "u0_look": "up_blocks.0.attentions.0",
    "u1_look": "up_blocks.0.attentions.1",
}
ONE = {
    "first": "conv_in",
    "time.0": "time_embedding.linear_1",
    "time.2": "time_embedding.linear_2",
    "end_norm": "conv_norm_out",
    "end": "conv_out",
    "shrink": "down_blocks.0.downsamplers.0.conv",
    "grow": "up_blocks.0.upsamplers.0.conv",
}
UNET_RULES = {
    f"{new}.{p}": f"{old}.{p}"
    for p in ("weight", "bias")
    for new, old in (
        *ONE.items(),
        *(
            (f"{b}.{n}", f"{a}.{o}")
            for b, a in RES.items()
            for n, o in (
                ("n1", "norm1"),
                ("c1", "conv1"),
                ("t", "time_emb_proj"),
                ("n2", "norm2"),
                ("c2", "conv2"),
                ("skip", "conv_shortcut"),
            )
            if n != "skip" or b in ("d1", "u0", "u1", "u2", "u3")
        ),
    )
}
for _b, _a in LOOK.items():
    UNET_RULES |= {f"{_b}.norm.{p}": f"{_a}.group_norm.{p}" for p in ("weight", "bias")}
    UNET_RULES |= {
        f"{_b}.qkv.bias": [f"{_a}.to_{n}.bias" for n in "qkv"],
        f"{_b}.out.bias": f"{_a}.to_out.0.bias",
        f"{_b}.qkv.weight": lambda a, at=_a: torch.cat([a(f"{at}.to_{n}.weight") for n in "qkv"])[..., None, None],
        f"{_b}.out.weight": lambda a, at=_a: a(f"{at}.to_out.0.weight")[..., None, None],
    }

UNET = model(
    "s-unet",
    unet,
    {
        "sines-first": P.method("", "step", lambda self, at: sines(at, 16, 0, self.end.weight.dtype).roll(8, 1)),
        "skip-order": P.around(HERE, lambda forward, x, t: forward(torch.cat([x[:, 32:], x[:, :32]], 1), t)),
        "time-not-activated": P.method(HERE, "timed", lambda self, y, t: y + self.t(t)[:, :, None, None]),
        "bilinear": P.inside(
            "",
            "torch.nn.functional",
            "interpolate",
            lambda original: lambda x, scale_factor, mode: original(x, scale_factor=scale_factor, mode="bilinear"),
        ),
        "look-scale": P.setting(HERE, scale=32**-0.5),
        "groups": P.setting(HERE, num_groups=8),
        "skip-gradient": P.around("u0.skip", lambda forward, x: forward(x.detach())),
        "loss-sum": P.criterion(lambda y, b: F.l1_loss(y, b["target"])),
        "time-frozen": P.frozen(HERE),
        "steps-in-thousandths": P.each_batch(lambda b: b | {"at": b["at"] // 10}),
    },
    port=ported(unet, OwnUnet, UNET_RULES, 1, give("x", "at")),
)


def dit():
    from diffusers import DiTTransformer2DModel

    model = lively(
        DiTTransformer2DModel(
            num_attention_heads=4,
            attention_head_dim=8,
            in_channels=3,
            out_channels=3,
            num_layers=3,
            sample_size=8,
            patch_size=2,
            num_embeds_ada_norm=10,
        )
    ).train()
    for module in model.modules():
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    return Training(
        model, lambda m, b: m(b["x"], timestep=b["at"], class_labels=b["kind"]).sample, squared, noisy("s-dit", kind=10)
    )


class Condition(nn.Module):
    """The sum of a step's and a class's embedding."""

    def __init__(self, size: int):
        super().__init__()
        self.l1, self.l2, self.kinds = nn.Linear(256, size), nn.Linear(size, size), nn.Parameter(torch.zeros(11, size))

    def forward(self, at, kind):
        return self.l2(F.silu(self.l1(sines(at, 256, 1, self.kinds.dtype)))) + self.kinds[kind]


class DitBlock(nn.Module):
    """Modulated attention and feed-forward; norms have no weights."""

    def __init__(self, size: int):
        super().__init__()
        self.condition, self.adapt = Condition(size), nn.Linear(size, 6 * size)
        self.qkv, self.out, self.ffn = (
            nn.Linear(size, 3 * size),
            nn.Linear(size, size),
            nn.Sequential(nn.Linear(size, 4 * size), nn.GELU("tanh"), nn.Linear(4 * size, size)),
        )
        self.eps = 1e-5

    def parts(self, at, kind):
        return self.adapt(F.silu(self.condition(at, kind)))[:, None].chunk(6, -1)

    def modulated(self, x, shift, scale, eps):
        return norm(x, None, None, eps) * (1 + scale) + shift

    def forward(self, x, at, kind):
        shift, scale, gate, shift2, scale2, gate2 = self.parts(at, kind)
        q, k, v = (heads(t, 4) for t in self.qkv(self.modulated(x, shift, scale, 1e-6)).chunk(3, -1))
        x = x + gate * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + gate2 * self.ffn(self.modulated(x, shift2, scale2, self.eps))


class OwnDit(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut, self.layers = nn.Conv2d(3, 32, 2, 2), nn.ModuleList([DitBlock(32) for _ in range(3)])
        self.register_buffer("grid", torch.zeros(1, 16, 32))
        self.last, self.pixels = nn.Linear(32, 64), nn.Linear(32, 12)

    def together(self, x):
        return x.unflatten(1, (4, 4)).unflatten(-1, (2, 2, 3)).permute(0, 5, 1, 3, 2, 4).reshape(len(x), 3, 8, 8)

    def forward(self, x, at, kind):
        x = self.cut(x).flatten(2).mT + self.grid
        for layer in self.layers:
            x = layer(x, at, kind)
        shift, scale = self.last(F.silu(self.layers[0].condition(at, kind)))[:, None].chunk(2, -1)
        return self.together(self.pixels(norm(x, None, None, 1e-6) * (1 + scale) + shift))


B = "transformer_blocks.#."
DIT_PAIRS = (
    ("condition.l1", "norm1.emb.timestep_embedder.linear_1"),
    ("condition.l2", "norm1.emb.timestep_embedder.linear_2"),
    ("adapt", "norm1.linear"),
    ("out", "attn1.to_out.0"),
    ("ffn.0", "ff.net.0.proj"),
    ("ffn.2", "ff.net.2"),
)
DIT_RULES = {
    "grid": "pos_embed.pos_embed",
    "layers.#.condition.kinds": B + "norm1.emb.class_embedder.embedding_table.weight",
    **{
        f"{n}.{p}": f"{o}.{p}"
        for p in ("weight", "bias")
        for n, o in (("cut", "pos_embed.proj"), ("last", "proj_out_1"), ("pixels", "proj_out_2"))
    },
    **{f"layers.#.{n}.{p}": f"{B}{o}.{p}" for p in ("weight", "bias") for n, o in DIT_PAIRS},
    **{f"layers.#.qkv.{p}": [f"{B}attn1.to_{n}.{p}" for n in "qkv"] for p in ("weight", "bias")},
}

DIT = model(
    "s-dit",
    dit,
    {
        "scale-shift-order": P.method(
            HERE, "parts", lambda self, at, kind: [DitBlock.parts(self, at, kind)[i] for i in (1, 0, 2, 3, 4, 5)]
        ),
        "no-one": P.method(
            HERE,
            "modulated",
            lambda self, x, shift, scale, eps: norm(x, None, None, eps) * (1 + scale if eps == 1e-6 else scale) + shift,
        ),
        "norm-eps": P.setting(HERE, eps=1e-6),
        "pixels-transposed": P.method("", "together", lambda self, x: OwnDit.together(self, x).mT),
        "grid-transposed": P.values("", "grid", lambda w: w.unflatten(1, (4, 4)).transpose(1, 2).flatten(1, 2)),
        "condition-detached": P.around("layers.1.condition", lambda forward, at, kind: forward(at, kind).detach()),
        "kinds-wrong": P.each_batch(lambda b: b | {"kind": (b["kind"] + 1) % 10}),
    },
    port=ported(dit, OwnDit, DIT_RULES, 3, give("x", "at", "kind")),
)


class Averaged(nn.Module):
    """An autoencoder beside the moving average of its weights."""

    def __init__(self, make):
        super().__init__()
        self.net, self.mean = make(), make()
        self.mean.requires_grad_(False)

    def forward(self, x):
        held = self.net.encode(x).latent_dist
        return self.net.decode(held.mean).sample, held.mean, held.logvar


def likeness(weight):
    def criterion(output, batch):
        picture, mean, logvar = output
        return F.mse_loss(picture, batch["x"]) + weight * 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()

    return criterion


def vae():
    from diffusers import AutoencoderKL

    model = Averaged(
        lambda: AutoencoderKL(
            block_out_channels=(8, 16),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=4,
            sample_size=16,
        )
    )
    lively(model.net)
    model.mean.load_state_dict(model.net.state_dict())
    training = Training(
        model.train(), give("x"), likeness(0.05), batches(lambda g: {"x": normal(g, 4, 3, 16, 16)}, "s-vae")
    )
    training.after_step.append(lambda number: Ema("net", "mean", 0.9)(training, number))
    return training


def _mean_otherwise(decay):
    def plant(training):
        training.after_step[0] = lambda number: Ema("net", "mean", decay)(training, number)

    return plant


def _mean_first(training):
    act = training.after_step.pop()
    training.after_backward.append(act)


N = "net.encoder."
VAE = model(
    "s-vae",
    vae,
    {
        "mean-decay": _mean_otherwise(0.99),
        "mean-before-step": _mean_first,
        "prior-weight": lambda t: setattr(t, "criterion", likeness(0.005)),
        "mid-eps": P.setting(HERE, eps=1e-2),
        "shrink-padding": before(HERE, lambda x: x.roll((1, 1), (2, 3))),
        "decoder-layer-off": after("net.decoder.up_blocks.1.resnets.1.conv2", times(0.0)),
        "conv-backward": bad_backward(HERE, lambda g: g.flip(-1)),
        "quant-detached": detached(HERE),
        "*": channels_last,
        "sgd-foreach": Sides(
            P.optimizer(lambda m: torch.optim.SGD(m.net.parameters(), lr=0.1, momentum=0.9, foreach=True)),
            a=P.optimizer(lambda m: torch.optim.SGD(m.net.parameters(), lr=0.1, momentum=0.9, foreach=False)),
        ),
    },
)

MODELS = (UNET, DIT, VAE)
