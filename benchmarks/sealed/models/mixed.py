"""Gemma 3, HuBERT and BERT of transformers, the same code on both sides; a recurrent speech model and BYOL."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import HERE, Sides, model
from ...blind.training import Training, batches, give, ids, lively, normal
from ..frame import (
    Ema,
    after,
    bad_backward,
    before,
    channels_last,
    checkpointed,
    decayed,
    detached,
    kernels,
    later,
    matrices,
    ported,
    times,
)

both = P.several(kernels("sdpa"), checkpointed)


def gemma3():
    return hub.causal("s-gemma3", hub.of("gemma3"), words=64, shape=(4, 14))


A = "model.layers."
GEMMA3 = model(
    "s-gemma3",
    gemma3,
    {
        "window-everywhere": P.around(
            HERE,
            lambda forward, *a, **k: forward(
                *a, **k | {"attention_mask": torch.full((14, 14), -1e9).triu(1) + torch.full((14, 14), -1e9).tril(-6)}
            ),
        ),
        "post-norm-missing": P.rewritten(HERE, lambda self, x: x),
        "unit-offset": P.rewritten(HERE, lambda self, x: (self._norm(x.float()) * self.weight).type_as(x)),
        "embeddings-not-scaled": lambda t: t.at("model.embed_tokens").embed_scale.fill_(1.0),
        "eps-in-query-norm": P.setting(HERE, eps=1e-5),
        "down-in-fp16": P.rewritten(HERE, lambda self, x: F.linear(x.bfloat16(), self.weight.bfloat16()).float()),
        "layer-twice": P.around(HERE, lambda forward, x: forward(forward(x))),
        "grad-clamped-later": lambda t: t.after_backward.append(
            lambda n: t.at(A + "3.mlp.up_proj").weight.grad.clamp_(-1e-3, 1e-3) if n == 1 else None
        ),
        "frozen-gate": lambda t: t.at(A + "1.mlp.gate_proj").requires_grad_(False),
        "*": both,
    },
)


def hubert():
    def data(g):
        return {"sound": normal(g, 3, 400), "labels": ids(g, 3, 6, below=10) + 1}

    model = hub.made(
        lambda T: T.HubertForCTC(
            T.HubertConfig(
                vocab_size=12,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=48,
                conv_dim=(16, 16, 16),
                conv_stride=(4, 2, 2),
                conv_kernel=(8, 3, 2),
                num_conv_pos_embeddings=8,
                num_conv_pos_embedding_groups=2,
                pad_token_id=0,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
                feat_proj_dropout=0.0,
                final_dropout=0.0,
                layerdrop=0.0,
                apply_spec_augment=False,
                mask_time_prob=0.0,
            )
        )
    )
    model.freeze_feature_encoder()
    return Training(model, lambda m, b: m(b["sound"]).logits, spelled, batches(data, "s-hubert"))


def spelled(logits, batch, blank=0):
    """CTC."""
    rows = logits.float().log_softmax(-1).transpose(0, 1)
    steps, labels = torch.full((rows.shape[1],), rows.shape[0]), batch["labels"]
    return F.ctc_loss(rows, labels, steps, torch.full((len(labels),), labels.shape[1]), blank=blank)


H = "hubert.encoder."
HUBERT = model(
    "s-hubert",
    hubert,
    {
        "blank-last": P.criterion(lambda y, b: spelled(y, b, 11)),
        "sound-scaled": P.each_batch(lambda b: b | {"sound": b["sound"] / 1.5}),
        "pos-conv-shift": P.around(H + "pos_conv_embed.padding", lambda forward, x: x[:, :, 1:]),
        "weight-norm-axis": lambda t: t.at(H + "pos_conv_embed.conv.parametrizations.weight").original0.data.mul_(1.3),
        "norm-frozen": lambda t: t.at(H + "layer_norm").requires_grad_(False),
        "projection-dropped": P.rewritten(HERE, lambda self, x: x),
        "ffn-backward": bad_backward(HERE, times(1.1)),
        "*": kernels("sdpa"),
    },
)


def bert():
    return hub.masked("s-bert", hub.of("bert"), words=60, shape=(4, 14))


E = "bert.encoder.layer."
BERT = model(
    "s-bert",
    bert,
    {
        "mask-of-ones": P.each_batch(lambda b: b | {"mask": torch.ones_like(b["mask"])}),
        "dropout-left-on": P.setting(HERE, p=0.1),
        "positions-from-2": before(HERE, lambda x: x + 2),
        "types-swapped": P.values(HERE, "weight", lambda w: w.flip(0)),
        "dense-not-held": P.frozen(HERE),
        "pad-labels": P.criterion(
            lambda y, b: F.cross_entropy(getattr(y, "logits", y).flatten(0, 1), b["labels"].flatten().clamp(min=0))
        ),
        "query-half": P.rewritten(
            HERE, lambda self, x: F.linear(x.half(), self.weight.half(), self.bias.half()).float()
        ),
        "key-detached": detached(HERE),
        "grad-halved-later": lambda t: t.after_backward.append(
            lambda n: t.at(E + "1.intermediate.dense").weight.grad.mul_(0.5) if n == 2 else None
        ),
        "norms-decay": Sides(decayed(0.5), both=decayed(0.5, matrices)),
        "*": both,
    },
)


class Listener(nn.Module):
    """Convolutions, torch's GRU in two directions, a classifier."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(12, 24, 5, 2, 2), nn.BatchNorm1d(24), nn.ReLU())
        self.gru, self.classify = nn.GRU(24, 20, batch_first=True, bidirectional=True), nn.Linear(40, 9)

    def forward(self, x):
        return self.classify(self.gru(self.conv(x).mT)[0])


class Gated(nn.Module):
    """A GRU's direction, step by step, with its six matrices apart."""

    def __init__(self, size: int, to: int, backwards: bool):
        super().__init__()
        self.backwards = backwards
        self.xr, self.xz, self.xn, self.hr, self.hz, self.hn = (nn.Linear(a, to) for a in (size,) * 3 + (to,) * 3)

    def kept(self, z, new, h):
        return (1 - z) * new + z * h

    def forward(self, x):
        h, rows = x.new_zeros(len(x), self.hr.out_features), []
        for t in reversed(range(x.shape[1])) if self.backwards else range(x.shape[1]):
            r, z = (self.xr(x[:, t]) + self.hr(h)).sigmoid(), (self.xz(x[:, t]) + self.hz(h)).sigmoid()
            h = self.kept(z, (self.xn(x[:, t]) + r * self.hn(h)).tanh(), h)
            rows.append(h)
        return torch.stack(rows[::-1] if self.backwards else rows, 1)


class OwnListener(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.usual = nn.Conv1d(12, 24, 5, 2, 2), nn.BatchNorm1d(24)
        self.ahead, self.back, self.out = Gated(24, 20, False), Gated(24, 20, True), nn.Linear(40, 9)

    def forward(self, x):
        x = F.relu(self.usual(self.front(x))).mT
        return self.out(torch.cat([self.ahead(x), self.back(x)], -1))


def listener():
    return Training(
        lively(Listener()).train(),
        give("mel"),
        spelled,
        batches(lambda g: {"mel": normal(g, 6, 12, 32), "labels": ids(g, 6, 4, below=8) + 1}, "s-listener"),
    )


GRU_RULES = {
    f"{way}.{kind}{gate}.{p}": lambda a, old=f"gru.{p}_{'ih' if kind == 'x' else 'hh'}_l0{end}", i=i: a(old)[
        20 * i : 20 * i + 20
    ]
    for way, end in (("ahead", ""), ("back", "_reverse"))
    for kind in "xh"
    for i, gate in enumerate("rzn")
    for p in ("weight", "bias")
} | {
    f"{new}.{p}": f"{old}.{p}"
    for new, old, names in (("front", "conv.0", 2), ("usual", "conv.1", 5), ("out", "classify", 2))
    for p in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")[:names]
}

LISTENER = model(
    "s-listener",
    listener,
    {
        "gates-exchanged": P.method(HERE, "kept", lambda self, z, new, h: z * new + (1 - z) * h),
        "not-reversed": P.rewritten(HERE, lambda self, x: Gated.forward(self, x).flip(1)),
        "reset-before": lambda t: _exchange(t, "back.hr", "back.hz"),
        "running": P.values(HERE, "running_mean", lambda w: w + 0.1),
        "time-cut": P.method(HERE, "kept", lambda self, z, new, h: (1 - z) * new + z * h.detach()),
        "usual-later": later(1, lambda t: t.at("usual").eval()),
        "length-mean": P.criterion(lambda y, b: 4 * spelled(y, b)),
    },
    port=ported(listener, OwnListener, GRU_RULES, 1, give("mel")),
)


def _exchange(training, one, other):
    a, b = training.at(one), training.at(other)
    kept = copy.deepcopy(a.state_dict())
    a.load_state_dict(b.state_dict())
    b.load_state_dict(kept)


class Byol(nn.Module):
    """Two views, a predictor, and a target that follows."""

    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, 1),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 16, 3, 2, 1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 24),
        )
        self.predict = nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 24))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, one, other):
        goal = self.target(other)
        return self.predict(self.online(one)), goal.detach()


def byol():
    model = lively(Byol())
    model.target.load_state_dict(model.online.state_dict())
    training = Training(
        model.train(),
        give("one", "other"),
        lambda y, b: (2 - 2 * F.cosine_similarity(y[0].float(), y[1].float())).mean(),
        batches(lambda g: {"one": normal(g, 8, 3, 12, 12), "other": normal(g, 8, 3, 12, 12)}, "s-byol"),
    )
    training.after_step.append(lambda number: Ema("online", "target", 0.95)(training, number))
    return training


def _follow(source, decay):
    return lambda training: training.after_step.__setitem__(
        0, lambda number: Ema(source, "target", decay)(training, number)
    )


BYOL = model(
    "s-byol",
    byol,
    {
        "target-decay": _follow("online", 0.5),
        "target-in-evaluation": lambda t: t.at("target").eval(),
        "target-stale": lambda t: t.after_step.clear(),
        "views-exchanged": P.each_batch(lambda b: {"one": b["other"], "other": b["one"]}),
        "goal-not-normed": P.criterion(lambda y, b: (y[0] - y[1]).square().mean()),
        "predictor-skipped": P.rewritten(HERE, lambda self, x: x),
        "online-flipped": before(HERE, lambda x: x.mT),
        "pool-backward": bad_backward(HERE, times(36.0)),
        "norm-off": after(HERE, times(1 + 1e-5)),
        "*": channels_last,
        "target-foreach": lambda t: t.after_step.__setitem__(
            0,
            lambda n: torch._foreach_lerp_(
                list(t.at("target").parameters()), [p.detach() for p in t.at("online").parameters()], 1 - 0.95
            ),
        ),
    },
)

MODELS = (GEMMA3, HUBERT, BERT, LISTENER, BYOL)
