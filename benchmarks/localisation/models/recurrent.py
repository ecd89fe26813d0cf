"""Hand-written networks of LSTMs and GRUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import SPLIT, Architecture
from benchmarks.localisation.models.batches import classified_ids, games, next_ids, tagged_ids, translated_ids


class Tagger(nn.Module):
    """An embedding, two layers of LSTM, a class for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 96)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.lstm(self.embedding(ids))[0]))


class Recurrent(nn.Module):
    """Two GRUs with a highway gate between them, as a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.first = nn.GRU(24, 24, batch_first=True)
        self.gate = nn.Linear(24, 24)
        self.second = nn.GRU(24, 24, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        gate = torch.sigmoid(self.gate(x))
        x = gate * self.first(x)[0] + (1 - gate) * x
        return self.head(self.norm(self.second(x)[0].mean(1)))


class RecurrentLanguageModel(nn.Module):
    """An LSTM, then a GRU, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.project = nn.Linear(32, 32)
        self.head = nn.Linear(32, 96, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.gru(self.lstm(self.embedding(ids))[0])[0]
        return self.head(self.project(self.norm(x)))


class AdditiveAttention(nn.Module):
    """Attention by a small perceptron of query and key."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.score = (
            nn.Linear(32, 32),
            nn.Linear(32, 32, bias=False),
            nn.Linear(32, 1, bias=False),
        )
        self.act, self.softmax = nn.Tanh(), nn.Softmax(dim=-1)

    def forward(self, query: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        hidden_scores = self.act(self.query(query)[:, :, None] + self.key(memory)[:, None])
        scores = self.score(hidden_scores).squeeze(-1).masked_fill(hidden[:, None], -1e4)
        return self.softmax(scores) @ memory


class Translator(nn.Module):
    """Two LSTMs, the second attends to the first; padding is id 1."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(96, 24, padding_idx=1)
        self.target = nn.Embedding(96, 24, padding_idx=1)
        self.encoder = nn.LSTM(24, 32, batch_first=True)
        self.decoder = nn.LSTM(24, 32, batch_first=True)
        self.attention = AdditiveAttention()
        self.drop, self.merge, self.head = nn.Dropout(0.0), nn.Linear(64, 32), nn.Linear(32, 96)

    def forward(self, ids: Tensor, given: Tensor) -> Tensor:
        memory, last = self.encoder(self.source(ids))
        x, _ = self.decoder(self.target(given), last)
        x = torch.cat([x, self.attention(x, memory, ids == 1)], -1)
        return self.head(self.drop(torch.tanh(self.merge(x))))


class ActorCritic(nn.Module):
    """What a policy wants in each step of a game, and what it expects to win, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm, self.act = nn.Linear(12, 32), nn.LayerNorm(32), nn.Tanh()
        self.memory = nn.GRU(32, 32, batch_first=True)
        self.actor = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 6))
        self.critic = nn.Sequential(nn.Linear(32, 32), nn.ELU(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.memory(self.act(self.norm(self.encode(x))))[0]
        return torch.cat([F.log_softmax(self.actor(x), -1), self.critic(x)], -1)


RECURRENT: dict[str, Architecture] = {
    "lstm": Architecture(lambda setup: Tagger(), tagged_ids, SPLIT),
    "gru": Architecture(lambda setup: Recurrent(), classified_ids, SPLIT),
    "rnn-lm": Architecture(lambda setup: RecurrentLanguageModel(), next_ids, SPLIT, True),
    "seq2seq": Architecture(lambda setup: Translator(), translated_ids, SPLIT),
    "actor": Architecture(lambda setup: ActorCritic(), games, SPLIT),
}  # fmt: skip
