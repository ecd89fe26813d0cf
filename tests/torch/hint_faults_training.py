"""Faults in the loss, the gradients and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe
from tests.torch.hint_runs import SAMPLES, VOCABULARY, Fault, Run, Step, entropy, linear, named, stepping, with_forward

# The loss, gradients, the optimizer


class Scaled(torch.autograd.Function):
    """The same; another gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.change(g), None


def logged(loss_of: Callable[[Tensor, Tensor], Tensor]) -> Step:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, seen: Tensor) -> Tensor:
        labels = torch.where(tokens == 0, -100, tokens)
        probe.log("labels", labels)
        loss = loss_of(model(tokens, attention_mask=seen), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def shifted(logits: Tensor, labels: Tensor) -> Tensor:
    return entropy(logits[:, :-1], labels[:, 1:])


def total(logits: Tensor, labels: Tensor) -> Tensor:
    return F.mse_loss(logits, F.one_hot(labels, VOCABULARY).float(), reduction="sum")


def inside(change: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: with_forward(linear(), lambda s, x: F.linear(Scaled.apply(x, change), s.weight, s.bias))


def act(change: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return named("Act", lambda s, x: torch.tanh(Scaled.apply(x, change)))


def accumulated(*shares: float) -> Step:
    """Return a training step of several micro-batches, whose losses the model returns and the step adds up."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, seen: Tensor) -> Tensor:
        batches = [tokens.roll(k, 0) for k in range(len(shares))]
        losses = [model(each, attention_mask=seen, labels=each.roll(k, 1))["loss"] for k, each in enumerate(batches)]
        loss = sum(share * each for share, each in zip(shares, losses, strict=True))
        (sum(losses) / len(losses)).backward()
        optimizer.step()
        return loss

    return step


def backward(change: Callable[[Tensor], Tensor]) -> Step:
    """Return a training step that begins backward with another gradient."""
    return stepping(lambda x, y: Scaled.apply(entropy(x, y), change))


def clip(norm: float) -> Callable[..., Tensor]:
    return stepping(between=lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), norm))


def sgd(**options: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, **{"lr": 0.1, **options})


def training() -> Iterator[tuple[str, Fault]]:
    def loss(hint: str, a: Callable[..., Tensor], b: Callable[..., Tensor], says: str) -> Fault:
        return Fault(hint, Run(linear, step=logged(a)), Run(linear, step=logged(b)), says)

    yield "labels not shifted", loss("shift of the labels", shifted, entropy, "with the label at the next position")
    yield (
        "labels shifted twice",
        loss(
            "shift of the labels", shifted, lambda x, y: entropy(x[:, :-2], y[:, 2:]), "with the label two positions on"
        ),
    )
    yield (
        "label smoothing",
        loss(
            "label smoothing", entropy, lambda x, y: entropy(x, y, label_smoothing=0.1), "B's with label smoothing 0.1"
        ),
    )
    yield (
        "sum over samples",
        loss(
            "loss reduction",
            entropy,
            lambda x, y: entropy(x, y, reduction="sum") / SAMPLES,
            "as a sum over the samples' number",
        ),
    )
    yield (
        "mean over ignored",
        loss("loss reduction", entropy, lambda x, y: entropy(x, y, reduction="sum") / y.numel(), "ignored ones too"),
    )
    yield (
        "padding counted",
        loss(
            "ignored labels",
            entropy,
            lambda x, y: entropy(x, y.clamp(min=0)),
            "A's loss is a cross entropy without the label -100, B's of all tokens",
        ),
    )
    times = Fault("loss times a count", Run(linear, step=stepping(total)), Run(linear, step=stepping(lambda x, y: total(x, y) / SAMPLES)),
                  "B is 1/3 times A, and 3 is the number of samples: A adds up where B takes the mean")  # fmt: skip
    yield "mean over samples", times

    for name, shares, says in (
        ("a mean of means", (0.6, 0.4), "is their mean on A, neither their mean nor their sum on B"),
        ("not divided by accumulation", (1.0, 1.0), "is their mean on A, their sum on B"),
    ):
        yield name, Fault(
            "losses added up", Run(linear, step=accumulated(0.5, 0.5)), Run(linear, step=accumulated(*shares)),
            "what the model returns as its loss agrees in each of 2 micro-batches, and the number for the step does not; "
            f"what was given for the step {says} (verified from the recorded outputs): look at how the losses",
            ("tensor", "statistics"),
        )  # fmt: skip

    def of_weight(hint: str, change: Callable[[Tensor], Tensor], says: str = "") -> Fault:
        def there() -> nn.Module:
            return with_forward(linear(), lambda s, x: F.linear(x, Scaled.apply(s.weight, change), s.bias))

        return Fault(hint, Run(lambda: with_forward(linear(), nn.Linear.forward)), Run(there), says)

    yield "gradient of a weight", of_weight("linear gradient", lambda g: 1.5 * g, "B's is 1.5 times that")
    yield "gradient of a parameter by a hook", Fault(
        "one gradient", Run(linear), Run(linear, after=lambda net: net.tested.weight.register_hook(lambda g: g * 0.3)),
        "B's gradient of this parameter is 0.3 times A's, while those of others agree", ("statistics",),
    )  # fmt: skip
    yield (
        "gradient of an input",
        Fault("linear gradient", Run(inside(lambda g: g)), Run(inside(lambda g: 0.7 * g)), "B's is 0.7 times that"),
    )
    yield (
        "gradient doubled",
        Fault("gradient doubled or halved", Run(linear), Run(linear, step=backward(lambda g: 2 * g)), "B is 2 times A"),
    )
    yield (
        "gradient scaled",
        Fault("gradient scale", Run(linear), Run(linear, step=backward(lambda g: 1.7 * g)), "B is 1.7 times A"),
    )
    for times in (SAMPLES, 2, 1.7):  # also where it is the number of samples
        yield f"gradient times {times} in one module", Fault(
            "gradient of one module", Run(act(lambda g: g)), Run(act(lambda g, times=times: times * g)),
            f"B's gradient is {times} times A's from here on, while those that ran back before it agree (verified): "
            "look at a factor in this module's backward",
        )  # fmt: skip
    yield "gradient negative", Fault("sign", Run(act(lambda g: g)), Run(act(lambda g: -g)), "B is −A")
    through = named("Act", lambda s, x: x + (torch.tanh(x) - x).detach())
    yield (
        "straight through",
        Fault(
            "gradient passed through",
            Run(named("Act", lambda s, x: torch.tanh(x))),
            Run(through),
            "B passes back the gradient of its output unchanged",
        ),
    )
    yield (
        "gradient rounded",
        Fault("rounded", Run(act(lambda g: g)), Run(act(lambda g: g.bfloat16().float())), "rounded to bfloat16"),
    )
    yield "gradient of the loss per sample", Fault(
        "gradient divided by a count", Run(linear), Run(linear, step=backward(lambda g: g / SAMPLES)),
        "1/3 times A's, and 3 is the number of samples",
    )  # fmt: skip
    yield (
        "clipping",
        Fault(
            "clipping",
            Run(linear),
            Run(linear, step=clip(0.1)),
            "B clips all its gradients together to a norm of 0.1 (from",
            ("tensor", "statistics"),
        ),
    )
    yield (
        "clipping at another norm",
        Fault(
            "clipping",
            Run(linear, step=clip(0.2)),
            Run(linear, step=clip(0.1)),
            "to a norm of 0.1 (from",
            ("tensor", "statistics"),
        ),
    )
    yield "learning rate", Fault("learning rate", Run(linear, optimizer=sgd()), Run(linear, optimizer=sgd(lr=0.3)), "B's update is 3 times A's, and so is its learning rate",
                                 ("tensor", "statistics"))  # fmt: skip
    yield "weight decay", Fault("weight decay", Run(linear, optimizer=sgd()), Run(linear, optimizer=sgd(weight_decay=0.1)), "more weight decay on B",
                                ("tensor", "statistics"))  # fmt: skip


def fed(
    change: Callable[[Tensor], Tensor], masked: Callable[[Tensor], Tensor] = lambda seen: seen
) -> Callable[..., Tensor]:
    """Return a training step that gives the model something else."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, seen: Tensor) -> Tensor:
        loss = entropy(model(change(tokens), attention_mask=masked(seen)), tokens)
        loss.backward()
        optimizer.step()
        return loss

    return step


def inputs() -> Iterator[tuple[str, Fault]]:
    moved = lambda x: torch.cat([x[:, 1:], x[:, :1]], 1)  # noqa: E731
    for name, hint, change, says in (
        ("tokens one on", "shifted position", moved, "B has at position p what A has at p + 1 (verified)"),
        ("samples in another order", "permuted", lambda x: x[[1, 2, 0]], "moved by 1 (verified)"),
        ("ids plus one", "counted from another number", lambda x: x + 1, "B is A + 1 everywhere (verified)"),
        (
            "another padding",
            "one value for another",
            lambda x: torch.where(x == 0, 7, x),
            "0 on A is 7 on B everywhere, and nothing else differs (verified): look at ignore_index and the padding of labels",
        ),
    ):
        yield name, Fault(hint, Run(linear), Run(linear, step=fed(change)), says)
    scaled = [fed(lambda x: x, lambda seen, factor=factor: (seen + 0.5) * factor) for factor in (1.0, 1.01)]
    for task, says in (
        ("tensor", " (verified): look at the scale of this input and its preprocessing"),
        ("statistics", ""),
    ):
        yield f"an input of another scale, {task}", Fault(
            "scale of an input", *(Run(linear, step=step) for step in scaled), f"B is 1.01 times A{says}", (task,),
        )  # fmt: skip


TRAINING: dict[str, Fault] = dict([*training(), *inputs()])
