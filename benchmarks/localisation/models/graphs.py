"""Hand-written networks for graphs, sets and point clouds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import DOUBLED, SPLIT, Architecture
from benchmarks.localisation.models.batches import classified_graphs, classified_nodes, point_clouds, vector_sets


class GraphAttention(nn.Module):
    """A node's mean over its neighbours, weighted by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(24, 24)
        self.source, self.target = nn.Linear(24, 1, bias=False), nn.Linear(24, 1, bias=False)
        self.slope = nn.LeakyReLU(0.2)
        self.softmax = nn.Softmax(dim=-1)
        self.self_loops = True

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        if self.self_loops:
            edges = edges + torch.eye(edges.shape[-1], dtype=edges.dtype)
        hidden = self.project(nodes)
        scores = self.slope(self.source(hidden) + self.target(hidden).transpose(1, 2))
        scores = scores.masked_fill(edges == 0, torch.finfo(scores.dtype).min)
        return self.softmax(scores) @ hidden


class GraphLayer(nn.Module):
    """Attention over the neighbours, a norm, a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = GraphAttention()
        self.norm = nn.LayerNorm(24)
        self.expand, self.act, self.reduce = nn.Linear(24, 48), nn.ELU(), nn.Linear(48, 24)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        nodes = self.norm(nodes + self.attention(nodes, edges))
        return nodes + self.reduce(self.act(self.expand(nodes)))


class GraphNet(nn.Module):
    """Graphs of 12 nodes, one class each."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 24)
        self.layers = nn.ModuleList(GraphLayer() for _ in range(3))
        self.head = nn.Linear(24, 10)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.encode(nodes)
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x.mean(1))


class GraphConvolution(nn.Module):
    """The mean over neighbours, each divided by the roots of both nodes' numbers of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24, bias=False)
        self.self_loops = True

    def forward(self, hidden_states: Tensor, edges: Tensor) -> Tensor:
        if self.self_loops:
            edges = edges + torch.eye(edges.shape[-1], dtype=edges.dtype)
        degrees = edges.sum(-1).clamp_min(1).rsqrt()
        return (degrees[:, :, None] * edges * degrees[:, None]) @ self.linear(hidden_states)


class GraphConvolutions(nn.Module):
    """A class for every node of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 24)
        self.convs = nn.ModuleList(GraphConvolution() for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(3))
        self.act, self.drop, self.head = nn.ELU(), nn.Dropout(0.0), nn.Linear(24, 10)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.encode(nodes)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.drop(self.act(norm(conv(x, edges))))
        return self.head(x)


class PooledAttention(nn.Module):
    """A few learned queries look at everything."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(4, 32))
        self.key_value, self.proj, self.scaling = nn.Linear(32, 64), nn.Linear(32, 32), 8**-0.5

    def forward(self, hidden_states: Tensor) -> Tensor:
        key, value = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.key_value(hidden_states).chunk(2, -1))
        query = self.latents.unflatten(-1, (4, 8)).transpose(0, 1).to(key.dtype)
        weights = F.softmax(query @ key.transpose(2, 3) * self.scaling, -1)
        return self.proj((weights @ value).transpose(1, 2).flatten(2))


class SetPooler(nn.Module):
    """Sets of vectors to a class each, by attention pooling and PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm1, self.act1 = nn.Linear(12, 32), nn.LayerNorm(32), nn.PReLU()
        self.hidden, self.act2, self.norm2 = nn.Linear(32, 32), nn.Hardswish(), nn.LayerNorm(32)
        self.pool, self.head = PooledAttention(), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.encode(x)))
        return self.head(self.pool(self.norm2(x + self.act2(self.hidden(x)))).mean(1))


class PointNet(nn.Module):
    """Clouds of points to a class each: the same for every point, then the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv1d(3, 24, 1), nn.BatchNorm1d(24), nn.ReLU()
        self.conv2, self.bn2, self.act2 = nn.Conv1d(24, 32, 1), nn.BatchNorm1d(32), nn.ReLU()
        self.pool, self.flat = nn.AdaptiveMaxPool1d(1), nn.Flatten()
        self.fc, self.norm, self.act3, self.head = nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act2(self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))
        return self.head(self.act3(self.norm(self.fc(self.flat(self.pool(x))))))


GRAPHS: dict[str, Architecture] = {
    "graph": Architecture(lambda setup: GraphNet(), classified_graphs, SPLIT),
    "gcn": Architecture(lambda setup: GraphConvolutions(), classified_nodes, SPLIT),
    "pooler": Architecture(lambda setup: SetPooler(), vector_sets, SPLIT),
    "points": Architecture(lambda setup: PointNet(), point_clouds, DOUBLED),
}  # fmt: skip
