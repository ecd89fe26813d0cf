"""Trainings in which something is written in place: activations, residuals, views, parameters, storages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.trainings.over_ranks import loop
from benchmarks.trainings.situation import WIDTH, Net, Situation, Watch, batch, net


class Written(Net):
    """Its blocks are run by a function that writes in place."""

    def __init__(self, how: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self._how = how

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = self._how(block, x)
        return self.last(x)


def adds(block: Any, x: Tensor) -> Tensor:
    y = block.down(block.act(block.up(block.norm(x))))
    y += x
    return y


def adds_to_input(block: Any, x: Tensor) -> Tensor:
    y = block.down(block.act(block.up(block.norm(x.clone()))))
    x += y
    return x


def activates(block: Any, x: Tensor) -> Tensor:
    return x + block.down(nn.functional.relu_(block.up(block.norm(x))))


def activates_output(block: Any, x: Tensor) -> Tensor:
    y = block.up(block.norm(x))
    y.mul_(2).relu_()
    return x + block.down(y)


def writes_view(block: Any, x: Tensor) -> Tensor:
    y = block.up(block.norm(x)).clone()
    y[:, :3] *= 2
    y.view(-1)[::5].zero_()
    return x + block.down(y)


def writes_output_view(block: Any, x: Tensor) -> Tensor:
    y = block.down(block.act(block.up(block.norm(x))))
    y.t()[1:3] = 0
    return x + y


def writes_into(block: Any, x: Tensor) -> Tensor:
    y = block(x)
    with torch.no_grad():
        torch.add(y.detach(), 1, out=torch.empty_like(y))
        block.up.bias.mul_(0.999)
    return y


def swaps_data(block: Any, x: Tensor) -> Tensor:
    block.down.weight.data = block.down.weight.data.clone()
    return block(x)


def sets(block: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        block.down.weight.set_(block.down.weight.detach().clone())
    return block(x)


def resizes(block: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        kept, storage = block.norm.bias.detach().clone(), block.norm.bias.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size)
        block.norm.bias.copy_(kept)
    return block(x)


HOW: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "output += input": adds, "input += output": adds_to_input, "relu_ between modules": activates, "mul_().relu_() on an output": activates_output,
    "views of a clone": writes_view, "views of an output": writes_output_view, "out= and a parameter in forward": writes_into,
    "parameter.data = in forward": swaps_data, "set_ on a parameter in forward": sets, "a parameter's storage is resized": resizes,
}  # fmt: skip


def forward(watch: Watch, how: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model = Written(how)
    if watch.faulty:
        model.blocks[1].norm.eps = 0.5
    loop(watch, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


def modules(watch: Watch) -> None:
    """Activations and dropout in place."""
    model = net(watch)
    for block in model.blocks:
        block.act = nn.Sequential(nn.Dropout(0.1, inplace=True), nn.ReLU(inplace=True))
    loop(watch, model, torch.optim.SGD(model.parameters(), lr=0.05))


def optimizer(watch: Watch, kind: str, **options: Any) -> None:
    model = net(watch)
    made = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **options)
    loop(watch, model, made)


def exchanged(watch: Watch) -> None:
    """Weights are put elsewhere between steps: into one buffer, swapped with averages."""
    model = net(watch)
    made = torch.optim.SGD(model.parameters(), lr=0.05)
    watch.start(model, made)
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(4):
        loss = model(batch(step)).square().mean()
        loss.backward()
        watch.keep({name: parameter.grad for name, parameter in model.named_parameters()})
        made.step()
        made.zero_grad()
        watch.step(loss.detach())
        with torch.no_grad():
            for average, parameter in zip(averages, model.parameters(), strict=True):
                average.lerp_(parameter, 0.5)
                parameter.data, average.data = average.data, parameter.data
            if step == 1:
                flat = torch.cat([parameter.reshape(-1) for parameter in model.parameters()])
                begin = 0
                for parameter in model.parameters():
                    parameter.data = flat[begin : begin + parameter.numel()].view_as(parameter)
                    begin += parameter.numel()
            if step == 2:
                model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)
                made = torch.optim.SGD(model.parameters(), lr=0.05)
    watch.stop()
    watch.keep_model(model)


def swapped(watch: Watch) -> None:
    """Parameters are swapped by ``torch.utils.swap_tensors`` between steps."""
    model = net(watch)
    made = torch.optim.SGD(model.parameters(), lr=0.05)
    watch.start(model, made)
    for step in range(3):
        loss = model(batch(step)).square().mean()
        loss.backward()
        made.step()
        made.zero_grad(set_to_none=False)
        watch.step(loss.detach())
        model.first.weight.grad = None
        torch.utils.swap_tensors(model.first.weight, nn.Parameter(model.first.weight.detach() * 0.5))
    watch.stop()
    watch.keep_model(model)


def input_is_written(watch: Watch) -> None:
    """The batch is one buffer, filled anew each time."""
    model, buffer = net(watch), torch.empty(4, WIDTH)

    def loss_of(model: nn.Module, index: int) -> Tensor:
        loss = model(buffer.copy_(batch(index))).square().mean()
        return loss

    loop(watch, model, torch.optim.SGD(model.parameters(), lr=0.05), loss_of=loss_of)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True}, "no foreach": {"foreach": False}, "fused": {"fused": True}, "maximize": {"maximize": True},
    "differentiable": {"differentiable": True, "foreach": False},
}  # fmt: skip


def situations() -> Iterator[Situation]:
    """All of them."""
    for name, how in HOW.items():
        yield Situation(f"in place: {name}", functools.partial(forward, how=how))
    yield Situation("in place: activations and dropout", modules)
    for kind in ("SGD", "AdamW"):
        for name, options in OPTIMIZERS.items():
            if name == "differentiable":
                continue
            yield Situation(f"{kind}, {name}", functools.partial(optimizer, kind=kind, **options))
    yield Situation("AdamW, amsgrad", functools.partial(optimizer, kind="AdamW", amsgrad=True))
    yield Situation("NAdam", functools.partial(optimizer, kind="NAdam"))
    yield Situation("RMSprop, centered", functools.partial(optimizer, kind="RMSprop", centered=True))
    yield Situation("Adafactor", functools.partial(optimizer, kind="Adafactor"))
    yield Situation("storages exchanged between steps", exchanged)
    yield Situation("swap_tensors between steps", swapped)
    yield Situation("the batch is one buffer", input_is_written)
