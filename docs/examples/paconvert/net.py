"""A small network in PyTorch, which PaConvert converts."""

import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.norm = nn.RMSNorm(16, eps=1e-6)
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True)
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.bn = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 7)

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        x = x + self.attn(x, x, x, need_weights=False)[0]
        x = x + self.bn(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.head(F.gelu(x))
