"""Small pairs of runs with the answer that is right for each: how they are built, recorded and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.comparing import compare

TASKS = ("tensor", "statistics")
Right = Callable[[Any], bool]


class Net(nn.Module):
    """Parts under names, and the function that runs them."""

    def __init__(self, run: Callable[..., Any], parts: Mapping[str, Any]) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.run(self, *args)


def net(kind: str, run: Callable[..., Any], **parts: Any) -> nn.Module:
    """Make a module of a class of that name."""
    return type(kind, (Net,), {})(run, parts)


def data(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def whole(high: int, *shape: int, low: int = 0, seed: int = 1) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def in_order(a: nn.Module, b: nn.Module) -> None:
    """Give B the parameters of A, one after the other."""
    with torch.no_grad():
        for ours, theirs in zip(a.parameters(), b.parameters(), strict=True):
            theirs.copy_(ours.reshape(theirs.shape))


def renamed(was: Mapping[str, str]) -> Callable[[nn.Module, nn.Module], None]:
    """Give B the parameters of A by name, after replacing these parts of B's names by A's."""

    def copy(a: nn.Module, b: nn.Module) -> None:
        ours, state = a.state_dict(), {}
        for name in b.state_dict():
            old = name
            for new, before in was.items():
                old = old.replace(new, before)
            state[name] = ours[old]
        b.load_state_dict(state)

    return copy


@dataclass(frozen=True)
class Pair:
    """Two runs, and what is right to say of them."""

    name: str
    a: Callable[[], nn.Module]
    b: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int], Tensor]
    right: Right
    """of recorded values, and of statistics where these can tell"""
    statistics: Right | None = None
    loss_b: Callable[[nn.Module, int], Tensor] | None = None
    copy: Callable[[nn.Module, nn.Module], None] = in_order
    mapping: Any = None
    optimizer: Callable[[nn.Module], Any] = sgd
    optimizer_b: Callable[[nn.Module], Any] | None = None
    steps: int = 1
    wrong: Mapping[str, str] = field(default_factory=dict)
    """what is not answered rightly yet, by task, and why"""

    def answer(self, folder: Path, task: str) -> Any:
        torch.manual_seed(0)
        a, b = self.a(), self.b()
        self.copy(a, b)
        record(a, self.loss, folder / "a.h5", task, self.steps, self.optimizer)
        record(b, self.loss_b or self.loss, folder / "b.h5", task, self.steps, self.optimizer_b or self.optimizer)
        return compare(folder / "a.h5", folder / "b.h5", mapping=self.mapping)

    def holds(self, answer: Any, task: str) -> bool:
        return (self.statistics if task == "statistics" and self.statistics else self.right)(answer)


def record(
    model: nn.Module,
    loss_of: Callable[[nn.Module, int], Tensor],
    path: Path,
    task: str,
    steps: int,
    optimizer: Callable[[nn.Module], Any],
) -> None:
    update = optimizer(model)
    with probe.capture(model, path, task=task, overwrite=True):
        for step in range(steps):
            loss = loss_of(model, step)
            loss.backward()
            update.step()
            update.zero_grad()
            probe.step(loss=loss)


def said(answer: Any) -> str:
    found = answer.first_divergence
    if found is None:
        return answer.verdict.value
    return f"{answer.verdict.value} at {found.a[0].path or '(the whole model)'}, step {found.step}, {found.phase.label}"


def at(*paths: str, phase: str | tuple[str, ...] = (), step: int | None = None) -> Right:
    """Diverged, first at one of these modules of A."""
    phases = (phase,) if isinstance(phase, str) else phase

    def holds(answer: Any) -> bool:
        found = answer.first_divergence
        if answer.verdict.value != "diverged" or found is None:
            return False
        place = found.a[0].path in paths and (not phases or found.phase.label in phases)
        return place and step in (None, found.step)

    return holds


def aligned(answer: Any) -> bool:
    return answer.verdict.value == "aligned"


def not_aligned(answer: Any) -> bool:
    return answer.verdict.value != "aligned"


def not_diverged(answer: Any) -> bool:
    return answer.verdict.value != "diverged"


def undecided_or(right: Right) -> Right:
    return lambda answer: answer.verdict.value == "undecided" or right(answer)


def names_mapping(answer: Any) -> bool:
    """What comes first speaks of the mapping."""
    return not_aligned(answer) and "mapping" in "\n".join(str(answer).splitlines()[:12])


def cases(pairs: list[Pair]) -> list[Any]:
    """Make rows for ``parametrize``: each pair from values and from statistics."""
    return [
        pytest.param(
            pair,
            task,
            id=f"{pair.name}-{task}",
            marks=[pytest.mark.xfail(strict=True, reason=pair.wrong[task])] if task in pair.wrong else [],
        )
        for pair in pairs
        for task in TASKS
    ]
