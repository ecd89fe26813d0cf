"""Graph attention over a dense adjacency, Adam with coupled decay."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, uniform


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


GAT = Model(
    "graph-attention",
    gat,
    "graph attention over a dense adjacency, Adam with coupled decay",
    (
        Fault(
            "softmax-over-targets",
            "axis",
            P.rewritten("first", _over_sources),
            "first",
            ("forward",),
            "attention is normalised over the wrong end of the edges",
        ),
        Fault(
            "heads-split",
            "heads",
            P.rewritten("second", _bias_in_heads),
            "second",
            ("forward",),
            "features are split into heads in the other order",
            dtype="bfloat16",
        ),
        Fault("no-loops", "mask", P.each_batch(_no_loops), "", ("forward", "inputs"), "self-loops are missing"),
        Fault(
            "decoupled",
            "decay",
            P.optimizer(lambda m: torch.optim.AdamW(m.parameters(), lr=5e-3, weight_decay=5e-4)),
            "",
            ("update",),
            "decoupled decay for coupled",
        ),
        Fault(
            "all-nodes",
            "loss-mask",
            P.criterion(lambda o, b: F.cross_entropy(o.float(), b["labels"])),
            "",
            ("loss",),
            "unknown nodes count in the loss",
        ),
    ),
    (
        Clean(
            "edge-list",
            "attention over a list of edges with scatter",
            P.rewritten("first", lambda self, x, e: _edge_list(self, x, e)),
        ),
        Clean(
            "adam-loop",
            "Adam without foreach",
            P.optimizer(lambda m: torch.optim.Adam(m.parameters(), lr=5e-3, weight_decay=5e-4, foreach=False)),
            steps=3,
        ),
    ),
)


def _edge_list(self, x, edges):
    h = self.map(x).unflatten(-1, (self.heads, -1))
    i, j = edges.nonzero(as_tuple=True)
    scores = F.leaky_relu((h * self.source).sum(-1)[i] + (h * self.target).sum(-1)[j], 0.2)
    weights = (scores - scores.max().detach()).exp()
    total = torch.zeros(len(x), self.heads).to(x).index_add(0, i, weights)
    out = torch.zeros_like(h).index_add(0, i, (weights / total[i])[..., None] * h[j])
    return (out.flatten(1) if self.join else out.mean(1)) + self.bias
