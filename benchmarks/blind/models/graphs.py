"""Graphs, sets and molecules."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .. import plant as P
from ..spec import HERE, model
from ..training import Training, batches, give, ids, lively, normal, squared, threads, uniform

# Graph attention over a dense adjacency, Adam with coupled decay.


class GraphAttention(nn.Module):
    """Attention over neighbours with a leaky additive score."""

    def __init__(self, inputs: int, outputs: int, heads: int, join: bool):
        super().__init__()
        self.map = nn.Linear(inputs, heads * outputs, bias=False)
        self.source, self.target = nn.Parameter(torch.randn(heads, outputs)), nn.Parameter(torch.randn(heads, outputs))
        self.bias = nn.Parameter(torch.zeros(heads * outputs if join else outputs))
        self.heads, self.join = heads, join

    def forward(self, x, edges):
        h = self.map(x).unflatten(-1, (self.heads, -1))
        scores = (h * self.source).sum(-1)[:, None] + (h * self.target).sum(-1)[None]
        scores = F.leaky_relu(scores, 0.2).masked_fill(~edges[..., None], -torch.inf)
        out = torch.einsum("ijh,jhd->ihd", scores.softmax(1), h)
        return (out.flatten(1) if self.join else out.mean(1)) + self.bias


class Gat(nn.Module):
    """Two layers of graph attention; predicts labels of some nodes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GraphAttention(12, 6, 4, True), GraphAttention(24, 5, 3, False)

    def forward(self, x, edges):
        return self.second(F.elu(self.first(x, edges)), edges)


def gat() -> Training:
    def make(g):
        near = uniform(g, 20, 20) < 0.2
        edges = near | near.T | torch.eye(20, dtype=torch.bool)
        return {"x": normal(g, 20, 12), "edges": edges, "labels": ids(g, 20, below=5), "known": uniform(g, 20) < 0.5}

    return Training(
        lively(Gat()),
        give("x", "edges"),
        node_loss,
        batches(make, "gat"),
        optimize=lambda m: torch.optim.Adam(m.parameters(), lr=5e-3, weight_decay=5e-4),
    )


def node_loss(output, batch):
    return F.cross_entropy(output.float()[batch["known"]], batch["labels"][batch["known"]])


def _over_sources(self, x, edges):
    h = self.map(x).unflatten(-1, (self.heads, -1))
    scores = (h * self.source).sum(-1)[:, None] + (h * self.target).sum(-1)[None]
    scores = F.leaky_relu(scores, 0.2).masked_fill(~edges[..., None], -torch.inf)
    out = torch.einsum("ijh,jhd->ihd", scores.softmax(0), h)
    return (out.flatten(1) if self.join else out.mean(1)) + self.bias


def _bias_in_heads(self, x, edges):
    h = self.map(x).unflatten(-1, (-1, self.heads)).transpose(-1, -2)
    scores = (h * self.source).sum(-1)[:, None] + (h * self.target).sum(-1)[None]
    scores = F.leaky_relu(scores, 0.2).masked_fill(~edges[..., None], -torch.inf)
    out = torch.einsum("ijh,jhd->ihd", scores.softmax(1), h)
    return (out.flatten(1) if self.join else out.mean(1)) + self.bias


def _no_loops(batch):
    return {**batch, "edges": batch["edges"] & ~torch.eye(20, dtype=torch.bool) | (batch["edges"].sum(1) == 1).diag()}


GAT = model(
    "graph-attention",
    gat,
    {
        "softmax-over-targets": P.rewritten(HERE, _over_sources),
        "heads-split": P.rewritten(HERE, _bias_in_heads),
        "no-loops": P.each_batch(_no_loops),
        "decoupled": P.optimizer(lambda m: torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=5e-4)),
        "all-nodes": P.criterion(lambda o, b: F.cross_entropy(o.float(), b["labels"])),
        "edge-list": P.rewritten("first", lambda self, x, e: _edge_list(self, x, e)),
        "adam-loop": P.optimizer(lambda m: torch.optim.Adam(m.parameters(), lr=5e-3, weight_decay=5e-4, foreach=False)),
    },
)


def _edge_list(self, x, edges):
    h = self.map(x).unflatten(-1, (self.heads, -1))
    i, j = edges.nonzero(as_tuple=True)
    scores = F.leaky_relu((h * self.source).sum(-1)[i] + (h * self.target).sum(-1)[j], 0.2)
    weights = (scores - scores.max().detach()).exp()
    total = torch.zeros(len(x), self.heads).to(x).index_add(0, i, weights)
    out = torch.zeros_like(h).index_add(0, i, (weights / total[i])[..., None] * h[j])
    return (out.flatten(1) if self.join else out.mean(1)) + self.bias


# Continuous-filter convolutions on molecules.


class Filter(nn.Module):
    """Continuous-filter convolution (SchNet) with a cosine cutoff."""

    def __init__(self, size: int, bases: int, cutoff: float):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(bases, size), nn.Softplus(), nn.Linear(size, size))
        self.before, self.after, self.last = (
            nn.Linear(size, size, bias=False),
            nn.Linear(size, size),
            nn.Linear(size, size),
        )
        self.cutoff = cutoff

    def forward(self, x, away, bases):
        fade = 0.5 * (torch.cos(away * math.pi / self.cutoff) + 1) * (away < self.cutoff)
        weights = self.filter(bases) * fade[..., None]
        gathered = torch.einsum("bijd,bjd->bid", weights, self.before(x))
        return self.last(F.softplus(self.after(gathered)) - math.log(2))


class Molecule(nn.Module):
    """Energy of a molecule from atoms and distances."""

    def __init__(self, atoms: int = 8, size: int = 20, bases: int = 12, cutoff: float = 3.0):
        super().__init__()
        self.atoms = nn.Embedding(atoms, size)
        self.register_buffer("centres", torch.linspace(0, cutoff, bases))
        self.blocks = nn.ModuleList(Filter(size, bases, cutoff) for _ in range(3))
        self.energy = nn.Sequential(nn.Linear(size, 10), nn.Softplus(), nn.Linear(10, 1))
        self.gamma = 10.0

    def forward(self, kinds, places):
        away = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-8).sqrt()
        bases = torch.exp(-self.gamma * (away[..., None] - self.centres).square())
        away = away + 1e3 * torch.eye(away.shape[1])
        x = self.atoms(kinds)
        for block in self.blocks:
            x = x + block(x, away, bases)
        return self.energy(x)[..., 0].sum(1)


def molecule() -> Training:
    data = batches(
        lambda g: {"kinds": ids(g, 4, 7, below=8), "places": normal(g, 4, 7, 3), "target": normal(g, 4)}, "molecule"
    )
    plateau = lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5)  # noqa: E731
    return Training(lively(Molecule()), give("kinds", "places"), squared, data, schedule=plateau)


def _itself_too(self, kinds, places):
    away = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-8).sqrt()
    bases = torch.exp(-self.gamma * (away[..., None] - self.centres).square())
    x = self.atoms(kinds)
    for block in self.blocks:
        x = x + block(x, away, bases)
    return self.energy(x)[..., 0].sum(1)


def _no_fade(self, x, away, bases):
    weights = self.filter(bases) * (away < self.cutoff)[..., None]
    gathered = torch.einsum("bijd,bjd->bid", weights, self.before(x))
    return self.last(F.softplus(self.after(gathered)) - math.log(2))


MOLECULE = model(
    "molecule-energy",
    molecule,
    {
        "itself": P.rewritten("", _itself_too),
        "no-cutoff": P.rewritten(HERE, _no_fade),
        "softplus-shift": P.rewritten(
            HERE,
            lambda self, x, a, b: self.last(
                F.softplus(
                    self.after(
                        torch.einsum(
                            "bijd,bjd->bid",
                            self.filter(b)
                            * (0.5 * (torch.cos(a * math.pi / self.cutoff) + 1) * (a < self.cutoff))[..., None],
                            self.before(x),
                        )
                    )
                )
                - 0.69
            ),
        ),
        "mean-atoms": P.rewritten("", lambda self, k, p: _mean_atoms(self, k, p)),
        "gamma": P.setting("", gamma=10.01),
        "step-size": P.scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)),
        "cdist": P.rewritten("", lambda self, k, p: _cdist(self, k, p)),
        "two-threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
)


def _mean_atoms(self, kinds, places):
    away = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-8).sqrt()
    bases = torch.exp(-self.gamma * (away[..., None] - self.centres).square())
    away = away + 1e3 * torch.eye(away.shape[1])
    x = self.atoms(kinds)
    for block in self.blocks:
        x = x + block(x, away, bases)
    return self.energy(x)[..., 0].mean(1)


def _cdist(self, kinds, places):
    away = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist").square().add(1e-8).sqrt()
    bases = torch.exp(-self.gamma * (away[..., None] - self.centres).square())
    away = away + 1e3 * torch.eye(away.shape[1])
    x = self.atoms(kinds)
    for block in self.blocks:
        x = block(x, away, bases) + x
    return self.energy(x)[..., 0].sum(1)


# Induced set attention, Adagrad.


class SetAttention(nn.Module):
    """Multihead attention block of a set transformer."""

    def __init__(self, size: int, heads: int = 4):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.norm0, self.norm1, self.heads = nn.LayerNorm(size), nn.LayerNorm(size), heads

    def forward(self, x, y):
        q, k, v = self.query(x), self.key(y), self.value(y)
        a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = ((a @ b.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-1) @ c
        o = self.norm0(q + mixed.transpose(1, 2).flatten(2))
        return self.norm1(o + F.relu(self.out(o)))


class Induced(nn.Module):
    """Attention through learned inducing points."""

    def __init__(self, size: int, points: int):
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, size))
        self.gather, self.spread = SetAttention(size), SetAttention(size)

    def forward(self, x):
        return self.spread(x, self.gather(self.points.expand(len(x), -1, -1), x))


class SetTransformer(nn.Module):
    """Induced blocks, pooling by attention with seeds, a head."""

    def __init__(self, size: int = 24, seeds: int = 2):
        super().__init__()
        self.into = nn.Linear(2, size)
        self.encode = nn.ModuleList(Induced(size, 4) for _ in range(2))
        self.seeds, self.pool = nn.Parameter(torch.randn(1, seeds, size)), SetAttention(size)
        self.head = nn.Linear(seeds * size, 6)

    def forward(self, x):
        x = self.into(x)
        for block in self.encode:
            x = block(x)
        return self.head(self.pool(self.seeds.expand(len(x), -1, -1), x).flatten(1))


def set_transformer() -> Training:
    data = batches(lambda g: {"x": normal(g, 8, 11, 2), "labels": ids(g, 8, below=6)}, "sets")
    return Training(
        lively(SetTransformer()),
        give("x"),
        lambda o, b: F.cross_entropy(o.float(), b["labels"]),
        data,
        optimize=lambda m: torch.optim.Adagrad(m.parameters(), lr=5e-3),
    )


def _head_scale(self, x, y):
    q, k, v = self.query(x), self.key(y), self.value(y)
    a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = ((a @ b.transpose(-1, -2)) / math.sqrt(a.shape[-1])).softmax(-1) @ c
    o = self.norm0(q + mixed.transpose(1, 2).flatten(2))
    return self.norm1(o + F.relu(self.out(o)))


def _residual_of_input(self, x, y):
    q, k, v = self.query(x), self.key(y), self.value(y)
    a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = ((a @ b.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-1) @ c
    o = self.norm0(x + mixed.transpose(1, 2).flatten(2))
    return self.norm1(o + F.relu(self.out(o)))


def _not_transposed(self, x, y):
    q, k, v = self.query(x), self.key(y), self.value(y)
    a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = ((a @ b.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-1) @ c
    o = self.norm0(q + mixed.reshape(q.shape))
    return self.norm1(o + F.relu(self.out(o)))


SETS = model(
    "set-transformer",
    set_transformer,
    {
        "scale-of-head": P.rewritten(HERE, _head_scale),
        "residual-of-input": P.rewritten(HERE, _residual_of_input),
        "heads-not-joined": P.rewritten(HERE, _not_transposed),
        "norm-in-half": P.rewritten(
            HERE,
            lambda self, x: F.layer_norm(
                x.bfloat16(), self.normalized_shape, self.weight.bfloat16(), self.bias.bfloat16(), self.eps
            ).float(),
        ),
        "adagrad-eps": P.groups(eps=1e-6),
        "seeds-detached": P.rewritten("", lambda self, x: _seeds_detached(self, x)),
        "sdpa": P.rewritten("encode.0.spread", lambda self, x, y: _sdpa(self, x, y)),
        "sdpa-bfloat16": P.rewritten("encode.0.spread", lambda self, x, y: _sdpa(self, x, y)),
        "adagrad-loop": P.optimizer(lambda m: torch.optim.Adagrad(m.parameters(), lr=5e-3, foreach=False)),
    },
)


def _seeds_detached(self, x):
    x = self.into(x)
    for block in self.encode:
        x = block(x)
    return self.head(self.pool(self.seeds.detach().expand(len(x), -1, -1), x).flatten(1))


def _sdpa(self, x, y):
    q, k, v = self.query(x), self.key(y), self.value(y)
    a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = F.scaled_dot_product_attention(a, b, c, scale=q.shape[-1] ** -0.5)
    o = self.norm0(q + mixed.transpose(1, 2).flatten(2))
    return self.norm1(o + F.relu(self.out(o)))


MODELS = (GAT, MOLECULE, SETS)
