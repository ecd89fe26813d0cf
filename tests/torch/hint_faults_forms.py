"""Errors of every form, and weights that are not where they should be."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.torch.hint_runs import (
    HEADS,
    POSITIONS,
    SAMPLES,
    WIDTH,
    Fault,
    Net,
    Of,
    Run,
    both,
    ids,
    linear,
    mask,
    of,
    weight,
    with_forward,
)

# The form of an error


def same(self: nn.Module, x: Tensor) -> Tensor:
    return x * 1.5


def form(hint: str, change: Callable[[Tensor], Tensor], says: str = "", tasks: tuple[str, ...] = ("tensor",)) -> Fault:
    """Return a module whose output is changed in B."""
    return both(hint, same, lambda s, x: change(x * 1.5), says, tasks)


def forms() -> Iterator[tuple[str, Fault]]:
    everywhere = ("tensor", "statistics")
    yield "twice", form("doubled or halved", lambda y: y * 2, "B is 2 times A", everywhere)
    yield "half", form("doubled or halved", lambda y: y / 2, "B is 0.5 times A", everywhere)
    yield "negative", form("sign", lambda y: -y, "B is −A", everywhere)
    yield "times √width", form("known factor", lambda y: y * math.sqrt(WIDTH), "√16, the root of the width", everywhere)
    yield "times 1/0.9", form("known factor", lambda y: y / 0.9, "1/(1 − 0.1)", everywhere)
    yield (
        "times 1.3",
        form("uniform scale", lambda y: y * 1.3, "B is 1.3 times A, a uniform scale of the value", everywhere),
    )
    yield "plus 0.5", form("constant shift", lambda y: y + 0.5, "B is A + 0.5", everywhere)
    vector = torch.linspace(-1, 2, WIDTH) ** 3
    yield "plus a vector", form("same vector in every row", lambda y: y + vector)
    yield (
        "bias twice",
        both(
            "bias", lambda s, x: x * 2 + s.bias, lambda s, x: x * 2 + 2 * s.bias, "B adds the bias twice", bias=weight
        ),
    )
    yield (
        "bias lacking",
        both("bias", lambda s, x: x * 2 + s.bias, lambda s, x: x * 2 + 0 * s.bias, "B lacks the bias", bias=weight),
    )
    yield "scale of columns", form("scale of columns", lambda y: y * (1 + vector))
    yield (
        "scale of rows",
        form(
            "scale of rows",
            lambda y: y * (1 + torch.linspace(0.1, 1, SAMPLES * POSITIONS).reshape(SAMPLES, POSITIONS, 1)),
        ),
    )
    yield "dropout", form("dropout", drop(0.1), "zero in B alone", everywhere)
    yield (
        "dropout on both",
        both(
            "dropout",
            lambda s, x: drop(0.2, 1)(x),
            lambda s, x: drop(0.2, 2)(x),
            "other elements are zero on each side",
        ),
    )
    yield "clamp", form("cut off", lambda y: y.clamp(-1, 1.2), "B cuts values off at")
    yield (
        "rounded to bfloat16",
        form("rounded", lambda y: y + (y.bfloat16().float() - y).detach(), "rounded to bfloat16"),
    )
    yield "rounded to float16", form("rounded", lambda y: y + (y.half().float() - y).detach(), "rounded to float16")
    coarse = Run(of(lambda s, x: (x * 1.5 + 20).bfloat16() - 20), after=lambda net: cast_head(net))
    yield "returned in bfloat16", Fault("dtype", Run(of(same)), coarse, "A is float32, B bfloat16")
    yield (
        "one position on",
        form(
            "shifted position",
            lambda y: torch.cat([y[:, 1:], y[:, :1] * 3], 1),
            "B has at position p what A has at p + 1",
        ),
    )
    yield "columns reversed", form("permuted", lambda y: y.flip(-1), "the last first")
    yield (
        "columns in pairs",
        form(
            "permuted",
            lambda y: y.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2),
            "halves for pairs (rotary layouts)",
        ),
    )
    yield (
        "heads swapped",
        form(
            "permuted",
            lambda y: y.unflatten(-1, (4, -1))[..., [1, 0, 3, 2], :].flatten(-2),
            "its 4 parts of 4 as 1, 0, 3, 2",
        ),
    )
    yield "samples swapped", form("permuted", lambda y: y[[1, 2, 0]], "moved by 1")


def drop(share: float, seed: int = 0) -> Callable[[Tensor], Tensor]:
    kept = torch.rand((SAMPLES, POSITIONS, WIDTH), generator=torch.Generator().manual_seed(seed)) > share
    return lambda y: y * kept / (1 - share)


def cast_head(net: Net) -> None:
    head = net.head
    head.register_forward_pre_hook(lambda module, given: (given[0].float(),))


def noise(seed: int = 5) -> Tensor:
    return torch.randn((SAMPLES, POSITIONS, WIDTH), generator=torch.Generator().manual_seed(seed))


def places() -> Iterator[tuple[str, Fault]]:
    def form(hint: str, where: Any, says: str) -> Fault:
        def change(self: Of, x: Tensor) -> Tensor:
            only = torch.zeros((SAMPLES, POSITIONS, WIDTH))
            only[where] = 1.0
            return x * 1.5 + 0.3 * noise() * only

        return both(hint, lambda s, x: x * 1.5, change, says)

    every = slice(None)
    yield "padding", form("padding", mask() == 0, "all of the error is where attention_mask is 0, in padding")
    yield "last position", form("last position", (every, -1), "only the last of 10 positions differs")
    yield "first position", form("first position", (every, 0), "only the first of 10 positions differs")
    yield "some positions", form("some positions", (every, [2, 5, 6]), "only 3 positions of 10 differ: 2, 5–6")
    yield (
        "from a position on",
        form("from a position on", (every, slice(4, None)), "the positions before 4 agree, all from 4 of 10 on differ"),
    )

    def in_linear(where: Any, says: str) -> Fault:
        def wrong(self: Any, x: Tensor) -> Tensor:
            only = torch.zeros((SAMPLES, POSITIONS, WIDTH))
            only[where] = 1.0
            return F.linear(x, self.weight, self.bias) + 0.3 * noise() * only

        return Fault(
            "positions alone", Run(linear), Run(linear, after=lambda net: with_forward(net.tested, wrong)), says
        )

    yield "some positions of a linear", in_linear((every, [2, 5, 6]), "only 3 positions of 10 differ: 2, 5–6")
    yield "the last position of a linear", in_linear((every, -1), "only 1 position of 10 differs: 9")
    yield (
        "from a position of a linear on",
        in_linear((every, slice(4, None)), "the positions before 4 agree, all from 4 of 10 on differ"),
    )
    yield "one sample", form("some samples", 1, "only 1 sample of the 3 in the batch differs: 1")
    yield "one head", form("some heads", (every, every, slice(8, 12)), "only head 2 of 4 differs (of 4 channels each)")
    yield "one column", form("some columns", (every, every, 5), "only 1 column of 16 differs: 5")
    yield "one element", form("single elements", (1, 4, 7), "only 1 element of 480 differs, the first at [1, 4, 7]")

    def without(index: int) -> Callable[..., Tensor]:
        def looked_up(self: Any, tokens: Tensor) -> Tensor:
            return F.embedding(tokens, self.weight) * (tokens != index)[..., None]

        return looked_up

    fault = Fault(
        "some ids",
        Run(),
        Run(after=lambda net: with_forward(net.embed, without(int(ids()[0, 0])))),
        "all rows of the ids",
    )
    yield "one token", fault


# Weights


def fused() -> nn.Linear:
    return nn.Linear(WIDTH, 3 * WIDTH)


def only(*rows: int) -> Tensor:
    """Return a column that is 1 in some rows and 0 in the others."""
    return torch.zeros(WIDTH, 1).index_fill(0, torch.tensor(rows), 1.0)


def weights() -> Iterator[tuple[str, Fault]]:
    def form(
        hint: str, change: Callable[[Tensor], Tensor], says: str = "", make: Callable[[], nn.Module] = linear
    ) -> Fault:
        return Fault(
            hint, Run(make), Run(make, after=lambda net: net.tested.weight.copy_(change(net.tested.weight))), says
        )

    yield "weight transposed", form("transposed", lambda w: w.T.clone(), "B is the transpose of A")
    yield (
        "weight viewed",
        form("transposed", lambda w: w.T.reshape(w.shape).clone(), "a view instead of a transpose", fused),
    )
    yield (
        "q, k, v in another order",
        form(
            "permuted",
            lambda w: torch.cat([w[WIDTH:], w[:WIDTH]]),
            "the rows of A in another order, moved by 16",
            fused,
        ),
    )
    yield (
        "k before q",
        form(
            "permuted",
            lambda w: w.unflatten(0, (3, -1))[[1, 0, 2]].flatten(0, 1),
            "its 3 parts of 16 as 1, 0, 2",
            fused,
        ),
    )
    yield (
        "interleaved by head",
        form("permuted", lambda w: w.unflatten(0, (3, HEADS, -1)).transpose(0, 1).flatten(0, 2), "parts of 4", fused),
    )
    yield (
        "rotary halves by head",
        form(
            "permuted", lambda w: w.unflatten(0, (HEADS, 2, -1)).transpose(1, 2).flatten(0, 2), "inside each block of 4"
        ),
    )
    yield "weight doubled", form("doubled or halved", lambda w: 2 * w, "B is 2 times A")
    yield "weight scaled", form("weight scale", lambda w: 1.3 * w, "B is 1.3 times A")
    yield "weight drawn anew", form("drawn anew", lambda w: torch.randn(w.shape, generator=torch.Generator().manual_seed(8)) * w.std(), "as if drawn anew",
                                    lambda: nn.Linear(WIDTH, 8 * WIDTH))  # fmt: skip
    yield "weight of ones", form("one number", torch.ones_like, "all elements of B are 1", lambda: nn.LayerNorm(WIDTH))
    yield (
        "weight in bfloat16",
        form("rounded", lambda w: w.bfloat16().float(), "B is the other side's value rounded to bfloat16"),
    )
    yield (
        "rows of a weight",
        form("some rows", lambda w: w + only(3, 9) * noise()[0, 0] * 0.1, "only 2 rows of 16 differ: 3, 9"),
    )
    yield (
        "columns of a weight",
        form("some columns", lambda w: w + only(3).T * noise()[0, :1, :].T * 0.1, "only 1 column of 16 differs: 3"),
    )
    yield (
        "element of a weight",
        form(
            "single elements",
            lambda w: w + only(3) * only(5).T * 0.1,
            "only 1 element of 256 differs, the first at [3, 5]",
        ),
    )


FORMS: dict[str, Fault] = dict(each for family in (forms, places, weights) for each in family())
