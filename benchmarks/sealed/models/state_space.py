"""Mamba, Mamba-2 and RWKV of transformers against ports that write the recurrence out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import hub
from ...blind import plant as P
from ...blind.spec import Model
from ...blind.training import call
from .. import common
from ..frame import C, after, decayed, matrices, ported
from ..frame import F as Fault
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
    return _realistic(
        hub.causal(
            "s-mamba",
            lambda T: T.MambaForCausalLM(
                T.MambaConfig(
                    vocab_size=60,
                    hidden_size=24,
                    state_size=6,
                    num_hidden_layers=3,
                    time_step_rank=4,
                    residual_in_fp32=False,
                    tie_word_embeddings=False,
                    use_cache=False,
                )
            ),
            words=60,
            shape=(4, 12),
        )
    )


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


MAMBA = Model(
    "s-mamba",
    mamba,
    "Mamba against a port with split projections and a loop",
    (
        Fault(
            "taps-backwards",
            "wrong code",
            "forward",
            "backbone.layers.1.mixer",
            P.method("mixers.1", "convolved", _backwards),
            "the convolution's taps are reversed",
            also="backbone.layers.1.mixer.conv1d",
            planted="mixers.1",
            mapped=True,
        ),
        Fault(
            "relu-pace",
            "wrong code",
            "forward",
            "backbone.layers.2.mixer",
            P.method("mixers.2", "paced", lambda self, raw: F.relu(self.pace(raw))),
            "ReLU for softplus of the steps",
            planted="mixers.2",
        ),
        Fault(
            "stale-state",
            "wrong code",
            "forward",
            "backbone.layers.0.mixer",
            P.method("mixers.0", "scanned", _stale),
            "the state is read before it is updated",
            planted="mixers.0",
            mapped=True,
            dtype="autocast",
        ),
        Fault(
            "decay-not-log",
            "initial weights",
            "init",
            "backbone.layers.1.mixer",
            P.values("mixers.1", "decay_log", torch.exp),
            "A is stored where its logarithm belongs",
            planted="mixers.1",
        ),
        Fault(
            "gate-detached",
            "backward",
            "backward gradient",
            "backbone.layers.1.mixer",
            P.method("mixers.1", "gated", lambda self, y, u: y * F.silu(self.gate(u)).detach()),
            "the gate is cut off",
            also="backbone.layers.1.mixer.in_proj",
            planted="mixers.1",
            mapped=True,
        ),
        Fault(
            "state-cut",
            "backward",
            "backward gradient",
            "backbone.layers.2.mixer",
            P.method("mixers.2", "scanned", _cut_scan),
            "the state is detached at the middle of the sequence",
            planted="mixers.2",
        ),
        Fault(
            "skip-unused",
            "wrong code",
            "forward",
            "backbone.layers.0.mixer",
            P.around("mixers.0", lambda forward, u: _without_skip(forward, u)),
            "D is left out",
            planted="mixers.0",
        ),
        Fault(
            "last-eps",
            "hard",
            "forward",
            "backbone.norm_f",
            P.setting("last", eps=1e-6),
            "eps 1e-6 for 1e-5 in the last norm",
            planted="last",
            mapped=True,
        ),
        Fault(
            "logs-decay",
            "optimizer groups",
            "update",
            "backbone.layers.0.mixer",
            decayed(0.5),
            "A's logarithm decays, too",
            also="backbone.layers.?.mixer backbone.layers backbone ROOT",
            planted="mixers",
            changes=decayed(0.5, lambda name, p: "log" not in name),
            mapped=True,
        ),
        *common.faults("lr", planted=""),
        *common.faults("warmup", planted="", mapped=True),
    ),
    (
        C("port", "the port"),
        C("port-mapped", "the port with its mapping", mapped=True),
        *common.cleans("autocast+ bf16 three-steps+ in-two one-two+ nadam"),
    ),
    port=ported(mamba, _own_mamba, MAMBA_RULES, 3, call(ids="tokens")),
    mapping={
        "TopLayer": {
            "backbone.embeddings": "words",
            "backbone.layers.{i}.mixer": "mixers.{i}",
            "backbone.norm_f": "last",
            "lm_head": "head",
        },
        "MambaRMSNorm": {"params": {"weight": "gain"}},
        "MambaMixer": {
            "in_proj": ["into", "gate"],
            "x_proj": "select",
            "dt_proj": "pace",
            "out_proj": "back",
            "params": {"A_log": "decay_log", "D": "skip"},
        },
    },
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
    training = hub.causal(
        "s-mamba2",
        lambda T: T.Mamba2ForCausalLM(
            T.Mamba2Config(
                vocab_size=60,
                hidden_size=24,
                num_heads=6,
                head_dim=8,
                state_size=8,
                n_groups=1,
                num_hidden_layers=2,
                expand=2,
                chunk_size=4,
                residual_in_fp32=False,
                tie_word_embeddings=False,
                use_cache=False,
            )
        ),
        words=60,
        shape=(4, 12),
    )
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


MAMBA2 = Model(
    "s-mamba2",
    mamba2,
    "Mamba-2 (chunked scan) against a port with a loop",
    (
        Fault(
            "gate-late",
            "wrong code",
            "forward",
            "backbone.layers.0.mixer.norm",
            P.method("mixers.0", "normed", lambda self, y, gate: rms(y, self.gain, self.eps) * F.silu(gate)),
            "the gate comes after the norm",
            also="backbone.layers.0.mixer",
            planted="mixers.0",
            mapped=True,
        ),
        Fault(
            "norm-per-head",
            "wrong code",
            "forward",
            "backbone.layers.1.mixer.norm",
            P.method("mixers.1", "normed", _per_head),
            "the gated norm goes over each head",
            also="backbone.layers.1.mixer",
            planted="mixers.1",
        ),
        Fault(
            "pace-limited",
            "wrong code",
            "forward",
            "backbone.layers.1.mixer",
            P.method("mixers.1", "paced", lambda self, u: F.softplus(self.pace(u)).clamp(max=0.8)),
            "the steps are limited to 0.8",
            planted="mixers.1",
            mapped=True,
        ),
        Fault(
            "pace-bias",
            "initial weights",
            "init",
            "backbone.layers.1.mixer",
            P.values("mixers.1.pace", "bias", torch.zeros_like),
            "the bias of the steps is not loaded",
            planted="mixers.1.pace",
        ),
        Fault(
            "conv-gradient",
            "gradient",
            "gradient",
            "backbone.layers.0.mixer.conv1d",
            P.parameter_gradient("mixers.0.conv", "weight", lambda g: g.flip(-1)),
            "the kernel's backward returns the taps' gradient reversed",
            also="backbone.layers.0.mixer",
            planted="mixers.0.conv",
            mapped=True,
        ),
        Fault(
            "decay-frozen",
            "optimizer groups",
            "update",
            "backbone.layers.1.mixer",
            lambda t: _without(t, "mixers.1.decay_log"),
            "A's logarithm is not given to the optimizer",
            planted="mixers.1",
        ),
        *common.faults("micro-sum state-lost", planted=""),
        *common.faults("clip", planted="", mapped=True),
    ),
    (
        C("port", "the port"),
        C("port-mapped", "the port with its mapping", mapped=True),
        *common.cleans("autocast fp32-autocast+ three-steps fused+ clip-by-hand"),
    ),
    port=ported(
        mamba2, lambda: SsmStack(60, 24, [Ssd(24, 48, 6, 8) for _ in range(2)]), M2_RULES, 2, call(ids="tokens")
    ),
    mapping={
        "TopLayer": {
            "backbone.embeddings": "words",
            "backbone.layers.{i}.mixer": "mixers.{i}",
            "backbone.norm_f": "last",
            "lm_head": "head",
        },
        "Mamba2RMSNorm": {"params": {"weight": "gain"}},
        "Mamba2Mixer": {"conv1d": "conv", "out_proj": "back", "params": {"A_log": "decay_log", "D": "skip"}},
    },
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
    training = hub.causal(
        "s-rwkv",
        lambda T: T.RwkvForCausalLM(
            T.RwkvConfig(
                vocab_size=60,
                hidden_size=24,
                num_hidden_layers=3,
                intermediate_size=48,
                context_length=32,
                rescale_every=0,
                tie_word_embeddings=False,
                use_cache=False,
            )
        ),
        words=60,
        shape=(4, 12),
    )
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


RWKV = Model(
    "s-rwkv",
    rwkv,
    "RWKV against a port with bare matrices, functional norms and a plain sum of exponentials",
    (
        Fault(
            "no-bonus",
            "wrong code",
            "forward",
            "rwkv.blocks.1.attention",
            P.method("time.1", "wkv", _no_bonus),
            "the current token gets no bonus",
            planted="time.1",
            mapped=True,
        ),
        Fault(
            "shift-other-way",
            "wrong code",
            "forward",
            "rwkv.blocks.2.attention",
            P.method("time.2", "blended", lambda self, x, name: torch.lerp(x, F.pad(x, (0, 0, 1, -1)), self.mix[name])),
            "the mixing weights of now and before are exchanged",
            planted="time.2",
            also="rwkv.blocks.2.attention.key rwkv.blocks.2.attention.value rwkv.blocks.2.attention.receptance",
        ),
        Fault(
            "relu-not-squared",
            "activation",
            "forward",
            "rwkv.blocks.0.feed_forward",
            P.method("channel.0", "activated", lambda self, x: F.relu(x)),
            "the ReLU is not squared",
            also="rwkv.blocks.0.feed_forward.value",
            planted="channel.0",
            mapped=True,
            dtype="bfloat16",
        ),
        Fault(
            "in-norm-missing",
            "wrong code",
            "forward",
            "rwkv.blocks.0.pre_ln",
            P.method(
                "",
                "normed",
                lambda self, x, name: x if name == "in" else norm(x, self.ln[name + "_w"], self.ln[name + "_b"], 1e-5),
            ),
            "the norm before the first block is missing",
            also="rwkv.blocks.0 rwkv",
            planted="",
        ),
        Fault(
            "decay-sign",
            "initial weights",
            "init",
            "rwkv.blocks.2.attention",
            P.values("time.2", "decay", torch.neg),
            "the decay of layer 2 has the other sign",
            planted="time.2",
            mapped=True,
        ),
        Fault(
            "gate-gradient",
            "backward",
            "backward gradient",
            "rwkv.blocks.1.feed_forward.receptance",
            P.around("channel.1.gate", lambda forward, x: P.wrong_gradient(forward(x), lambda g: 0.5 * g)),
            "the sigmoid gate's backward is half of what is right",
            also="rwkv.blocks.1.feed_forward",
            planted="channel.1.gate",
            mapped=True,
        ),
        Fault(
            "head-scaled",
            "wrong code",
            "forward",
            "head",
            after("out", lambda y: y * 24**-0.5),
            "the logits are scaled by the root of the width",
            planted="out",
        ),
        Fault(
            "decay-off",
            "optimizer groups",
            "update",
            "",
            decayed(0.3),
            "biases and vectors decay as the matrices do",
            also="rwkv.blocks.* rwkv.ln_out",
            planted="",
            changes=decayed(0.3, matrices),
        ),
        *common.faults("not-zeroed", planted="", mapped=True),
        *common.faults("adagrad", planted=""),
    ),
    (
        C("port", "the port"),
        C("port-mapped", "the port with its mapping", mapped=True),
        *common.cleans("autocast+ fp32-bf16 three-steps sgd+ warmup"),
    ),
    port=ported(rwkv, lambda: Rwkv(60, 24, 48, 3), RWKV_RULES, 3, call(ids="tokens")),
    mapping={
        "TopLayer": {
            "rwkv.embeddings": "table",
            "rwkv.blocks.{i}.attention": "time.{i}",
            "rwkv.blocks.{i}.feed_forward": "channel.{i}",
            "rwkv.ln_out": "final",
            "head": "out",
        },
        "RwkvFeedForward": {
            "key": "up",
            "value": "down",
            "receptance": "gate",
            "params": {"time_mix_key": "mix_up", "time_mix_receptance": "mix_gate"},
        },
        "RwkvSelfAttention": {"params": {"time_decay": "decay", "time_first": "bonus"}},
    },
)

MODELS = (MAMBA, MAMBA2, RWKV)
