"""Physics-informed network with sine layers, second derivatives in the loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal, threads, uniform


class Sine(nn.Module):
    """A linear layer under sin(w0 x)."""

    def __init__(self, inputs: int, outputs: int, w0: float):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.w0 = w0

    def forward(self, x):
        return torch.sin(self.w0 * self.linear(x))


class Pinn(nn.Module):
    """u(t, x) of Burgers' equation; gives u and the residual u_t + u u_x - nu u_xx."""

    def __init__(self, width: int = 20, viscosity: float = 0.05):
        super().__init__()
        self.net = nn.Sequential(
            Sine(2, width, 3.0), Sine(width, width, 1.0), Sine(width, width, 1.0), nn.Linear(width, 1)
        )
        self.viscosity = viscosity

    def forward(self, points):
        points = points.detach().requires_grad_()
        u = self.net(points)
        slope = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        u_t, u_x = slope[:, :1], slope[:, 1:]
        u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, 1:]
        return u, u_t + u * u_x - self.viscosity * u_xx


def pinn() -> Training:
    data = batches(lambda g: {"points": uniform(g, 24, 2) * 2 - 1, "target": normal(g, 24, 1)}, "pinn")
    return Training(
        lively(Pinn()),
        give("points"),
        pinn_loss(1.0),
        data,
        optimize=lambda m: torch.optim.Adam(m.parameters(), lr=1e-3),
    )


def pinn_loss(weight):
    def loss(output, batch):
        u, residual = output
        return F.mse_loss(u[:8], batch["target"][:8]) + weight * residual[8:].square().mean()

    return loss


def _first_order(self, points):
    points = points.detach().requires_grad_()
    u = self.net(points)
    slope = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
    u_t, u_x = slope[:, :1], slope[:, 1:]
    u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, :1]
    return u, u_t + u * u_x - self.viscosity * u_xx


def _no_graph(self, points):
    points = points.detach().requires_grad_()
    u = self.net(points)
    slope = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
    u_t, u_x = slope[:, :1], slope[:, 1:]
    u_xx = torch.autograd.grad(u_x.sum(), points, retain_graph=True)[0][:, 1:]
    return u, u_t + u * u_x - self.viscosity * u_xx


PINN = Model(
    "burgers-pinn",
    pinn,
    "physics-informed network with sine layers, second derivatives in the loss",
    (
        Fault("u-tx", "axis", P.rewritten("", _first_order), "", ("forward",), "u_xt for u_xx"),
        Fault(
            "no-graph",
            "detach",
            P.rewritten("", _no_graph),
            "",
            ("backward", "gradient"),
            "the second derivative is not differentiated",
            also=("net", "net.*"),
        ),
        Fault("viscosity", "constant", P.setting("", viscosity=0.0502), "", ("forward",), "viscosity 0.0502 for 0.05"),
        Fault("w0", "scale", P.setting("net.1", w0=1.02), "net.1", ("forward",), "w0 1.02 for 1", also=("net",)),
        Fault("weight", "loss-scale", P.criterion(pinn_loss(0.1)), "", ("loss",), "the residual weighs 0.1"),
        Fault("eps", "adam-eps", P.groups(eps=1e-6), "", ("update",), "Adam's eps 1e-6 for 1e-8", steps=2),
    ),
    (
        Clean(
            "sine-order",
            "w0 multiplied into the weight",
            P.rewritten(
                "net.2",
                lambda self, x: torch.sin(F.linear(x, self.w0 * self.linear.weight, self.w0 * self.linear.bias)),
            ),
        ),
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2))),
    ),
)
