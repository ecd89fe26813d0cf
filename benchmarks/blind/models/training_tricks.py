"""Trainings that are more than one loss: self-distillation, LoRA, distillation, experts, contrast, multi-task weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from .. import plant as P
from ..spec import HERE, Sides, model
from ..training import Training, batches, give, ids, lively, next_token_loss, normal, threads

# Self-distillation with a slow target.


class Projector(nn.Module):
    """Two layers with batch norm."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Linear(inputs, hidden),
            nn.BatchNorm1d(hidden),
            nn.Linear(hidden, outputs),
        )

    def forward(self, x):
        return self.second(F.relu(self.norm(self.first(x))))


class Byol(nn.Module):
    """Online encoder, projector and predictor; a slow target."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.online = nn.Sequential(
            nn.Conv2d(2, 8, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, 2, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            Projector(12, width, 10),
        )
        self.predictor = Projector(10, width, 10)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, one, two):
        p1, p2 = self.predictor(self.online(one)), self.predictor(self.online(two))
        with torch.no_grad():
            t1, t2 = self.target(one), self.target(two)
        return p1, p2, t1, t2


def byol_loss(stop=True):
    def loss(output, batch):
        p1, p2, t1, t2 = (x.float() for x in output)
        return 4 - 2 * F.cosine_similarity(p1, t2).mean() - 2 * F.cosine_similarity(p2, t1).mean()

    return loss


def byol() -> Training:
    data = batches(lambda g: {"one": normal(g, 8, 2, 10, 10), "two": normal(g, 8, 2, 10, 10)}, "byol")
    model = Byol()
    lively(model.online), lively(model.predictor)
    model.target.load_state_dict(model.online.state_dict())
    training = Training(
        model,
        give("one", "two"),
        byol_loss(),
        data,
        optimize=lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.05, momentum=0.9),
    )
    P.after_step(lambda t, n: follow(t, 0.9))(training)
    return training


def follow(training: Training, keep: float) -> None:
    with torch.no_grad():
        for slow, fast in zip(training.at("target").parameters(), training.at("online").parameters(), strict=True):
            slow.mul_(keep).add_(fast, alpha=1 - keep)


def _reversed_average(training: Training) -> None:
    training.after_step.clear()
    P.after_step(lambda t, n: follow(t, 0.1))(training)


def _same_view(self, one, two):
    p1, p2 = self.predictor(self.online(one)), self.predictor(self.online(two))
    with torch.no_grad():
        t1, t2 = self.target(one), self.target(two)
    return p1, p2, t2, t1


BYOL = model(
    "byol",
    byol,
    {
        "average-reversed": _reversed_average,
        "target-before": lambda t: (t.after_step.clear(), P.after_backward(lambda u, n: follow(u, 0.9))(t)) and None,
        "views-swapped": P.rewritten("", _same_view),
        "target-eval": lambda t: t.at("target").eval() and None,
        "predictor-rate": lambda t: setattr(
            t,
            "optimize",
            lambda m: torch.optim.SGD(
                [{"params": m.online.parameters()}, {"params": m.predictor.parameters(), "lr": 0.5}],
                lr=0.05,
                momentum=0.9,
            ),
        ),
        "lerp": lambda t: (t.after_step.clear(), P.after_step(lambda u, n: _lerp(u))(t)) and None,
        "norm-by-hand": P.rewritten(
            "predictor.norm",
            lambda self, x: F.batch_norm(
                x.double(),
                self.running_mean.double(),
                self.running_var.double(),
                self.weight.double(),
                self.bias.double(),
                True,
                self.momentum,
                self.eps,
            ).to(x),
        ),
        "both-views-at-once": P.optimizer(
            lambda m: torch.optim.SGD(
                [p for p in m.parameters() if p.requires_grad], lr=0.05, momentum=0.9, foreach=False
            )
        ),
    },
)


def _lerp(training: Training) -> None:
    with torch.no_grad():
        slow = [*training.at("target").parameters()]
        torch._foreach_lerp_(slow, [*training.at("online").parameters()], 0.1)


# Frozen multi-query transformer with low-rank adapters.


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank correction."""

    def __init__(self, size: int, out: int, rank: int = 3, alpha: float = 6.0):
        super().__init__()
        self.base = nn.Linear(size, out).requires_grad_(False)
        self.down, self.up = nn.Linear(size, rank, bias=False), nn.Linear(rank, out, bias=False)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


class LoraBlock(nn.Module):
    """Post-norm attention block (multi-query) with adapters on queries and values."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.value = Adapted(size, size), Adapted(size, size // heads)
        self.key, self.out = (
            nn.Linear(size, size // heads).requires_grad_(False),
            nn.Linear(size, size).requires_grad_(False),
        )
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.ff = nn.Sequential(nn.Linear(size, 2 * size), nn.Mish(), nn.Linear(2 * size, size)).requires_grad_(False)

    def forward(self, x):
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.key(x)[:, None], self.value(x)[:, None]
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, torch.finfo(scores.dtype).min).softmax(-1) @ v
        x = self.norm1(x + self.out(mixed.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.ff(x))


class Lora(nn.Module):
    """A frozen language model with adapters."""

    def __init__(self, words: int = 36, size: int = 32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, size), nn.Embedding(16, size)
        self.blocks = nn.ModuleList(LoraBlock(size, 4) for _ in range(2))
        self.head = nn.Linear(size, words, bias=False)
        for part in (self.words, self.places, self.head):
            part.requires_grad_(False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def lora() -> Training:
    def make(g):
        seen = ids(g, 4, 12, below=36)
        return {"tokens": seen, "labels": seen}

    return Training(lively(Lora()), give("tokens"), next_token_loss, batches(make, "lora"))


def _places_from_one(self, tokens):
    x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]) + 1)
    for block in self.blocks:
        x = block(x)
    return self.head(x)


def _base_trained(training: Training) -> None:
    training.at("blocks.1.query.base").requires_grad_(True)


LORA = model(
    "lora-multi-query",
    lora,
    {
        "scale": P.setting(HERE, scale=6.0),
        "adapter-of-frozen": P.rewritten(
            HERE, lambda self, x: self.base(x) + self.scale * self.up(self.down(x).detach())
        ),
        "base-trained": _base_trained,
        "places-from-one": P.rewritten("", _places_from_one),
        "mish": P.rewritten(HERE, lambda self, x: F.silu(x)),
        "norm-decays": P.decaying(lambda n, p: p.dim() >= 2),
        "up-not-zero": P.values(HERE, "weight", lambda w: w.flip(1)),
        "merged": P.rewritten(
            "blocks.0.query",
            lambda self, x: F.linear(
                x, self.base.weight + self.scale * self.up.weight @ self.down.weight, self.base.bias
            ),
        ),
        "sdpa": P.rewritten("blocks.1", lambda self, x: _sdpa(self, x)),
        "norms-in-own-group": P.optimizer(lambda m: _same_groups(m)),
    },
)


def _same_groups(model):
    norms = [p for n, p in model.named_parameters() if p.requires_grad and "norm" in n]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and "norm" not in n]
    return torch.optim.AdamW([{"params": rest}, {"params": norms}], lr=1e-3, weight_decay=0.05)


def _sdpa(self, x):
    q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
    k, v = self.key(x)[:, None].expand(-1, self.heads, -1, -1), self.value(x)[:, None].expand(-1, self.heads, -1, -1)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = self.norm1(x + self.out(mixed.transpose(1, 2).flatten(2)))
    return self.norm2(x + self.ff(x))


# A student learns from a teacher, RAdam.


class Distilled(nn.Module):
    """A teacher that does not train and a student that does."""

    def __init__(self, seen: int = 10, classes: int = 6):
        super().__init__()
        self.teacher = nn.Sequential(
            nn.Linear(seen, 48), nn.LeakyReLU(0.1), nn.Linear(48, 48), nn.LeakyReLU(0.1), nn.Linear(48, classes)
        )
        self.student = nn.Sequential(nn.Linear(seen, 16), nn.SELU(), nn.Linear(16, classes))
        self.adapt = nn.Linear(16, 48)
        self.teacher.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            known = self.teacher[:4](x)
            wanted = self.teacher[4](known)
        inner = self.student[:2](x)
        return self.student[2](inner), wanted, self.adapt(inner), known


def kd_loss(temperature=3.0, squared_back=True, hints=0.1, reverse=False):
    def loss(output, batch):
        logits, wanted, inner, known = (x.float() for x in output)
        p, q = (logits / temperature).log_softmax(-1), (wanted / temperature).log_softmax(-1)
        soft = (
            F.kl_div(q, p, log_target=True, reduction="batchmean")
            if reverse
            else F.kl_div(p, q, log_target=True, reduction="batchmean")
        )
        soft = soft * temperature**2 if squared_back else soft
        return F.cross_entropy(logits, batch["labels"]) + 0.7 * soft + hints * F.mse_loss(inner, known)

    return loss


def distilled() -> Training:
    data = batches(lambda g: {"x": normal(g, 12, 10), "labels": ids(g, 12, below=6)}, "distilled")
    return Training(
        lively(Distilled()),
        give("x"),
        kd_loss(),
        data,
        optimize=lambda m: torch.optim.RAdam([p for p in m.parameters() if p.requires_grad], lr=2e-3),
    )


DISTILLED = model(
    "distillation",
    distilled,
    {
        "temperature": P.criterion(kd_loss(squared_back=False)),
        "kl-reversed": P.criterion(kd_loss(reverse=True)),
        "batchmean": P.criterion(lambda o, b: _elementwise(o, b)),
        "teacher-weights": P.values(HERE, "weight", lambda w: w.roll(1, 0)),
        "selu": P.rewritten(HERE, lambda self, x: F.elu(x)),
        "accumulated": Sides(lambda t: setattr(t, "backward", lambda loss: (loss * 2).backward()), both=P.in_two),
        "temperature-order": P.criterion(lambda o, b: _by_softmax(o, b)),
        "radam-loop": P.optimizer(
            lambda m: torch.optim.RAdam([p for p in m.parameters() if p.requires_grad], lr=2e-3, foreach=False)
        ),
    },
)


def _elementwise(output, batch):
    logits, wanted, inner, known = (x.float() for x in output)
    soft = (
        F.kl_div((logits / 3).log_softmax(-1), (wanted / 3).log_softmax(-1), log_target=True, reduction="none").mean()
        * 9
    )
    return F.cross_entropy(logits, batch["labels"]) + 0.7 * soft + 0.1 * F.mse_loss(inner, known)


def _by_softmax(output, batch):
    logits, wanted, inner, known = (x.float() for x in output)
    p, q = (logits / 3).softmax(-1), (wanted / 3).softmax(-1)
    soft = (q * (q.log() - p.log())).sum(-1).mean() * 9
    return F.cross_entropy(logits, batch["labels"]) + 0.7 * soft + 0.1 * F.mse_loss(inner, known)


# Top-2 experts with packed weights and a balancing loss.


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


SPARSE = model(
    "packed-experts",
    sparse,
    {
        "not-renormalised": P.rewritten(HERE, _not_renormalised),
        "top-one": P.setting(HERE, top=1),
        "gate-detached": P.rewritten(HERE, _weights_detached),
        "experts-swapped": P.values(HERE, "down", lambda w: w[[1, 0, 2, 3]]),
        "balance-weight": P.criterion(experts_loss(0.01)),
        "experts-gradient": P.parameter_gradient(HERE, "up", lambda g: g * torch.tensor([1.0, 1, 1, 0])[:, None, None]),
        "bias-correction": P.optimizer(lambda m: _uncorrected(m)),
        "dispatched": P.rewritten("layers.0", lambda self, x: _dispatched(self, x)),
        "two-threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
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


# NT-Xent with a learned temperature, AMSGrad.


class Contrast(nn.Module):
    """Two views through one encoder, projected and normalised; a learned temperature."""

    def __init__(self, size: int = 16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(14, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, size))
        self.project = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 8))
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, one, two):
        z = F.normalize(self.project(self.encoder(torch.cat([one, two]))), dim=-1)
        return z @ z.T * self.temperature.exp()


def contrast_loss(diagonal=True):
    def loss(output, batch):
        number = len(output) // 2
        scores = output.float()
        if diagonal:
            scores = scores.masked_fill(torch.eye(2 * number, dtype=torch.bool), -torch.inf)
        return F.cross_entropy(scores, torch.arange(2 * number).roll(number))

    return loss


def contrast() -> Training:
    data = batches(lambda g: {"one": normal(g, 8, 14), "two": normal(g, 8, 14)}, "contrast")
    model = lively(Contrast())
    return Training(
        model,
        give("one", "two"),
        contrast_loss(),
        data,
        optimize=lambda m: torch.optim.Adam(m.parameters(), lr=2e-3, amsgrad=True),
        clip=1.0,
    )


CONTRAST = model(
    "simclr",
    contrast,
    {
        "itself-counts": P.criterion(contrast_loss(False)),
        "not-normalised": P.rewritten("", lambda self, a, b: _unnormalised(self, a, b)),
        "views-apart": P.rewritten("", lambda self, a, b: _views_apart(self, a, b)),
        "rate": P.groups(lr=2.02e-3),
        "temperature-frozen": lambda t: t.model.temperature.requires_grad_(False) and None,
        "einsum": P.rewritten("", lambda self, a, b: _einsum(self, a, b)),
        "loss-by-logsumexp": P.criterion(lambda o, b: _logsumexp(o)),
    },
)


def _unnormalised(self, one, two):
    z = self.project(self.encoder(torch.cat([one, two])))
    return z @ z.T * self.temperature.exp()


def _views_apart(self, one, two):
    z = F.normalize(torch.cat([self.project(self.encoder(one)), self.project(self.encoder(two))]), dim=-1)
    return z @ z.T * self.temperature.exp()


def _einsum(self, one, two):
    z = F.normalize(self.project(self.encoder(torch.cat([one, two]))), dim=-1)
    return torch.einsum("id,jd->ij", z * self.temperature.exp(), z)


def _logsumexp(output):
    number, scores = len(output) // 2, output.float()
    rest = scores.masked_fill(torch.eye(2 * number, dtype=torch.bool), -torch.inf).logsumexp(1)
    return (rest - scores[torch.arange(2 * number), torch.arange(2 * number).roll(number)]).mean()


MODELS = (BYOL, LORA, DISTILLED, SPARSE, CONTRAST)
