"""Sequence models outside the usual transformers: diagonal state spaces, retention, pointer networks, a neural CRF, memory."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .. import plant as P
from ..spec import HERE, model
from ..training import Training, batches, give, ids, lively, next_token_loss, normal, sgd, squared, threads

# S4D with complex kernels, two groups of the optimizer.


class DiagonalKernel(nn.Module):
    """The convolution kernel of a diagonal state space (S4D)."""

    def __init__(self, channels: int, states: int = 8):
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(channels) * 2 - 3)
        self.log_real = nn.Parameter(torch.full((channels, states), math.log(0.5)))
        self.imaginary = nn.Parameter(math.pi * torch.arange(states).float().repeat(channels, 1))
        self.c = nn.Parameter(torch.randn(channels, states, 2) * states**-0.5)

    def forward(self, length: int):
        a = torch.complex(-self.log_real.exp(), self.imaginary)
        dta = a * self.log_dt.exp()[:, None]
        c = torch.view_as_complex(self.c) * (dta.exp() - 1) / a
        powers = (dta[..., None] * torch.arange(length)).exp()
        return 2 * torch.einsum("cn,cnl->cl", c, powers).real


class DiagonalLayer(nn.Module):
    """Convolution by FFT, skip, GELU, gated output."""

    def __init__(self, channels: int):
        super().__init__()
        self.kernel, self.skip = DiagonalKernel(channels), nn.Parameter(torch.ones(channels))
        self.out = nn.Linear(channels, 2 * channels)

    def convolve(self, x, kernel):
        length = x.shape[-1]
        return torch.fft.irfft(torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length), n=2 * length)[
            ..., :length
        ]

    def forward(self, x):
        x = x.transpose(1, 2)
        y = self.convolve(x, self.kernel(x.shape[-1])) + x * self.skip[:, None]
        return F.glu(self.out(F.gelu(y).transpose(1, 2)))


class StateSpace(nn.Module):
    """S4D classifier of sequences."""

    def __init__(self, seen: int = 3, channels: int = 16, classes: int = 5):
        super().__init__()
        self.into = nn.Linear(seen, channels)
        self.layers = nn.ModuleList(DiagonalLayer(channels) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.into(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x))
        return self.head(x.mean(1))


def classify(output, batch):
    return F.cross_entropy(output.float(), batch["labels"])


def state_space() -> Training:
    data = batches(lambda g: {"x": normal(g, 6, 20, 3), "labels": ids(g, 6, below=5)}, "s4d")

    def grouped(model):
        slow = [p for n, p in model.named_parameters() if "kernel" in n]
        rest = [p for n, p in model.named_parameters() if "kernel" not in n]
        return torch.optim.AdamW(
            [{"params": rest}, {"params": slow, "lr": 1e-3, "weight_decay": 0.0}], lr=4e-3, weight_decay=0.05
        )

    model = StateSpace()
    lively(model.into), lively(model.head)
    return Training(model, give("x"), classify, data, optimize=grouped)


def _zero_order(self, length):
    a = torch.complex(-self.log_real.exp(), self.imaginary)
    dta = a * self.log_dt.exp()[:, None]
    c = torch.view_as_complex(self.c) * self.log_dt.exp()[:, None]
    return 2 * torch.einsum("cn,cnl->cl", c, (dta[..., None] * torch.arange(length)).exp()).real


def _one_half(self, length):
    a = torch.complex(-self.log_real.exp(), self.imaginary)
    dta = a * self.log_dt.exp()[:, None]
    c = torch.view_as_complex(self.c) * (dta.exp() - 1) / a
    return torch.einsum("cn,cnl->cl", c, (dta[..., None] * torch.arange(length)).exp()).real


def _circular(self, x, kernel):
    length = x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(kernel), n=length)


def _all_alike(model):
    return torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)


def _prenorm(self, x):
    x = self.into(x)
    for layer, norm in zip(self.layers, self.norms, strict=True):
        x = x + layer(norm(x))
    return self.head(x.mean(1))


STATE_SPACE = model(
    "diagonal-state-space",
    state_space,
    {
        "discretisation": P.rewritten(HERE, _zero_order),
        "factor-two": P.rewritten(HERE, _one_half),
        "circular": P.method(HERE, "convolve", _circular),
        "pre-norm": P.rewritten("", _prenorm),
        "one-group": P.optimizer(_all_alike),
        "mean-max": P.rewritten("", lambda self, x: _last_step(self, x)),
        "direct-convolution": P.method(
            "layers.1",
            "convolve",
            lambda self, x, k: F.conv1d(F.pad(x, (k.shape[-1] - 1, 0)), k.flip(-1)[:, None], groups=k.shape[0]),
        ),
        "one-kernel-loop": lambda t: _loop_of(t),
    },
)


def _loop_of(training: Training) -> None:
    usual = training.optimize

    def make(model):
        held = usual(model)
        for group in held.param_groups:
            group["foreach"] = False
        return held

    training.optimize = make


def _last_step(self, x):
    x = self.into(x)
    for layer, norm in zip(self.layers, self.norms, strict=True):
        x = norm(x + layer(x))
    return self.head(x[:, -1])


# Retentive network, tied embeddings.


class Retention(nn.Module):
    """Multi-scale retention in its parallel form, with xPos-free rotation and group norm."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.gate, self.out = (
            nn.Linear(size, 3 * size, bias=False),
            nn.Linear(size, size),
            nn.Linear(size, size, bias=False),
        )
        self.norm = nn.GroupNorm(heads, size)
        self.register_buffer("decay", torch.log(1 - 2.0 ** (-2 - torch.arange(heads))))

    def turn(self, x):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2])[:, None] * 10000 ** (-torch.arange(half) / half)
        cos, sin = angle.cos().to(x), angle.sin().to(x)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def weights(self, length, like):
        away = torch.arange(length)[:, None] - torch.arange(length)
        return torch.where(away >= 0, torch.exp(self.decay[:, None, None].float() * away), 0.0).to(like)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = self.turn(q) @ self.turn(k).transpose(-1, -2) * q.shape[-1] ** -0.5
        kept = (scores * self.weights(x.shape[1], x)) @ v
        kept = kept.transpose(1, 2).flatten(2)
        kept = self.norm(kept.flatten(0, 1)).view_as(x)
        return self.out(F.silu(self.gate(x)) * kept)


class RetentionBlock(nn.Module):
    """Retention and a feed-forward, pre-norm."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.norm1, self.retention = nn.RMSNorm(size, eps=1e-6), Retention(size, heads)
        self.norm2, self.ff = (
            nn.RMSNorm(size, eps=1e-6),
            nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)),
        )

    def forward(self, x):
        x = x + self.retention(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Retentive(nn.Module):
    """A language model of retention blocks with tied embeddings."""

    def __init__(self, words: int = 40, size: int = 32, heads: int = 4):
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.blocks = nn.ModuleList(RetentionBlock(size, heads) for _ in range(3))
        self.norm, self.head = nn.RMSNorm(size, eps=1e-6), nn.Linear(size, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) * math.sqrt(self.words.embedding_dim)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens(name: str, words: int, *shape: int):
    def make(g):
        seen = ids(g, *shape, below=words)
        return {"tokens": seen, "labels": seen}

    return batches(make, name)


def retentive() -> Training:
    return Training(lively(Retentive()), give("tokens"), next_token_loss, tokens("retnet", 40, 4, 14))


def _turn_only_query(self, x):
    q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
    scores = self.turn(q) @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    kept = ((scores * self.weights(x.shape[1], x)) @ v).transpose(1, 2).flatten(2)
    return self.out(F.silu(self.gate(x)) * self.norm(kept.flatten(0, 1)).view_as(x))


def _not_causal(self, length, like):
    away = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    return torch.exp(self.decay[:, None, None].float() * away).to(like)


def _untied(training: Training) -> None:
    training.model.head.weight = nn.Parameter(training.model.words.weight.detach().clone())


RETENTIVE = model(
    "retention-lm",
    retentive,
    {
        "key-not-turned": P.rewritten(HERE, _turn_only_query),
        "not-causal": P.method(HERE, "weights", _not_causal),
        "decay": P.values(HERE, "decay", lambda d: torch.log(1 - 2.0 ** (-3 - torch.arange(4)))),
        "untied": _untied,
        "embedding-scale": P.rewritten("", lambda self, t: _plain_scale(self, t)),
        "rms-eps": P.setting(HERE, eps=1e-5),
        "nan": P.around(HERE, lambda f, x: f(x) + torch.where(x == x.max(), torch.nan, 0.0)),
        "recurrent-form": P.rewritten("blocks.1.retention", lambda self, x: _recurrent(self, x)),
        "qkv-in-three": P.rewritten(
            "blocks.0.retention.qkv", lambda self, x: torch.cat([F.linear(x, w) for w in self.weight.chunk(3)], -1)
        ),
        "micro-batches": P.in_two,
    },
)


def _plain_scale(self, tokens):
    x = self.words(tokens) * 2.0
    for block in self.blocks:
        x = block(x)
    return self.head(self.norm(x))


def _recurrent(self, x):
    q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
    q, k, state, kept = self.turn(q), self.turn(k), 0.0, []
    for time in range(x.shape[1]):
        state = self.decay.exp()[:, None, None] * state + k[:, :, time, :, None] * v[:, :, time, None]
        kept.append((q[:, :, time, None] @ state)[:, :, 0])
    kept = (torch.stack(kept, 1) * q.shape[-1] ** -0.5).flatten(2)
    return self.out(F.silu(self.gate(x)) * self.norm(kept.flatten(0, 1)).view_as(x))


# Seq2seq with additive attention and a copy mechanism.


class Additive(nn.Module):
    """Bahdanau's attention."""

    def __init__(self, size: int):
        super().__init__()
        self.query, self.key, self.score = (
            nn.Linear(size, size, bias=False),
            nn.Linear(size, size),
            nn.Linear(size, 1, bias=False),
        )

    def forward(self, query, keys, mask):
        scores = self.score(torch.tanh(self.query(query)[:, None] + self.key(keys)))[..., 0]
        return scores.masked_fill(~mask, -1e9)


class Pointer(nn.Module):
    """Bidirectional GRU encoder, GRU-cell decoder with coverage, pointing back at the input."""

    def __init__(self, words: int = 30, size: int = 24):
        super().__init__()
        self.words = nn.Embedding(words, size, padding_idx=0)
        self.encoder = nn.GRU(size, size // 2, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(size, size)
        self.attend, self.point = Additive(size), Additive(size)
        self.cell = nn.GRUCell(2 * size, size)
        self.out = nn.Linear(2 * size, words)
        self.mix = nn.Linear(2 * size, 1)

    def forward(self, source, given):
        mask = source != 0
        keys, last = self.encoder(self.words(source))
        h = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))
        logs = []
        for time in range(given.shape[1]):
            seen = (self.attend(h, keys, mask).softmax(-1)[:, None] @ keys)[:, 0]
            h = self.cell(torch.cat([self.words(given[:, time]), seen], -1), h)
            both = torch.cat([h, seen], -1)
            share = torch.sigmoid(self.mix(both))
            made = self.out(both).softmax(-1)
            copied = torch.zeros_like(made).scatter_add(1, source, self.point(h, keys, mask).softmax(-1))
            logs.append((share * made + (1 - share) * copied + 1e-8).log())
        return torch.stack(logs, 1)


def pointer() -> Training:
    def make(g):
        source = ids(g, 5, 9, below=29) + 1
        source[1, 6:], source[3, 4:] = 0, 0
        target = ids(g, 5, 6, below=29) + 1
        target[2, 4:] = 0
        given = torch.cat([torch.ones(5, 1, dtype=torch.long), target[:, :-1]], 1)
        return {"source": source, "given": given, "labels": target}

    return Training(lively(Pointer()), give("source", "given"), pointer_loss(0), batches(make, "pointer"), clip=2.0)


def pointer_loss(ignored):
    return lambda output, batch: F.nll_loss(
        output.float().flatten(0, 1), batch["labels"].flatten(), ignore_index=ignored
    )


def _swapped_ends(self, source, given):
    mask = source != 0
    keys, last = self.encoder(self.words(source))
    return _decode(self, source, given, mask, keys, torch.cat([last[1], last[0]], -1))


def _decode(self, source, given, mask, keys, ends, shared=False):
    h, logs = torch.tanh(self.bridge(ends)), []
    for time in range(given.shape[1]):
        seen = (self.attend(h, keys, mask).softmax(-1)[:, None] @ keys)[:, 0]
        h = self.cell(torch.cat([self.words(given[:, time]), seen], -1), h)
        both = torch.cat([h, seen], -1)
        share = torch.sigmoid(self.mix(both))
        if shared:
            share = 1 - share
        copied = (
            torch.zeros(len(source), self.out.out_features)
            .to(both)
            .scatter_add(1, source, self.point(h, keys, mask).softmax(-1))
        )
        logs.append((share * self.out(both).softmax(-1) + (1 - share) * copied + 1e-8).log())
    return torch.stack(logs, 1)


def _mix_reversed(self, source, given):
    keys, last = self.encoder(self.words(source))
    return _decode(self, source, given, source != 0, keys, torch.cat([last[0], last[1]], -1), shared=True)


POINTER = model(
    "pointer-generator",
    pointer,
    {
        "no-mask": P.rewritten(
            HERE, lambda self, q, k, m: self.score(torch.tanh(self.query(q)[:, None] + self.key(k)))[..., 0]
        ),
        "directions": P.rewritten("", _swapped_ends),
        "mix-reversed": P.rewritten("", _mix_reversed),
        "ignore": P.criterion(pointer_loss(-100)),
        "teacher-shift": P.each_batch(lambda b: {**b, "given": b["labels"]}),
        "cell-gradient": P.around(HERE, lambda f, x, h: P.wrong_gradient(f(x, h), lambda g: g.clamp(-1e-3, 1e-3))),
        "padding-trained": lambda t: setattr(t.at("words"), "padding_idx", None),
        "gru-by-hand": P.rewritten("cell", lambda self, x, h: _gru(self, x, h)),
        "foreach-clip": lambda t: _clip_loop(t),
    },
)


def _gru(self, x, h):
    r, z, n = F.linear(x, self.weight_ih, self.bias_ih).chunk(3, -1)
    hr, hz, hn = F.linear(h, self.weight_hh, self.bias_hh).chunk(3, -1)
    z, n = torch.sigmoid(z + hz), torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return n + z * (h - n)


def _clip_loop(training: Training) -> None:
    training.clip = None
    P.after_backward(lambda t, n: nn.utils.clip_grad_norm_(list(t.model.parameters()), 2.0, foreach=False))(training)


# Character convolution, bidirectional LSTM and a CRF.


class Chain(nn.Module):
    """A conditional random field: the log-likelihood of a path of tags."""

    def __init__(self, tags: int):
        super().__init__()
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.moves = nn.Parameter(torch.zeros(tags, tags))

    def gold(self, scores, tags, mask):
        total = self.start[tags[:, 0]] + scores[:, 0].gather(1, tags[:, :1])[:, 0]
        for time in range(1, tags.shape[1]):
            step = self.moves[tags[:, time - 1], tags[:, time]] + scores[:, time].gather(1, tags[:, time, None])[:, 0]
            total = total + step * mask[:, time]
        return total + self.end[tags.gather(1, mask.long().sum(1, keepdim=True) - 1)[:, 0]]

    def partition(self, scores, mask):
        alpha = self.start + scores[:, 0]
        for time in range(1, scores.shape[1]):
            step = (alpha[:, :, None] + self.moves + scores[:, time, None]).logsumexp(1)
            alpha = torch.where(mask[:, time, None], step, alpha)
        return (alpha + self.end).logsumexp(1)

    def forward(self, scores, tags, mask):
        return self.gold(scores, tags, mask) - self.partition(scores, mask)


class Labeller(nn.Module):
    """Character convolution, bidirectional LSTM, CRF."""

    def __init__(self, letters: int = 20, size: int = 16, tags: int = 5):
        super().__init__()
        self.letters = nn.Embedding(letters, 8)
        self.spell = nn.Conv1d(8, size, 3, padding=1)
        self.lstm = nn.LSTM(size, size, bidirectional=True, batch_first=True)
        self.scores = nn.Linear(2 * size, tags)
        self.chain = Chain(tags)

    def forward(self, letters, tags, mask):
        seen = self.letters(letters).flatten(0, 1).transpose(1, 2)
        words = F.relu(self.spell(seen)).amax(-1).unflatten(0, letters.shape[:2])
        return self.chain(self.scores(self.lstm(words)[0]), tags, mask)


def labeller() -> Training:
    mask = torch.arange(7) < torch.tensor([7, 5, 6, 3])[:, None]
    data = batches(
        lambda g: {"letters": ids(g, 4, 7, 6, below=20), "tags": ids(g, 4, 7, below=5), "mask": mask}, "labeller"
    )
    model = lively(Labeller())
    return Training(model, give("letters", "tags", "mask"), lambda o, b: -o.float().mean(), data, optimize=sgd)


def _moves_transposed(self, scores, mask):
    alpha = self.start + scores[:, 0]
    for time in range(1, scores.shape[1]):
        step = (alpha[:, :, None] + self.moves.T + scores[:, time, None]).logsumexp(1)
        alpha = torch.where(mask[:, time, None], step, alpha)
    return (alpha + self.end).logsumexp(1)


def _end_of_row(self, scores, tags, mask):
    total = self.start[tags[:, 0]] + scores[:, 0].gather(1, tags[:, :1])[:, 0]
    for time in range(1, tags.shape[1]):
        step = self.moves[tags[:, time - 1], tags[:, time]] + scores[:, time].gather(1, tags[:, time, None])[:, 0]
        total = total + step * mask[:, time]
    return total + self.end[tags[:, -1]]


LABELLER = model(
    "crf-labeller",
    labeller,
    {
        "moves-transposed": P.method(HERE, "partition", _moves_transposed),
        "end-tag": P.method(HERE, "gold", _end_of_row),
        "mean-letters": P.rewritten(
            "",
            lambda self, letters, t, m: self.chain(
                self.scores(
                    self.lstm(
                        F.relu(self.spell(self.letters(letters).flatten(0, 1).transpose(1, 2)))
                        .mean(-1)
                        .unflatten(0, letters.shape[:2])
                    )[0]
                ),
                t,
                m,
            ),
        ),
        "hidden-bias": P.values(HERE, "bias_hh_l0_reverse", torch.zeros_like),
        "sum-loss": P.criterion(lambda o, b: -o.float().sum()),
        "dampening": P.groups(dampening=0.1),
        "partition-by-max": P.method("chain", "partition", lambda self, s, m: _by_maximum(self, s, m)),
        "lstm-cells": P.rewritten("lstm", lambda self, x: _cells(self, x)),
    },
)


def _by_maximum(self, scores, mask):
    alpha = self.start + scores[:, 0]
    for time in range(1, scores.shape[1]):
        all_ways = alpha[:, :, None] + self.moves + scores[:, time, None]
        top = all_ways.amax(1, keepdim=True).detach()
        alpha = torch.where(mask[:, time, None], (all_ways - top).exp().sum(1).log() + top[:, 0], alpha)
    return (alpha + self.end).logsumexp(1)


def _cells(self, x):
    outputs = []
    for end in ("", "_reverse"):
        h = c = x.new_zeros(len(x), self.hidden_size)
        seen = []
        for time in range(x.shape[1]) if not end else reversed(range(x.shape[1])):
            gates = F.linear(x[:, time], getattr(self, "weight_ih_l0" + end), getattr(self, "bias_ih_l0" + end))
            i, f, g, o = (
                gates + F.linear(h, getattr(self, "weight_hh_l0" + end), getattr(self, "bias_hh_l0" + end))
            ).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            seen.append(h)
        outputs.append(torch.stack(seen if not end else seen[::-1], 1))
    return torch.cat(outputs, -1), None


# A controller that reads and writes a memory, centred RMSprop.


class Memory(nn.Module):
    """A controller with content-based reading and writing of a memory."""

    def __init__(self, seen: int = 6, size: int = 20, slots: int = 5, width: int = 8):
        super().__init__()
        self.controller = nn.GRUCell(seen + width, size)
        self.read_key, self.write_key = nn.Linear(size, width), nn.Linear(size, width)
        self.erase, self.add, self.sharpness = nn.Linear(size, width), nn.Linear(size, width), nn.Linear(size, 2)
        self.out = nn.Linear(size + width, seen)
        self.start = nn.Parameter(torch.randn(slots, width) * 0.3)

    def address(self, key, memory, sharpness):
        alike = F.cosine_similarity(key[:, None], memory, dim=-1, eps=1e-6)
        return (F.softplus(sharpness)[:, None] * alike).softmax(-1)

    def forward(self, x):
        memory = self.start.expand(len(x), -1, -1)
        h, read = x.new_zeros(len(x), self.controller.hidden_size), memory.mean(1)
        out = []
        for time in range(x.shape[1]):
            h = self.controller(torch.cat([x[:, time], read], -1), h)
            sharp = self.sharpness(h)
            write = self.address(self.write_key(h), memory, sharp[:, 0])[..., None]
            memory = (
                memory * (1 - write * torch.sigmoid(self.erase(h))[:, None]) + write * torch.tanh(self.add(h))[:, None]
            )
            read = (self.address(self.read_key(h), memory, sharp[:, 1])[:, None] @ memory)[:, 0]
            out.append(self.out(torch.cat([h, read], -1)))
        return torch.stack(out, 1)


def memory() -> Training:
    data = batches(lambda g: {"x": normal(g, 6, 5, 6), "target": normal(g, 6, 5, 6)}, "memory")
    return Training(
        lively(Memory()),
        give("x"),
        squared,
        data,
        optimize=lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.9, centered=True),
    )


def _dot(self, key, memory, sharpness):
    return (F.softplus(sharpness)[:, None] * (key[:, None] * memory).sum(-1)).softmax(-1)


def _read_first(self, x):
    memory = self.start.expand(len(x), -1, -1)
    h, read, out = x.new_zeros(len(x), self.controller.hidden_size), memory.mean(1), []
    for time in range(x.shape[1]):
        h = self.controller(torch.cat([x[:, time], read], -1), h)
        sharp = self.sharpness(h)
        read = (self.address(self.read_key(h), memory, sharp[:, 1])[:, None] @ memory)[:, 0]
        write = self.address(self.write_key(h), memory, sharp[:, 0])[..., None]
        memory = memory * (1 - write * torch.sigmoid(self.erase(h))[:, None]) + write * torch.tanh(self.add(h))[:, None]
        out.append(self.out(torch.cat([h, read], -1)))
    return torch.stack(out, 1)


MEMORY = model(
    "memory-network",
    memory,
    {
        "dot-product": P.method("", "address", _dot),
        "read-before-write": P.rewritten("", _read_first),
        "not-centred": P.optimizer(lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.9)),
        "start-frozen": lambda t: setattr(t, "optimize", lambda m, usual=t.optimize: _without_start(usual(m), m)),
        "reset-gate": P.values(HERE, "weight_hh", lambda w: torch.cat([w[20:40], w[:20], w[40:]])),
        "cosine-by-hand": P.method(
            "",
            "address",
            lambda self, k, m, s: (
                F.softplus(s)[:, None] * ((F.normalize(k, dim=-1)[:, None] * F.normalize(m, dim=-1)).sum(-1))
            ).softmax(-1),
        ),
        "threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
)


def _without_start(held, model):
    for group in held.param_groups:
        group["params"] = [p for p in group["params"] if p is not model.start]
    return held


MODELS = (STATE_SPACE, RETENTIVE, POINTER, LABELLER, MEMORY)
