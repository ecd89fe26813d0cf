"""Top-2 experts with packed weights and a balancing loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, threads


class Experts(nn.Module):
    """Noisy-free top-2 gating over experts held in packed weights, with a load-balancing loss."""

    def __init__(self, size: int, hidden: int, number: int, top: int = 2):
        super().__init__()
        self.gate = nn.Linear(size, number, bias=False)
        self.up = nn.Parameter(torch.randn(number, size, hidden) * size**-0.5)
        self.down = nn.Parameter(torch.randn(number, hidden, size) * hidden**-0.5)
        self.top, self.number = top, number

    def forward(self, x):
        chances = self.gate(x).float().softmax(-1)
        weights, chosen = chances.topk(self.top, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        hot = F.one_hot(chosen, self.number).to(x.dtype)
        every = torch.einsum("teh,ehs->tes", F.silu(torch.einsum("ts,esh->teh", x, self.up)), self.down)
        out = torch.einsum("tk,tke,tes->ts", weights.to(x.dtype), hot, every)
        load = self.number * (hot.float().sum(1).mean(0) * chances.mean(0)).sum()
        return out, load


class Sparse(nn.Module):
    """A classifier of sets of features with two layers of experts."""

    def __init__(self, size: int = 16):
        super().__init__()
        self.into = nn.Linear(9, size)
        self.layers = nn.ModuleList(Experts(size, 24, 4) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.head = nn.Linear(size, 5)

    def forward(self, x):
        x, total = self.into(x), 0.0
        for layer, norm in zip(self.layers, self.norms, strict=True):
            out, load = layer(norm(x))
            x, total = x + out, total + load
        return self.head(x), total


def experts_loss(weight):
    return lambda output, batch: F.cross_entropy(output[0].float(), batch["labels"]) + weight * output[1]


def sparse() -> Training:
    data = batches(lambda g: {"x": normal(g, 24, 9), "labels": ids(g, 24, below=5)}, "sparse")
    return Training(lively(Sparse()), give("x"), experts_loss(0.02), data)


def _not_renormalised(self, x):
    chances = self.gate(x).float().softmax(-1)
    weights, chosen = chances.topk(self.top, -1)
    hot = F.one_hot(chosen, self.number).to(x.dtype)
    every = torch.einsum("teh,ehs->tes", F.silu(torch.einsum("ts,esh->teh", x, self.up)), self.down)
    return torch.einsum("tk,tke,tes->ts", weights.to(x.dtype), hot, every), self.number * (
        hot.float().sum(1).mean(0) * chances.mean(0)
    ).sum()


def _weights_detached(self, x):
    chances = self.gate(x).float().softmax(-1)
    weights, chosen = chances.topk(self.top, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).detach()
    hot = F.one_hot(chosen, self.number).to(x.dtype)
    every = torch.einsum("teh,ehs->tes", F.silu(torch.einsum("ts,esh->teh", x, self.up)), self.down)
    return torch.einsum("tk,tke,tes->ts", weights.to(x.dtype), hot, every), self.number * (
        hot.float().sum(1).mean(0) * chances.mean(0)
    ).sum()


SPARSE = Model(
    "packed-experts",
    sparse,
    "top-2 experts with packed weights and a balancing loss",
    (
        Fault(
            "not-renormalised",
            "formula",
            P.rewritten("layers.0", _not_renormalised),
            "layers.0",
            ("forward",),
            "the chosen experts' weights are not renormalised",
        ),
        Fault(
            "top-one",
            "constant",
            P.setting("layers.1", top=1),
            "layers.1",
            ("forward",),
            "top-1 for top-2",
            dtype="autocast",
        ),
        Fault(
            "gate-detached",
            "detach",
            P.rewritten("layers.1", _weights_detached),
            "layers.1",
            ("backward",),
            "the output does not train the gate",
            also=("layers.1.gate",),
        ),
        Fault(
            "experts-swapped",
            "permuted-weight",
            P.values("layers.0", "down", lambda w: w[[1, 0, 2, 3]]),
            "layers.0",
            ("init",),
            "two experts' second matrices are swapped",
        ),
        Fault(
            "balance-weight",
            "loss-scale",
            P.criterion(experts_loss(0.01)),
            "",
            ("loss",),
            "balancing weighs 0.01 for 0.02",
        ),
        Fault(
            "experts-gradient",
            "missing-gradient",
            P.parameter_gradient("layers.0", "up", lambda g: g * torch.tensor([1.0, 1, 1, 0])[:, None, None]),
            "layers.0",
            ("gradient", "backward"),
            "the last expert gets no gradient",
        ),
        Fault(
            "bias-correction",
            "bias-correction",
            P.optimizer(lambda m: _uncorrected(m)),
            "",
            ("update",),
            "Adam without bias correction",
        ),
    ),
    (
        Clean(
            "dispatched",
            "experts compute only the tokens that chose them",
            P.rewritten("layers.0", lambda self, x: _dispatched(self, x)),
        ),
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2)), dtype="autocast"),
    ),
)


class Uncorrected(torch.optim.Optimizer):
    """AdamW as BertAdam has it: without bias correction."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.05})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                state["exp_avg"].lerp_(p.grad, 0.1)
                state["exp_avg_sq"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])


def _uncorrected(model):
    return Uncorrected([p for p in model.parameters() if p.requires_grad])


def _dispatched(self, x):
    chances = self.gate(x).float().softmax(-1)
    weights, chosen = chances.topk(self.top, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for number in range(self.number):
        token, place = (chosen == number).nonzero(as_tuple=True)
        if len(token):
            done = F.silu(x[token] @ self.up[number]) @ self.down[number]
            out = out.index_add(0, token, weights[token, place, None] * done)
    load = self.number * (F.one_hot(chosen, self.number).float().sum(1).mean(0) * chances.mean(0)).sum()
    return out, load
