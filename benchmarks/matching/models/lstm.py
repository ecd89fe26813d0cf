"""A tagger with an LSTM: torch's own layer against a loop over cells."""

from __future__ import annotations

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.dropout = nn.Dropout(0.0)
        self.classifier = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.dropout(self.lstm(self.embedding(x))[0]))


class Recurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.LSTMCell(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, seen = None, []
        for item in x.unbind(1):
            state = self.step(item, state)
            seen.append(state[0])
        return torch.stack(seen, 1)


class SequenceModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.recurrence = Recurrence()
        self.output = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.recurrence(self.tokens(x)))


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = Tagger(), SequenceModel()
    b.tokens.load_state_dict(a.embedding.state_dict())
    b.output.load_state_dict(a.classifier.state_dict())
    b.recurrence.step.load_state_dict({name.removesuffix("_l0"): value for name, value in a.lstm.state_dict().items()})
    return a, b, (torch.randint(0, 20, (3, 5)),)
