"""Networks for differential equations and scenes: PINN, DeepONet, Fourier operator, radiance field, neural ODE."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .. import plant as P
from ..spec import HERE, model
from ..training import Training, batches, give, lively, normal, squared, threads, uniform

# Physics-informed network with sine layers, second derivatives in the loss.


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


PINN = model(
    "burgers-pinn",
    pinn,
    {
        "u-tx": P.rewritten("", _first_order),
        "no-graph": P.rewritten("", _no_graph),
        "viscosity": P.setting("", viscosity=0.0502),
        "w0": P.setting(HERE, w0=1.02),
        "weight": P.criterion(pinn_loss(0.1)),
        "eps": P.groups(eps=1e-6),
        "sine-order": P.rewritten(
            "net.2", lambda self, x: torch.sin(F.linear(x, self.w0 * self.linear.weight, self.w0 * self.linear.bias))
        ),
        "two-threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
)


# Operator network, Adadelta.


class DeepOnet(nn.Module):
    """Branch and trunk; the operator's value is their inner product."""

    def __init__(self, sensors: int = 20, width: int = 32, terms: int = 12):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(sensors, width), nn.Tanh(), nn.Linear(width, terms))
        self.trunk = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, terms), nn.Tanh()
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, sensed, points):
        return torch.einsum("bt,pt->bp", self.branch(sensed), self.trunk(points)) + self.bias


def deeponet() -> Training:
    data = batches(
        lambda g: {"sensed": normal(g, 6, 20), "points": uniform(g, 9, 2), "target": normal(g, 6, 9)}, "deeponet"
    )
    return Training(
        lively(DeepOnet()),
        give("sensed", "points"),
        squared,
        data,
        optimize=lambda m: torch.optim.Adadelta(m.parameters(), lr=0.5),
    )


DEEPONET = model(
    "deeponet",
    deeponet,
    {
        "normalised": P.rewritten(
            "", lambda self, s, p: torch.einsum("bt,pt->bp", self.branch(s), self.trunk(p)) / 12 + self.bias
        ),
        "last-tanh": P.exchanged("trunk.5", lambda m: nn.Identity()),
        "loss-huber": P.criterion(lambda o, b: F.smooth_l1_loss(o.float(), b["target"].float())),
        "trunk-frozen": P.around(HERE, lambda f, p: f(p).detach()),
        "rho": P.groups(rho=0.95),
        "bias-missing": P.several(P.values(HERE, "bias", torch.zeros_like)),
        "by-matmul": P.rewritten("", lambda self, s, p: self.branch(s) @ self.trunk(p).T + self.bias),
        "elementwise": P.rewritten(
            "",
            lambda self, s, p: (
                (self.branch(s)[:, None].float() * self.trunk(p).float()).sum(-1).to(s.dtype) + self.bias
            ),
        ),
    },
)


# Fourier neural operator in one dimension.


class Spectrum(nn.Module):
    """Multiplies the lowest Fourier modes by complex weights."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.real = nn.Parameter(torch.randn(width, width, modes) / width)
        self.imaginary = nn.Parameter(torch.randn(width, width, modes) / width)
        self.modes = modes

    def forward(self, x):
        seen = torch.fft.rfft(x)
        kept = torch.einsum("bix,iox->box", seen[..., : self.modes], torch.complex(self.real, self.imaginary))
        return torch.fft.irfft(F.pad(kept, (0, seen.shape[-1] - self.modes)), n=x.shape[-1])


class FourierBlock(nn.Module):
    """Spectral path and pointwise path, added."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.spectrum = Spectrum(width, modes)
        self.point = nn.Conv1d(width, width, 1)
        self.norm = nn.InstanceNorm1d(width, affine=True)

    def forward(self, x):
        return F.gelu(self.norm(self.spectrum(x) + self.point(x)))


class FourierOperator(nn.Module):
    """Lift, Fourier blocks, project."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.lift = nn.Conv1d(2, width, 1)
        self.blocks = nn.ModuleList(FourierBlock(width, m) for m in (6, 6, 5))
        self.project = nn.Sequential(nn.Conv1d(width, 24, 1), nn.GELU(), nn.Conv1d(24, 1, 1))

    def forward(self, x):
        grid = torch.linspace(0, 1, x.shape[-1], device=x.device, dtype=x.dtype).expand(len(x), 1, -1)
        x = self.lift(torch.cat([x, grid], 1))
        for block in self.blocks:
            x = block(x)
        return self.project(x)


def operator() -> Training:
    data = batches(lambda g: {"x": normal(g, 5, 1, 24), "target": normal(g, 5, 1, 24)}, "operator")
    return Training(lively(FourierOperator()), give("x"), relative, data)


def relative(output, batch):
    away = (output.float() - batch["target"]).flatten(1).norm(dim=1)
    return (away / batch["target"].flatten(1).norm(dim=1)).mean()


def _grid_open(self, x):
    grid = (torch.arange(x.shape[-1], dtype=x.dtype) / x.shape[-1]).expand(len(x), 1, -1)
    x = self.lift(torch.cat([x, grid], 1))
    for block in self.blocks:
        x = block(x)
    return self.project(x)


def _transposed_modes(self, x):
    seen = torch.fft.rfft(x)
    kept = torch.einsum("bix,oix->box", seen[..., : self.modes], torch.complex(self.real, self.imaginary))
    return torch.fft.irfft(F.pad(kept, (0, seen.shape[-1] - self.modes)), n=x.shape[-1])


def _orthogonal(self, x):
    seen = torch.fft.rfft(x, norm="ortho")
    kept = torch.einsum("bix,iox->box", seen[..., : self.modes], torch.complex(self.real, self.imaginary))
    return torch.fft.irfft(F.pad(kept, (0, seen.shape[-1] - self.modes)), n=x.shape[-1])


OPERATOR = model(
    "fourier-operator",
    operator,
    {
        "modes": P.rewritten(HERE, lambda self, x: _fewer_modes(self, x)),
        "in-out": P.rewritten(HERE, _transposed_modes),
        "fft-norm": P.rewritten(HERE, _orthogonal),
        "grid": P.rewritten("", _grid_open),
        "squared-loss": P.criterion(lambda o, b: F.mse_loss(o, b["target"])),
        "imaginary-gradient": P.parameter_gradient(HERE, "imaginary", torch.neg),
        "norm-affine": P.frozen(HERE),
        "matrix-dft": P.rewritten("blocks.1.spectrum", lambda self, x: _by_matrix(self, x)),
        "checkpointed": lambda t: _checkpointed(t),
    },
)


def _fewer_modes(self, x):
    seen = torch.fft.rfft(x)
    last = self.modes - 1
    kept = torch.einsum("bix,iox->box", seen[..., :last], torch.complex(self.real, self.imaginary)[..., :last])
    return torch.fft.irfft(F.pad(kept, (0, seen.shape[-1] - last)), n=x.shape[-1])


def _by_matrix(self, x):
    length = x.shape[-1]
    angle = 2 * math.pi * torch.arange(length)[:, None] * torch.arange(self.modes) / length
    low, high = x @ angle.cos().to(x), -(x @ angle.sin().to(x))
    re = torch.einsum("bix,iox->box", low, self.real) - torch.einsum("bix,iox->box", high, self.imaginary)
    im = torch.einsum("bix,iox->box", low, self.imaginary) + torch.einsum("bix,iox->box", high, self.real)
    weight = torch.full((self.modes,), 2.0).index_fill(0, torch.tensor([0]), 1.0) / length
    return (re * weight) @ angle.cos().T.to(x) - (im * weight) @ angle.sin().T.to(x)


def _checkpointed(training: Training) -> None:
    from torch.utils.checkpoint import checkpoint

    for block in training.model.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)


# NeRF with volume rendering, exponential schedule.


class Radiance(nn.Module):
    """A radiance field: positional encoding, skip connection, density and colour, volume rendering."""

    def __init__(self, width: int = 32, octaves: int = 4):
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(octaves))
        seen = 3 + 6 * octaves
        self.early = nn.Sequential(nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.late = nn.Sequential(nn.Linear(width + seen, width), nn.ReLU())
        self.density = nn.Linear(width, 1)
        self.colour = nn.Sequential(nn.Linear(width + 3, 16), nn.ReLU(), nn.Linear(16, 3), nn.Sigmoid())

    def encode(self, x):
        angle = (x[..., None] * self.octaves).flatten(-2)
        return torch.cat([x, angle.sin(), angle.cos()], -1)

    def render(self, density, colour, gaps):
        alpha = 1 - torch.exp(-F.relu(density) * gaps)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * clear)[..., None] * colour).sum(1)

    def forward(self, points, directions, gaps):
        seen = self.encode(points)
        h = self.late(torch.cat([self.early(seen), seen], -1))
        colour = self.colour(torch.cat([h, directions[:, None].expand(-1, h.shape[1], -1)], -1))
        return self.render(self.density(h)[..., 0], colour, gaps)


def radiance() -> Training:
    data = batches(
        lambda g: {
            "points": uniform(g, 6, 8, 3) * 2 - 1,
            "directions": F.normalize(normal(g, 6, 3), dim=-1),
            "gaps": uniform(g, 6, 8) * 0.3,
            "target": uniform(g, 6, 3),
        },
        "radiance",
    )
    return Training(
        lively(Radiance()),
        give("points", "directions", "gaps"),
        squared,
        data,
        schedule=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8),
    )


def _not_exclusive(self, density, colour, gaps):
    alpha = 1 - torch.exp(-F.relu(density) * gaps)
    return ((alpha * torch.cumprod(1 - alpha + 1e-10, 1))[..., None] * colour).sum(1)


def _interleaved(self, x):
    angle = (x[..., None, :] * self.octaves[:, None]).flatten(-2)
    return torch.cat([x, angle.sin(), angle.cos()], -1)


RADIANCE = model(
    "radiance-field",
    radiance,
    {
        "transmittance": P.method("", "render", _not_exclusive),
        "encoding-order": P.method("", "encode", _interleaved),
        "octaves": P.values("", "octaves", lambda o: math.pi * o),
        "decay-rate": P.scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)),
        "next-batch": lambda t: t.batches.insert(0, t.batches.pop(1)),
        "by-logs": P.method("", "render", lambda self, d, c, gaps: _by_logs(self, d, c, gaps)),
        "skip-split": P.rewritten(
            "late.0",
            lambda self, x: (
                F.linear(x[..., :32], self.weight[:, :32]) + F.linear(x[..., 32:], self.weight[:, 32:], self.bias)
            ),
        ),
    },
)


def _by_logs(self, density, colour, gaps):
    thick = F.relu(density) * gaps
    clear = torch.exp(-(thick.cumsum(1) - thick))
    return (((1 - torch.exp(-thick)) * clear)[..., None] * colour).sum(1)


# Classifier with a Runge-Kutta integration of a learned slope.


class Derivative(nn.Module):
    """dx/dt = f(t, x)."""

    def __init__(self, size: int = 6, width: int = 24):
        super().__init__()
        self.first = nn.Linear(size + 1, width)
        self.second = nn.Linear(width, size)

    def forward(self, t, x):
        return self.second(torch.tanh(self.first(torch.cat([x, t.expand(len(x), 1)], 1))))


class NeuralOde(nn.Module):
    """Encoder, a Runge-Kutta integration of fourth order, classifier."""

    def __init__(self, size: int = 6, steps: int = 4):
        super().__init__()
        self.encode = nn.Linear(9, size)
        self.slope = Derivative(size)
        self.classify = nn.Linear(size, 3)
        self.steps = steps

    def forward(self, x):
        x, h = self.encode(x), 1.0 / self.steps
        for number in range(self.steps):
            t = x.new_tensor(number * h)
            k1 = self.slope(t, x)
            k2 = self.slope(t + h / 2, x + h / 2 * k1)
            k3 = self.slope(t + h / 2, x + h / 2 * k2)
            k4 = self.slope(t + h, x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return self.classify(x)


def ode() -> Training:
    data = batches(lambda g: {"x": normal(g, 12, 9), "labels": torch.randint(0, 3, (12,), generator=g)}, "ode")
    return Training(
        lively(NeuralOde()), give("x"), lambda o, b: F.cross_entropy(o.float(), b["labels"]), data, clip=1.0
    )


def _midpoint_twice(self, x):
    x, h = self.encode(x), 1.0 / self.steps
    for number in range(self.steps):
        t = x.new_tensor(number * h)
        k1 = self.slope(t, x)
        k2 = self.slope(t + h / 2, x + h / 2 * k1)
        k3 = self.slope(t + h / 2, x + h / 2 * k2)
        k4 = self.slope(t + h, x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + k3 + 2 * k4)
    return self.classify(x)


def _time_fixed(self, x):
    x, h = self.encode(x), 1.0 / self.steps
    for _ in range(self.steps):
        t = x.new_tensor(0.0)
        k1 = self.slope(t, x)
        k2 = self.slope(t + h / 2, x + h / 2 * k1)
        k3 = self.slope(t + h / 2, x + h / 2 * k2)
        k4 = self.slope(t + h, x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return self.classify(x)


ODE = model(
    "neural-ode",
    ode,
    {
        "weights-of-stages": P.rewritten("", _midpoint_twice),
        "time-fixed": P.rewritten("", _time_fixed),
        "labels-shifted": P.each_batch(lambda b: {**b, "labels": (b["labels"] + 1) % 3}),
        "clip-value": P.several(
            P.clipped(None), P.after_backward(lambda t, n: nn.utils.clip_grad_value_(t.model.parameters(), 0.02))
        ),
        "slope-detached": P.rewritten(
            HERE,
            lambda self, t, x: self.second(torch.tanh(self.first(torch.cat([x.detach(), t.expand(len(x), 1)], 1)))),
        ),
        "other-sum": P.rewritten("", lambda self, x: _other_sum(self, x)),
        "wrapped": lambda t: _wrapped(t),
    },
)


def _other_sum(self, x):
    x, h = self.encode(x), 1.0 / self.steps
    for number in range(self.steps):
        t = x.new_tensor(number * h)
        k1 = self.slope(t, x)
        k2 = self.slope(t + h / 2, x + h / 2 * k1)
        k3 = self.slope(t + h / 2, x + h / 2 * k2)
        k4 = self.slope(t + h, x + h * k3)
        x = ((h / 6) * k4 + (h / 3) * k3 + (h / 3) * k2 + (h / 6) * k1) + x
    return self.classify(x)


class Wrapper(nn.Module):
    """As a framework wraps a model."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def _wrapped(training: Training) -> None:
    training.model = Wrapper(training.model)


MODELS = (PINN, DEEPONET, OPERATOR, RADIANCE, ODE)
