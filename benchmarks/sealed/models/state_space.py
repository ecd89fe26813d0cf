"""Mamba, Mamba-2 and RWKV of transformers against ports that write the recurrence out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import HERE, Sides, model
from ...blind.training import call
from ..frame import after, decayed, matrices, ported
from ..parts import Rms, norm, rms


class Ssm(nn.Module):
    """A selective state space, step by step."""

    def __init__(self, size: int, inner: int, state: int, rank: int):
        super().__init__()
        self.state, self.rank = state, rank
        self.into, self.gate = nn.Linear(size, inner, bias=False), nn.Linear(size, inner, bias=False)
        self.taps, self.taps_bias = nn.Parameter(torch.zeros(inner, 4)), nn.Parameter(torch.zeros(inner))
        self.select, self.pace = nn.Linear(inner, rank + 2 * state, bias=False), nn.Linear(rank, inner)
        self.decay_log, self.skip = nn.Parameter(torch.zeros(inner, state)), nn.Parameter(torch.zeros(inner))
        self.back = nn.Linear(inner, size, bias=False)

    def convolved(self, x):
        padded = F.pad(x, (0, 0, 3, 0))
        return sum(padded[:, i : i + x.shape[1]] * self.taps[:, i] for i in range(4)) + self.taps_bias

    def scanned(self, x, pace, b, c):
        decay, h, rows = -self.decay_log.float().exp(), x.new_zeros(x.shape[0], x.shape[2], self.state).float(), []
        for t in range(x.shape[1]):
            step = pace[:, t, :, None].float()
            h = (step * decay).exp() * h + step * b[:, t, None].float() * x[:, t, :, None].float()
            rows.append((h * c[:, t, None].float()).sum(-1))
        return torch.stack(rows, 1).to(x.dtype)

    def paced(self, raw):
        return F.softplus(self.pace(raw))

    def gated(self, y, u):
        return y * F.silu(self.gate(u))

    def forward(self, u):
        x = F.silu(self.convolved(self.into(u)))
        raw, b, c = self.select(x).split([self.rank, self.state, self.state], -1)
        y = self.scanned(x, self.paced(raw), b, c) + x * self.skip
        return self.back(self.gated(y, u))


class SsmStack(nn.Module):
    """Blocks of a norm and a mixer, with tied words."""

    def __init__(self, words: int, size: int, mixers: list[nn.Module], eps: float = 1e-5):
        super().__init__()
        self.words, self.eps = nn.Embedding(words, size), eps
        self.gains = nn.ParameterList([torch.ones(size) for _ in mixers])
        self.mixers, self.last = nn.ModuleList(mixers), Rms(size, eps)
        self.head = nn.Linear(size, words, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for gain, mixer in zip(self.gains, self.mixers, strict=True):
            x = x + mixer(rms(x, gain, self.eps))
        return self.head(self.last(x)).float()


def _realistic(training):
    with torch.no_grad():
        for name, parameter in training.model.named_parameters():
            if name.endswith("A_log"):
                parameter.add_(torch.arange(1.0, parameter.shape[-1] + 1).log())
    return training


def mamba():
    return _realistic(hub.causal("s-mamba", hub.of("mamba"), words=60, shape=(4, 12)))


def _own_mamba():
    return SsmStack(60, 24, [Ssm(24, 48, 6, 4) for _ in range(3)])


MIX = "backbone.layers.#.mixer."
STACK = {
    "words.weight": "backbone.embeddings.weight",
    "gains.#": "backbone.layers.#.norm.weight",
    "last.gain": "backbone.norm_f.weight",
    "head.weight": "lm_head.weight",
}
MAMBA_RULES = STACK | {
    "mixers.#.into.weight": lambda a: a(MIX + "in_proj.weight")[:48],
    "mixers.#.gate.weight": lambda a: a(MIX + "in_proj.weight")[48:],
    "mixers.#.taps": lambda a: a(MIX + "conv1d.weight")[:, 0],
    "mixers.#.taps_bias": MIX + "conv1d.bias",
    "mixers.#.select.weight": MIX + "x_proj.weight",
    "mixers.#.pace.weight": MIX + "dt_proj.weight",
    "mixers.#.pace.bias": MIX + "dt_proj.bias",
    "mixers.#.decay_log": MIX + "A_log",
    "mixers.#.skip": MIX + "D",
    "mixers.#.back.weight": MIX + "out_proj.weight",
}


def _backwards(self, x):
    padded = F.pad(x, (0, 0, 3, 0))
    return sum(padded[:, i : i + x.shape[1]] * self.taps[:, 3 - i] for i in range(4)) + self.taps_bias


def _stale(self, x, pace, b, c):
    """The output is read before the state is updated."""
    decay, h, rows = -self.decay_log.float().exp(), x.new_zeros(x.shape[0], x.shape[2], self.state).float(), []
    for t in range(x.shape[1]):
        step = pace[:, t, :, None].float()
        rows.append((h * c[:, t, None].float()).sum(-1))
        h = (step * decay).exp() * h + step * b[:, t, None].float() * x[:, t, :, None].float()
    return torch.stack(rows, 1).to(x.dtype)


def _cut_scan(self, x, pace, b, c):
    """The state is detached at the middle, as of truncated backpropagation."""
    decay, h, rows = -self.decay_log.float().exp(), x.new_zeros(x.shape[0], x.shape[2], self.state).float(), []
    for t in range(x.shape[1]):
        step = pace[:, t, :, None].float()
        h = (step * decay).exp() * (h.detach() if t == 6 else h) + step * b[:, t, None].float() * x[
            :, t, :, None
        ].float()
        rows.append((h * c[:, t, None].float()).sum(-1))
    return torch.stack(rows, 1).to(x.dtype)


MAMBA = model(
    "s-mamba",
    mamba,
    {
        "taps-backwards": P.method(HERE, "convolved", _backwards),
        "relu-pace": P.method(HERE, "paced", lambda self, raw: F.relu(self.pace(raw))),
        "stale-state": P.method(HERE, "scanned", _stale),
        "decay-not-log": P.values(HERE, "decay_log", torch.exp),
        "gate-detached": P.method(HERE, "gated", lambda self, y, u: y * F.silu(self.gate(u)).detach()),
        "state-cut": P.method(HERE, "scanned", _cut_scan),
        "skip-unused": P.around(HERE, lambda forward, u: _without_skip(forward, u)),
        "last-eps": P.setting(HERE, eps=1e-6),
        "logs-decay": Sides(decayed(0.5), both=decayed(0.5, lambda name, p: "log" not in name)),
    },
    port=ported(mamba, _own_mamba, MAMBA_RULES, 3, call(ids="tokens")),
)


def _without_skip(forward, u):
    module = forward.__self__
    kept, module.skip = module.skip, nn.Parameter(torch.zeros_like(module.skip))
    try:
        return forward(u)
    finally:
        module.skip = kept


class Ssd(nn.Module):
    """Mamba-2's mixer with its projection in three and a loop over time."""

    def __init__(self, size: int, inner: int, number: int, state: int):
        super().__init__()
        self.number, self.state, self.inner = number, state, inner
        self.gate, self.content = nn.Linear(size, inner, bias=False), nn.Linear(size, inner + 2 * state, bias=False)
        self.pace = nn.Linear(size, number)
        self.conv = nn.Conv1d(inner + 2 * state, inner + 2 * state, 4, groups=inner + 2 * state)
        self.decay_log, self.skip = nn.Parameter(torch.zeros(number)), nn.Parameter(torch.zeros(number))
        self.gain, self.eps, self.back = nn.Parameter(torch.ones(inner)), 1e-5, nn.Linear(inner, size, bias=False)

    def scanned(self, x, pace, b, c):
        h, rows = 0.0, []
        for t in range(x.shape[1]):
            keep = (-self.decay_log.exp() * pace[:, t])[..., None, None].exp()
            h = keep * h + (pace[:, t, :, None] * x[:, t])[..., None] * b[:, t, None, None]
            rows.append(h @ c[:, t, None, :, None])
        return torch.stack(rows, 1)[..., 0]

    def normed(self, y, gate):
        return rms(y * F.silu(gate), self.gain, self.eps)

    def paced(self, u):
        return F.softplus(self.pace(u))

    def forward(self, u):
        mixed = F.silu(self.conv(F.pad(self.content(u).mT, (3, 0))).mT)
        x, b, c = mixed.split([self.inner, self.state, self.state], -1)
        x = x.unflatten(-1, (self.number, -1))
        y = self.scanned(x, self.paced(u), b, c) + x * self.skip[:, None]
        return self.back(self.normed(y.flatten(2), self.gate(u)))


def mamba2():
    training = hub.causal("s-mamba2", hub.of("mamba2"), words=60, shape=(4, 12))
    return _realistic(training)


M2_RULES = STACK | {
    "mixers.#.gate.weight": lambda a: a(MIX + "in_proj.weight")[:48],
    "mixers.#.content.weight": lambda a: a(MIX + "in_proj.weight")[48:112],
    "mixers.#.pace.weight": lambda a: a(MIX + "in_proj.weight")[112:],
    "mixers.#.pace.bias": MIX + "dt_bias",
    "mixers.#.conv.weight": MIX + "conv1d.weight",
    "mixers.#.conv.bias": MIX + "conv1d.bias",
    "mixers.#.decay_log": MIX + "A_log",
    "mixers.#.skip": MIX + "D",
    "mixers.#.gain": MIX + "norm.weight",
    "mixers.#.back.weight": MIX + "out_proj.weight",
}


def _per_head(self, y, gate):
    """The norm goes over each head, not over all."""
    y = (y * F.silu(gate)).unflatten(-1, (self.number, -1))
    return rms(y, self.gain.view(self.number, -1), self.eps).flatten(2)


MAMBA2 = model(
    "s-mamba2",
    mamba2,
    {
        "gate-late": P.method(HERE, "normed", lambda self, y, gate: rms(y, self.gain, self.eps) * F.silu(gate)),
        "norm-per-head": P.method(HERE, "normed", _per_head),
        "pace-limited": P.method(HERE, "paced", lambda self, u: F.softplus(self.pace(u)).clamp(max=0.8)),
        "pace-bias": P.values(HERE, "bias", torch.zeros_like),
        "conv-gradient": P.parameter_gradient(HERE, "weight", lambda g: g.flip(-1)),
        "decay-frozen": lambda t: _without(t, "mixers.1.decay_log"),
    },
    port=ported(
        mamba2, lambda: SsmStack(60, 24, [Ssd(24, 48, 6, 8) for _ in range(2)]), M2_RULES, 2, call(ids="tokens")
    ),
)


def _without(training, name):
    left = dict(training.model.named_parameters())[name]
    for group in training.optimizer.param_groups:
        group["params"] = [p for p in group["params"] if p is not left]


class TimeMix(nn.Module):
    """RWKV's attention with bare matrices and no maximum taken out."""

    def __init__(self, size: int):
        super().__init__()
        self.w = nn.ParameterDict({n: torch.zeros(size, size) for n in ("key", "value", "gate", "out")})
        self.mix = nn.ParameterDict({n: torch.zeros(size) for n in ("key", "value", "gate")})
        self.decay, self.bonus = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))

    def blended(self, x, name):
        return torch.lerp(F.pad(x, (0, 0, 1, -1)), x, self.mix[name])

    def wkv(self, k, v):
        top, low, rows, keep = 0.0, 0.0, [], (-self.decay.exp()).exp()
        for t in range(k.shape[1]):
            now, first = k[:, t].exp(), (k[:, t] + self.bonus).exp()
            rows.append((top + first * v[:, t]) / (low + first))
            top, low = keep * top + now * v[:, t], keep * low + now
        return torch.stack(rows, 1)

    def forward(self, x):
        k, v, r = (F.linear(self.blended(x, name), self.w[name]) for name in ("key", "value", "gate"))
        return F.linear(r.sigmoid() * self.wkv(k, v), self.w["out"])


class ChannelMix(nn.Module):
    """RWKV's feed-forward."""

    def __init__(self, size: int, wide: int):
        super().__init__()
        self.up, self.down, self.gate = (
            nn.Linear(a, b, bias=False) for a, b in ((size, wide), (wide, size), (size, size))
        )
        self.mix_up, self.mix_gate = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))

    def activated(self, x):
        return F.relu(x).square()

    def forward(self, x):
        last = F.pad(x, (0, 0, 1, -1))
        up, gate = (torch.lerp(last, x, mix) for mix in (self.mix_up, self.mix_gate))
        return self.gate(gate).sigmoid() * self.down(self.activated(self.up(up)))


class Rwkv(nn.Module):
    """All layers with functional norms."""

    def __init__(self, words: int, size: int, wide: int, layers: int):
        super().__init__()
        self.table, self.out = nn.Embedding(words, size), nn.Linear(size, words, bias=False)
        self.ln = nn.ParameterDict(
            {
                f"{n}_{p}": torch.ones(size)
                for n in ("in", *(f"{kind}{i}" for i in range(layers) for kind in ("time", "channel")))
                for p in "wb"
            }
        )
        self.time = nn.ModuleList([TimeMix(size) for _ in range(layers)])
        self.channel = nn.ModuleList([ChannelMix(size, wide) for _ in range(layers)])
        self.final = nn.LayerNorm(size)

    def normed(self, x, name):
        return norm(x, self.ln[name + "_w"], self.ln[name + "_b"], 1e-5)

    def forward(self, ids):
        x = self.normed(self.table(ids), "in")
        for i, (time, channel) in enumerate(zip(self.time, self.channel, strict=True)):
            x = x + time(self.normed(x, f"time{i}"))
            x = x + channel(self.normed(x, f"channel{i}"))
        return self.out(self.final(x))


def rwkv():
    training = hub.causal("s-rwkv", hub.of("rwkv"), words=60, shape=(4, 12))
    with torch.no_grad():
        for name, p in training.model.named_parameters():
            if "time_mix" in name:
                p.copy_((p * 0.2 + 0.5).clamp(0, 1))
            elif "time_decay" in name:
                p.copy_(torch.linspace(-3, 1, 24) + 0.1 * p)
            elif "time_first" in name:
                p.copy_(torch.linspace(-1, 1, 24))
    return training


AT, FF = "rwkv.blocks.#.attention.", "rwkv.blocks.#.feed_forward."
RWKV_RULES = {
    "table.weight": "rwkv.embeddings.weight",
    "out.weight": "head.weight",
    "final.weight": "rwkv.ln_out.weight",
    "final.bias": "rwkv.ln_out.bias",
    "ln.in_w": "rwkv.blocks.0.pre_ln.weight",
    "ln.in_b": "rwkv.blocks.0.pre_ln.bias",
    **{
        f"ln.{kind}#_{p}": f"rwkv.blocks.#.ln{n}.{long}"
        for kind, n in (("time", 1), ("channel", 2))
        for p, long in (("w", "weight"), ("b", "bias"))
    },
    **{
        f"time.#.w.{new}": f"{AT}{old}.weight"
        for new, old in (("key", "key"), ("value", "value"), ("gate", "receptance"), ("out", "output"))
    },
    **{
        f"time.#.mix.{new}": lambda a, old=old: a(f"{AT}time_mix_{old}").flatten()
        for new, old in (("key", "key"), ("value", "value"), ("gate", "receptance"))
    },
    "time.#.decay": AT + "time_decay",
    "time.#.bonus": AT + "time_first",
    "channel.#.up.weight": FF + "key.weight",
    "channel.#.down.weight": FF + "value.weight",
    "channel.#.gate.weight": FF + "receptance.weight",
    "channel.#.mix_up": lambda a: a(FF + "time_mix_key").flatten(),
    "channel.#.mix_gate": lambda a: a(FF + "time_mix_receptance").flatten(),
}


def _no_bonus(self, k, v):
    top, low, rows, keep = 0.0, 0.0, [], (-self.decay.exp()).exp()
    for t in range(k.shape[1]):
        now = k[:, t].exp()
        top, low = keep * top + now * v[:, t], keep * low + now
        rows.append(top / low)
    return torch.stack(rows, 1)


RWKV = model(
    "s-rwkv",
    rwkv,
    {
        "no-bonus": P.method(HERE, "wkv", _no_bonus),
        "shift-other-way": P.method(
            HERE, "blended", lambda self, x, name: torch.lerp(x, F.pad(x, (0, 0, 1, -1)), self.mix[name])
        ),
        "relu-not-squared": P.method(HERE, "activated", lambda self, x: F.relu(x)),
        "in-norm-missing": P.method(
            "",
            "normed",
            lambda self, x, name: x if name == "in" else norm(x, self.ln[name + "_w"], self.ln[name + "_b"], 1e-5),
        ),
        "decay-sign": P.values(HERE, "decay", torch.neg),
        "gate-gradient": P.around(HERE, lambda forward, x: P.wrong_gradient(forward(x), lambda g: 0.5 * g)),
        "head-scaled": after(HERE, lambda y: y * 24**-0.5),
        "decay-off": Sides(decayed(0.3), both=decayed(0.3, matrices)),
    },
    port=ported(rwkv, lambda: Rwkv(60, 24, 48, 3), RWKV_RULES, 3, call(ids="tokens")),
)

MODELS = (MAMBA, MAMBA2, RWKV)
