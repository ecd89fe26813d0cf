"""A controller that reads and writes a memory, centred RMSprop."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal, squared, threads


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


MEMORY = Model(
    "memory-network",
    memory,
    "a controller that reads and writes a memory, centred RMSprop",
    (
        Fault("dot-product", "formula", P.method("", "address", _dot), "", ("forward",), "inner products for cosines"),
        Fault(
            "read-before-write",
            "order-of-operations",
            P.rewritten("", _read_first),
            "",
            ("forward",),
            "the memory is read before it is written",
        ),
        Fault(
            "not-centred",
            "optimizer-variant",
            P.optimizer(lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.9)),
            "",
            ("update",),
            "RMSprop is not centred",
        ),
        Fault(
            "start-frozen",
            "frozen",
            lambda t: setattr(t, "optimize", lambda m, usual=t.optimize: _without_start(usual(m), m)),
            "",
            ("update",),
            "the initial memory is not given to the optimizer",
        ),
        Fault(
            "reset-gate",
            "permuted-weight",
            P.values("controller", "weight_hh", lambda w: torch.cat([w[20:40], w[:20], w[40:]])),
            "controller",
            ("init",),
            "reset and update gates are swapped in the recurrent weight",
        ),
    ),
    (
        Clean(
            "cosine-by-hand",
            "cosines written out",
            P.method(
                "",
                "address",
                lambda self, k, m, s: (
                    F.softplus(s)[:, None] * ((F.normalize(k, dim=-1)[:, None] * F.normalize(m, dim=-1)).sum(-1))
                ).softmax(-1),
            ),
        ),
        Clean("threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2)), steps=3),
    ),
)


def _without_start(held, model):
    for group in held.param_groups:
        group["params"] = [p for p in group["params"] if p is not model.start]
    return held
