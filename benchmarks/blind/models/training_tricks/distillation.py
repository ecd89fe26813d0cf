"""A student learns from a teacher, RAdam."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal


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


DISTILLED = Model(
    "distillation",
    distilled,
    "a student learns from a teacher, RAdam",
    (
        Fault(
            "temperature",
            "loss-scale",
            P.criterion(kd_loss(squared_back=False)),
            "",
            ("loss",),
            "the square of the temperature is missing",
        ),
        Fault(
            "kl-reversed", "loss-kind", P.criterion(kd_loss(reverse=True)), "", ("loss",), "the divergence is reversed"
        ),
        Fault(
            "batchmean",
            "reduction",
            P.criterion(lambda o, b: _elementwise(o, b)),
            "",
            ("loss",),
            "the divergence is averaged over classes too",
        ),
        Fault(
            "teacher-weights",
            "permuted-weight",
            P.values("teacher.2", "weight", lambda w: w.roll(1, 0)),
            "teacher.2",
            ("init",),
            "the rows of a teacher's layer are shifted",
            also=("teacher",),
        ),
        Fault(
            "selu",
            "activation",
            P.rewritten("student.1", lambda self, x: F.elu(x)),
            "student.1",
            ("forward",),
            "ELU for SELU",
            also=("student",),
            dtype="float16",
        ),
        Fault(
            "accumulated",
            "accumulate",
            lambda t: setattr(t, "backward", lambda loss: (loss * 2).backward()),
            "",
            ("backward", "gradient", "loss"),
            "micro-batches' losses are not divided",
            changes=P.in_two,
        ),
    ),
    (
        Clean("temperature-order", "softmax and log for log-softmax", P.criterion(lambda o, b: _by_softmax(o, b))),
        Clean(
            "radam-loop",
            "RAdam without foreach",
            P.optimizer(
                lambda m: torch.optim.RAdam([p for p in m.parameters() if p.requires_grad], lr=2e-3, foreach=False)
            ),
            steps=3,
        ),
    ),
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
