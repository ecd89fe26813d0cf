"""Hand-written networks for tables of columns, and for retrieval."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import DOUBLED, SPLIT, Architecture
from benchmarks.localisation.models.batches import (
    columns,
    more_columns,
    numbers,
    questions_and_passages,
    texts_and_vectors,
)


class Recommender(nn.Module):
    """Embeddings of categories beside numbers, their products, and two perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(40, 16, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(22, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        parts = torch.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], 1)
        products = parts @ parts.transpose(1, 2)
        rows, columns = torch.triu_indices(4, 4, 1)
        return self.top(torch.cat([dense, products[:, rows, columns]], 1))


class Perceptron(nn.Module):
    """Three hidden layers with batch normalisation, for columns of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1, self.act1 = nn.Linear(24, 48), nn.BatchNorm1d(48), nn.ReLU()
        self.fc2, self.bn2, self.act2 = nn.Linear(48, 48), nn.BatchNorm1d(48), nn.SiLU()
        self.fc3, self.bn3, self.act3 = nn.Linear(48, 32), nn.BatchNorm1d(32), nn.ReLU()
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.fc1(x)))
        x = self.act3(self.bn3(self.fc3(self.act2(self.bn2(self.fc2(x))))))
        return self.head(x)


class Cross(nn.Module):
    """One layer of explicit products of all columns with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 48)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        return x + first * self.linear(x)


class CrossNet(nn.Module):
    """Bags of categories beside numbers; products and a perceptron side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(40, 8, mode="sum") for _ in range(3))
        self.numbers = nn.Linear(13, 24)
        self.bn = nn.BatchNorm1d(48)
        self.crosses = nn.ModuleList(Cross() for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.LayerNorm(48), nn.Linear(48, 24), nn.ReLU())
        self.head = nn.Linear(72, 10)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        bags = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        first = x = self.bn(torch.cat([self.numbers(numbers), *bags], -1))
        for cross in self.crosses:
            x = cross(x, first)
        return self.head(torch.cat([x, self.deep(first)], -1))


class UnitLength(nn.Module):
    """Rows of length one."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class Temperature(nn.Module):
    """Similarities times a learned scale that is kept as its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.exp()


class Towers(nn.Module):
    """Texts against vectors: every pair's similarity, as contrastive models have."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(96, 32, mode="mean")
        self.text = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 24))
        self.other = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, 24))
        self.unit1, self.unit2 = UnitLength(), UnitLength()
        self.temperature = Temperature()

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        left, right = self.unit1(self.text(self.words(ids))), self.unit2(self.other(x))
        return self.temperature(left @ right.T)


class MeanOfTokens(nn.Module):
    """The mean over the tokens that are no padding."""

    counts_padding = False

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        weights = torch.ones_like(mask) if self.counts_padding else mask
        weights = weights[..., None].to(hidden_states.dtype)
        return (hidden_states * weights).sum(1) / weights.sum(1)


class Tower(nn.Module):
    """Texts of several lengths to vectors of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(96, 32), nn.LayerNorm(32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.pool, self.project, self.unit = MeanOfTokens(), nn.Linear(32, 24), UnitLength()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.layer(self.norm(self.embedding(ids)), src_key_padding_mask=mask == 0)
        return self.unit(self.project(self.pool(x, mask)))


class Retriever(nn.Module):
    """Questions against passages, each with a tower of its own: every pair's similarity."""

    def __init__(self) -> None:
        super().__init__()
        self.questions, self.passages, self.temperature = Tower(), Tower(), Temperature()

    def forward(self, questions: Tensor, question_mask: Tensor, passages: Tensor, passage_mask: Tensor) -> Tensor:
        left, right = self.questions(questions, question_mask), self.passages(passages, passage_mask)
        return self.temperature(left @ right.T)


RECOMMENDERS: dict[str, Architecture] = {
    "recommender": Architecture(lambda setup: Recommender(), columns, SPLIT),
    "towers": Architecture(lambda setup: Towers(), texts_and_vectors, DOUBLED),
    "perceptron": Architecture(lambda setup: Perceptron(), numbers, SPLIT),
    "crossnet": Architecture(lambda setup: CrossNet(), more_columns, SPLIT),
    "retriever": Architecture(lambda setup: Retriever(), questions_and_passages, SPLIT),
}  # fmt: skip
