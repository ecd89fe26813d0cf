"""Trainings that are compiled, in part or whole, and those that run something again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.trainings.over_ranks import by_adamw, by_sgd, loop
from benchmarks.trainings.situation import WIDTH, Net, Situation, Watch, batch, net

ANYWHERE = r""
"""modules inside what is compiled are not recorded: that the runs differ is all that can be told"""


def whole(watch: Watch, in_place: bool = False, sizes: bool = False, **options: Any) -> None:
    """Compile the model."""
    torch._dynamo.reset()
    model: Any = net(watch)
    if in_place:
        model.compile(**options)
    else:
        model = torch.compile(model, **options)

    def loss_of(model: nn.Module, index: int) -> Tensor:
        x = batch(index, 4 + index if sizes else 4, WIDTH)
        if sizes:
            torch._dynamo.mark_dynamic(x, 0)
        return model(x).square().mean()

    loop(watch, model, by_adamw(model.parameters()), loss_of=loss_of)


def part(watch: Watch, in_place: bool, **options: Any) -> None:
    """Compile one block."""
    torch._dynamo.reset()
    model = net(watch)
    if in_place:
        model.blocks[2].compile(**options)
    else:
        model.blocks[2] = torch.compile(model.blocks[2], **options)
    loop(watch, model, by_sgd(model.parameters()))


def step(watch: Watch, backend: str) -> None:
    """Compile the optimizer's step."""
    torch._dynamo.reset()
    model = net(watch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)
    update = torch.compile(optimizer.step, backend=backend)
    watch.start(model)
    for index in range(4):
        loss = model(batch(index)).square().mean()
        loss.backward()
        update()
        watch.keep({name: parameter.grad for name, parameter in model.named_parameters()})
        optimizer.zero_grad()
        watch.step(loss.detach())
    watch.stop()
    watch.keep_model(model, optimizer)


def function(watch: Watch, backend: str) -> None:
    """Compile forward and loss as one function."""
    torch._dynamo.reset()
    model = net(watch)

    @functools.partial(torch.compile, backend=backend)
    def loss_of(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    loop(watch, model, by_sgd(model.parameters()), loss_of=lambda model, index: loss_of(model, batch(index)))


def autograd(watch: Watch, backend: str, compiles: bool = False) -> None:
    """Compile backward."""
    from torch._dynamo import compiled_autograd

    torch._dynamo.reset()
    model: Any = net(watch)
    if compiles:
        model = torch.compile(model, backend=backend)
    enable = functools.partial(torch.compile, backend=backend)
    watch.start(model)
    optimizer = by_sgd(model.parameters())
    for index in range(3):
        loss = model(batch(index)).square().mean()
        with compiled_autograd._enable(enable):
            loss.backward()
        watch.keep({name: parameter.grad for name, parameter in model.named_parameters()})
        optimizer.step()
        optimizer.zero_grad()
        watch.step(loss.detach())
    watch.stop()
    watch.keep_model(model, optimizer)


class Again(Net):
    """Runs its blocks again in backward."""

    def __init__(self, how: Callable[[nn.ModuleList, Tensor], Tensor]) -> None:
        super().__init__()
        self._how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self._how(self.blocks, self.first(x)))


def again(watch: Watch, how: Callable[[nn.ModuleList, Tensor], Tensor]) -> None:
    model = Again(how)
    if watch.faulty:
        model.blocks[1].norm.eps = 0.5
    loop(watch, model, by_sgd(model.parameters()))


def each_block(blocks: nn.ModuleList, x: Tensor, **options: Any) -> Tensor:
    for block in blocks:
        x = checkpoint(block, x, **options)
    return x


def selective(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    return each_block(blocks, x, use_reentrant=False, context_fn=contexts)


def on_cpu(blocks: nn.ModuleList, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        for block in blocks:
            x = block(x)
    return x


AGAIN: dict[str, Callable[[nn.ModuleList, Tensor], Tensor]] = {
    "checkpoint": functools.partial(each_block, use_reentrant=False),
    "checkpoint, reentrant": functools.partial(each_block, use_reentrant=True),
    "checkpoint, without random state": functools.partial(each_block, use_reentrant=False, preserve_rng_state=False),
    "checkpoint, selective": selective,
    "checkpoint_sequential": lambda blocks, x: checkpoint_sequential(nn.Sequential(*blocks), 2, x, use_reentrant=False),
    "checkpoint_sequential, reentrant": lambda blocks, x: checkpoint_sequential(nn.Sequential(*blocks), 2, x, use_reentrant=True),
    "saved on the CPU": on_cpu,
}  # fmt: skip


def situations() -> Iterator[Situation]:
    """All of them."""
    for backend in ("eager", "aot_eager", "inductor"):
        yield Situation(
            f"torch.compile, {backend}", functools.partial(whole, backend=backend), place=ANYWHERE, is_compiled=True
        )
        yield Situation(
            f"module.compile, {backend}",
            functools.partial(whole, in_place=True, backend=backend),
            place=ANYWHERE,
            is_compiled=True,
        )
        for in_place in (False, True):
            how = "module.compile" if in_place else "torch.compile"
            yield Situation(f"{how} of a block, {backend}", functools.partial(part, in_place=in_place, backend=backend))
        yield Situation(f"torch.compile of the optimizer's step, {backend}", functools.partial(step, backend=backend))
        yield Situation(
            f"torch.compile of forward and loss, {backend}",
            functools.partial(function, backend=backend),
            place=ANYWHERE,
            is_compiled=True,
        )
        yield Situation(f"compiled autograd, {backend}", functools.partial(autograd, backend=backend))
        yield Situation(
            f"compiled autograd and model, {backend}",
            functools.partial(autograd, backend=backend, compiles=True),
            place=ANYWHERE,
            is_compiled=True,
        )
    yield Situation(
        "torch.compile, mark_dynamic",
        functools.partial(whole, sizes=True, backend="aot_eager"),
        place=ANYWHERE,
        is_compiled=True,
    )
    yield Situation(
        "torch.compile, dynamic",
        functools.partial(whole, sizes=True, backend="aot_eager", dynamic=True),
        place=ANYWHERE,
        is_compiled=True,
    )
    yield Situation(
        "torch.compile, reduce-overhead",
        functools.partial(whole, mode="reduce-overhead"),
        place=ANYWHERE,
        is_compiled=True,
    )
    yield Situation(
        "torch.compile, fullgraph",
        functools.partial(whole, backend="aot_eager", fullgraph=True),
        place=ANYWHERE,
        is_compiled=True,
    )
    for name, how in AGAIN.items():
        yield Situation(name, functools.partial(again, how=how))
