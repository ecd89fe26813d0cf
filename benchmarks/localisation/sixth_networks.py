"""Hand-written PyTorch models of the sixth set: shapes that neither the other sets nor transformers has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.fourth_networks import Temperature, UnitLength
from benchmarks.localisation.networks import FusedAttention, FusedDecoder


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


class Nearest(nn.Module):
    """Each vector's nearest one of a table; what comes back goes round the choice."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(24, 8))

    def forward(self, hidden_states: Tensor) -> Tensor:
        codes = self.codes.to(hidden_states.dtype)
        distances = (hidden_states[..., None, :] - codes).float().square().sum(-1)
        found = codes[distances.argmin(-1)]
        return found + hidden_states - hidden_states.detach()


class QuantisedAutoencoder(nn.Module):
    """Vectors through a table of codes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 8))
        self.norm, self.nearest = nn.LayerNorm(8), Nearest()
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 12))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.nearest(self.norm(self.encode(x))))


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


class Points(nn.Module):
    """`PointNet` in one list: a port with another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(*PointNet().children())

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


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


class PlainNorm(nn.Module):
    """LayerNorm without parameters, in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), (32,), eps=self.eps).to(x.dtype)


class PlainLayer(nn.Module):
    """A decoder layer with norms that have no parameters, gate and up in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = PlainNorm(), PlainNorm(), FusedAttention()
        self.gate_up, self.act, self.down = nn.Linear(32, 128, bias=False), nn.SiLU(), nn.Linear(64, 32, bias=False)

    def forward(self, hidden_states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        x = hidden_states + self.attention(self.norm1(hidden_states), angles)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(self.act(gate) * up)


class PlainDecoder(FusedDecoder):
    """What `OlmoForCausalLM` computes, as Megatron would cut it."""

    layer = PlainLayer

    def __init__(self) -> None:
        super().__init__()
        self.final_norm = PlainNorm()
