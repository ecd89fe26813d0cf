"""Text encoders: masked language models of transformers, and two hand-written classifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import (
    DOUBLED,
    SPLIT,
    Architecture,
)
from benchmarks.localisation.models.batches import (
    classified_ids,
)


class Encoder(nn.Module):
    """PyTorch's own transformer encoder layers behind an embedding, as a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.position = nn.Parameter(torch.zeros(16, 32))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Tagger(nn.Module):
    """Characters through a convolution, a GRU in both directions, one in one, and the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.conv = nn.Conv1d(24, 24, 3, padding=1)
        self.both = nn.GRU(24, 16, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.norm, self.act, self.head = nn.LayerNorm(32), nn.Softplus(), nn.Linear(32, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        x, _ = self.gru(self.both(x)[0])
        return self.head(self.act(self.norm(x)).mean(1))


ENCODERS: dict[str, Architecture] = {
    "encoder": Architecture(lambda setup: Encoder(), classified_ids, DOUBLED),
    "tagger": Architecture(lambda setup: Tagger(), classified_ids, SPLIT),
}  # fmt: skip
