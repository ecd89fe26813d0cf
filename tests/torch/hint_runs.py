"""Faults of every sort that a hint is for, each planted into one module of a small model in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe
from probe.answer.comparison import Comparison

SAMPLES, POSITIONS, WIDTH, HEADS, VOCABULARY = 3, 10, 16, 4, 23
PADDING = 3
"""positions at the end of the last sample that the mask leaves out"""


class Of(nn.Module):
    """A module that computes a function of what it is given, and of itself."""

    def __init__(self, function: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        for name, member in members.items():
            setattr(self, name, member)
        self.function = function

    def forward(self, *given: Tensor) -> Any:
        return self.function(self, *given)


class Net(nn.Module):
    """ids → embedding → linear layer → the module that is tested → logits."""

    def __init__(self, tested: nn.Module, spread: float = 1.0) -> None:
        super().__init__()
        self.config = {"num_attention_heads": HEADS, "hidden_size": WIDTH}
        self.embed = nn.Embedding(VOCABULARY + 1, WIDTH)
        self.before = nn.Linear(WIDTH, WIDTH)
        self.tested = tested
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.spread = spread

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
        x = self.before(self.embed(ids))
        x = x * torch.linspace(self.spread, 2.0, POSITIONS)[None, :, None]
        y = self.tested(x)
        y = y[0] if isinstance(y, tuple) else y
        logits = self.head(y.reshape(SAMPLES, POSITIONS, -1)[..., :WIDTH])
        return logits if labels is None else {"loss": entropy(logits, labels), "logits": logits}


Step = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor], Tensor | None]


def ids() -> Tensor:
    """Return tokens, of which none is 0 but the padding."""
    drawn = torch.randint(1, VOCABULARY, (SAMPLES, POSITIONS), generator=torch.Generator().manual_seed(3))
    drawn[-1, -PADDING:] = 0
    return drawn


def mask() -> Tensor:
    """Return 1 where a token counts."""
    return (ids() != 0).long()


def entropy(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1), **options)


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, seen: Tensor) -> Tensor:
    """Make a training step."""
    loss = entropy(model(tokens, attention_mask=seen), tokens)
    loss.backward()
    optimizer.step()
    return loss


def stepping(
    loss_of: Callable[[Tensor, Tensor], Tensor] = entropy,
    between: Callable[[nn.Module], object] = lambda model: None,
) -> Step:
    """Return a training step with another loss, or with something between backward and the optimizer."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, seen: Tensor) -> Tensor:
        loss = loss_of(model(tokens, attention_mask=seen), tokens)
        loss.backward()
        between(model)
        optimizer.step()
        return loss

    return step


@dataclass
class Run:
    """How one side is made and trained."""

    tested: Callable[[], nn.Module] = lambda: nn.Identity()
    after: Callable[[Net], object] = lambda net: None
    """a change of the model's weights or modules"""
    step: Step = plain
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    spread: float = 0.2

    def record(self, path: Path, task: str) -> Path:
        """Make one training step."""
        torch.manual_seed(1)
        net = Net(self.tested(), self.spread)
        with torch.no_grad():
            for parameter in net.tested.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
            self.after(net)
        optimizer = self.optimizer(net.parameters())
        with probe.capture(net, path, task=task):
            probe.step(loss=self.step(net, optimizer, ids(), mask()))
        return path


@dataclass
class Fault:
    """Two sides that differ in one thing, and the hint that is to be given first."""

    hint: str
    a: Run
    b: Run
    says: str = ""
    """what the hint's text has in it"""
    tasks: tuple[str, ...] = field(default=("tensor",))

    def compare(self, folder: Path, task: str = "tensor") -> Comparison:
        """Record and compare both sides."""
        return probe.compare(self.a.record(folder / f"a-{task}.h5", task), self.b.record(folder / f"b-{task}.h5", task))


def of(function: Callable[..., Any], **members: Callable[[], Any]) -> Callable[[], nn.Module]:
    return lambda: Of(function, **{name: make() for name, make in members.items()})


def both(hint: str, a: Callable[..., Any], b: Callable[..., Any], says: str = "", tasks: tuple[str, ...] = ("tensor",),
         **members: Callable[[], Any]) -> Fault:  # fmt: skip
    """Return two modules of one class that compute something else."""
    return Fault(hint, Run(of(a, **members)), Run(of(b, **members)), says, tasks)


def named(class_name: str, function: Callable[..., Any], **members: Callable[[], Any]) -> Callable[[], nn.Module]:
    made = of(function, **members)

    def make() -> nn.Module:
        found = made()
        found.__class__ = type(class_name, (Of,), {})
        return found

    return make


def two(
    hint: str,
    class_name: str,
    a: Callable[..., Any],
    b: Callable[..., Any],
    says: str = "",
    **members: Callable[[], Any],
) -> Fault:
    return Fault(hint, Run(named(class_name, a, **members)), Run(named(class_name, b, **members)), says)


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(WIDTH))


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def with_forward(module: nn.Module, forward: Callable[..., Any]) -> nn.Module:
    module.__class__ = type(type(module).__name__, (type(module),), {"forward": forward})
    return module
