"""Faults in what a module computes."""

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
    Of,
    Run,
    both,
    linear,
    named,
    of,
    two,
    weight,
    with_forward,
)

# Normalisations


def norm(
    eps: float = 1e-5, *, mean: bool = True, outside: bool = False, n: int = WIDTH, plus: float = 0.0
) -> Callable[..., Tensor]:
    def computed(self: Of, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True) if mean else x
        square = (x * x).sum(-1, keepdim=True) / n
        below = square.sqrt() + eps if outside else (square + eps).sqrt()
        return x / below * (self.weight + plus)

    return computed


def images(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a module that normalises what it is given as images of WIDTH channels."""
    return named("Images", lambda s, x: s.norm(x.reshape(SAMPLES, WIDTH, -1)).reshape(x.shape), norm=make)


def bn() -> nn.BatchNorm1d:
    return nn.BatchNorm1d(WIDTH)


def norms() -> Iterator[tuple[str, Fault]]:
    for make in (nn.LayerNorm, nn.RMSNorm):
        yield f"eps of {make.__name__}", Fault(
            "eps", Run(lambda make=make: make(WIDTH, eps=1e-6)), Run(lambda make=make: make(WIDTH, eps=1e-5)),
            "A used eps 1.0e-06, B 1.0e-05 (verified from the recorded input, weight and output): look at eps in the settings of this module",
        )  # fmt: skip
    yield "eps of BatchNorm", Fault("eps", Run(images(lambda: nn.BatchNorm1d(WIDTH, eps=1e-5))), Run(images(lambda: nn.BatchNorm1d(WIDTH, eps=1e-3))),
                                    "A used eps 1.0e-05, B 1.0e-03")  # fmt: skip
    yield "eps of GroupNorm", Fault("eps", Run(images(lambda: nn.GroupNorm(4, WIDTH, eps=1e-5))), Run(images(lambda: nn.GroupNorm(4, WIDTH, eps=1e-3))),
                                    "A used eps 1.0e-05, B 1.0e-03")  # fmt: skip
    yield "groups", Fault("norm groups", Run(images(lambda: nn.GroupNorm(4, WIDTH))), Run(images(lambda: nn.GroupNorm(2, WIDTH))),
                          "A normalises in 4 groups, B normalises in 2 groups")  # fmt: skip
    yield "eps outside", two("eps outside the root", "MyNorm", norm(1e-3), norm(1e-3, outside=True),
                             "A adds eps under the root, B adds eps outside the root", weight=weight)  # fmt: skip
    yield (
        "unbiased variance",
        two(
            "unbiased variance",
            "MyNorm",
            norm(),
            norm(n=WIDTH - 1),
            "divided by n, B takes squares divided by n − 1",
            weight=weight,
        ),
    )
    yield (
        "mean",
        two(
            "norm statistics",
            "MyNorm",
            norm(),
            norm(mean=False),
            "A normalises by the mean and variance, B normalises by the mean square",
            weight=weight,
        ),
    )
    yield (
        "1 + weight",
        two(
            "norm weight",
            "MyNorm",
            norm(),
            norm(plus=1.0),
            "A multiplies by weight, B multiplies by 1 + weight",
            weight=weight,
        ),
    )
    yield (
        "no weight",
        two(
            "norm weight",
            "MyNorm",
            norm(),
            lambda s, x: F.layer_norm(x, (WIDTH,)),
            "B multiplies by no weight",
            weight=weight,
        ),
    )
    yield "no bias", two("norm bias", "MyNorm", lambda s, x: F.layer_norm(x, (WIDTH,), s.weight, s.bias), lambda s, x: F.layer_norm(x, (WIDTH,), s.weight),
                         "A adds bias, B adds no bias", weight=weight, bias=weight)  # fmt: skip
    yield "training or evaluation", Fault("norm statistics", Run(images(bn)), Run(images(bn), after=lambda net: net.tested.norm.eval()),
                                          "A normalises by the mean and variance, B normalises by the running mean and variance")  # fmt: skip
    yield "momentum", Fault("running statistics", Run(images(bn)), Run(images(lambda: nn.BatchNorm1d(WIDTH, momentum=0.01))),
                            "A gives the batch's statistics a weight of 0.1, B of 0.01 (momentum)")  # fmt: skip


# Functions


def quick(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def soft(**options: Any) -> Callable[..., Tensor]:
    return lambda self, x: F.softmax(x, **{"dim": -1, **options})


def changed(forward: Callable[..., Tensor]) -> Callable[[], nn.Module]:
    return lambda: with_forward(linear(), forward)


def gated(act: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda self, x: self.down(act(self.gate(x)) * self.up(x))


def fewer_bits(x: Tensor, bits: int) -> Tensor:
    """Return numbers rounded to float32 without some of its last bits."""
    if bits == 16:
        return x + (x.bfloat16().float() - x).detach()
    whole = x.detach().view(torch.int32)
    cut = ((whole + (1 << (bits - 1))) >> bits << bits).view(torch.float32)
    return x + (cut - x.detach())


def functions() -> Iterator[tuple[str, Fault]]:
    part = lambda c: lambda s, x: torch.tanh(s.inner(x)) * 2 + c * x  # noqa: E731
    says = "B − A is 0.1 times what came in"
    yield "a part of the input added", both("multiple of the input", part(1.0), part(1.1), says, inner=linear)
    acts = {"gelu by erf": F.gelu, "gelu by tanh": gelu_tanh, "quick gelu": quick, "silu": F.silu, "relu": F.relu, "squared relu": lambda x: F.relu(x) ** 2,
            "leaky relu with slope 0.01": F.leaky_relu, "mish": F.mish}  # fmt: skip
    for one, other in (("gelu by erf", "gelu by tanh"), ("gelu by erf", "quick gelu"), ("gelu by tanh", "quick gelu"), ("silu", "gelu by erf"), ("relu", "gelu by tanh"),
                       ("relu", "squared relu"), ("relu", "leaky relu with slope 0.01"), ("silu", "mish")):  # fmt: skip
        yield (
            f"{one} / {other}",
            two(
                "activation",
                "Act",
                lambda s, x, f=acts[one]: f(x),
                lambda s, x, f=acts[other]: f(x),
                f"A computes {one}",
            ),
        )
    for name, low in (("gelu by erf", "to -0.17, as gelu or silu does"), ("silu", "to -0.278, as silu does")):
        sides = [Run(named("Act", lambda s, x, f=acts[each]: f(x))) for each in ("relu", name)]
        yield f"relu / {name} by statistics", Fault("activation", *sides, f"B goes down {low}", ("statistics",))
    yield "unknown function", two("activation", "Act", lambda s, x: F.silu(x), lambda s, x: x * torch.sigmoid(1.3 * x),
                                  "A computes silu, B another function of the same elements")  # fmt: skip
    yield (
        "functional activation",
        both(
            "activation",
            gated(F.silu),
            gated(F.gelu),
            "A computes silu, B gelu by erf",
            down=linear,
            gate=linear,
            up=linear,
        ),
    )
    yield (
        "softmax temperature",
        two(
            "softmax",
            "Softmax",
            soft(),
            lambda s, x: F.softmax(x / math.sqrt(WIDTH), -1),
            "B softmax of scores divided by √width",
        ),
    )
    yield (
        "softmax axis",
        two("softmax", "Softmax", soft(), soft(dim=1), "A computes softmax over axis 2, B softmax over axis 1"),
    )
    yield (
        "softmax bits",
        two("softmax", "Softmax", soft(), lambda s, x: F.softmax(x.bfloat16(), -1).float(), "B softmax in bfloat16"),
    )
    yield (
        "softmax1",
        two(
            "softmax",
            "Softmax",
            soft(),
            lambda s, x: x.exp() / (1 + x.exp().sum(-1, keepdim=True)),
            "B softmax with 1 added to the sum",
        ),
    )
    forward = nn.Linear.forward
    yield (
        "weight not transposed",
        Fault(
            "linear",
            Run(changed(forward)),
            Run(changed(lambda s, x: x @ s.weight + s.bias)),
            "B x · W, the weight not transposed",
        ),
    )
    yield (
        "bias left out",
        Fault("linear", Run(changed(forward)), Run(changed(lambda s, x: x @ s.weight.T)), "B x · Wᵀ without the bias"),
    )
    yield "bfloat16 product", Fault("low precision product", Run(changed(forward)),
                                    Run(changed(lambda s, x: fewer_bits(x, 16) @ fewer_bits(s.weight, 16).T + s.bias)), "rounded to bfloat16")  # fmt: skip
    yield "TensorFloat-32 product", Fault("low precision product", Run(changed(forward)),
                                          Run(changed(lambda s, x: fewer_bits(x, 13) @ fewer_bits(s.weight, 13).T + s.bias)), "TensorFloat-32")  # fmt: skip
    yield (
        "no residual",
        both(
            "residual",
            lambda s, x: x + s.inner(x),
            lambda s, x: s.inner(x) + 0,
            "A returns inner + input, B inner alone",
            inner=linear,
        ),
    )
    yield (
        "residual twice",
        both(
            "residual",
            lambda s, x: x + s.inner(x),
            lambda s, x: 2 * x + s.inner(x),
            "B inner + twice the input",
            inner=linear,
        ),
    )


# Attention


def attend(*, causal: bool = True, scale: float | None = None, groups: int = HEADS, tile: bool = False, swap: bool = True,
           turn: float = 0.0, window: int = POSITIONS, cap: float = 0.0) -> Callable[..., Tensor]:  # fmt: skip
    size = WIDTH // HEADS
    ones = torch.ones((POSITIONS, POSITIONS), dtype=torch.bool)
    seen = {"attn_mask": ones.tril() & ones.triu(1 - window)} if window < POSITIONS else {"is_causal": causal}

    def computed(self: Of, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, size)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if turn:
            q, k = rotate(q, turn), rotate(k, turn)
        if groups < HEADS:
            index = (
                torch.arange(groups).repeat(HEADS // groups)
                if tile
                else torch.arange(groups).repeat_interleave(HEADS // groups)
            )
            k, v = k[:, index], v[:, index]
        out = F.scaled_dot_product_attention(q, k, v, scale=scale, **seen)
        if cap:
            scores = cap * torch.tanh(q @ k.mT / math.sqrt(size) / cap)
            out = scores.masked_fill(~ones.tril(), -torch.inf).softmax(-1) @ v
        out = out.transpose(1, 2) if swap else out
        return self.o_proj(out.reshape(x.shape))

    return computed


def rotate(x: Tensor, base: float) -> Tensor:
    angles = torch.arange(POSITIONS)[:, None] * base ** (-torch.arange(x.shape[-1] // 2) / (x.shape[-1] // 2))
    one, other = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], -1)


def layer(how: str = "halves", **options: Any) -> Callable[..., Tensor]:
    """Return an attention that is given the angles of its rotary embeddings."""
    size = WIDTH // HEADS

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if how == "pairs":
            cos, sin = (each[:, : size // 2].repeat_interleave(2, -1) for each in (cos, sin))
            swapped = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
        else:
            one, other = x.chunk(2, -1)
            swapped = torch.cat([-other, one], -1)
        return x if how == "none" else x * cos + swapped * (-sin if how == "backwards" else sin)

    def computed(self: Of, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, size)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(
            turned(q, cos, sin), turned(k, cos, sin), v, **{"is_causal": True, **options}
        )
        return self.o_proj(out.transpose(1, 2).reshape(x.shape))

    return computed


def rotated(attention: Callable[..., Tensor], **members: Any) -> Callable[[], nn.Module]:
    """Return a module that makes the angles and hands them to an attention."""
    turns = torch.arange(POSITIONS)[:, None] * 100.0 ** (-torch.arange(2) / 2)
    table = torch.cat([turns, turns], -1)
    return of(lambda s, x: s.attention(x, table.cos(), table.sin()), attention=named("Attention", attention, **members))


def rotations(parts: dict[str, Any]) -> Iterator[tuple[str, Fault]]:
    for name, hint, there, says in (
        ("not rotated", "rotary embeddings in attention", layer("none"), "B's no rotary embedding"),
        ("rotated in pairs", "rotary embeddings in attention", layer("pairs"), "B's rotary embeddings of pairs"),
        ("rotated backwards", "rotary embeddings in attention", layer("backwards"), "turned backwards"),
        ("rotated, no mask", "causal mask", layer(is_causal=False), "A's attention has a causal mask, B's no mask"),
        ("rotated, another scale", "attention scale", layer(scale=0.45), "B's scores times 0.45, 0.9 times that"),
    ):
        yield name, Fault(hint, Run(rotated(layer(), **parts)), Run(rotated(there, **parts)), says)


def attentions() -> Iterator[tuple[str, Fault]]:
    parts = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), linear)
    yield from rotations(parts)
    grouped = {**parts, **dict.fromkeys(("k_proj", "v_proj"), lambda: nn.Linear(WIDTH, WIDTH // 2))}
    yield (
        "causal mask missing",
        two(
            "causal mask",
            "Attention",
            attend(),
            attend(causal=False),
            "A's attention has a causal mask, B's no mask",
            **parts,
        ),
    )
    yield (
        "attention scale",
        two(
            "attention scale",
            "Attention",
            attend(),
            attend(scale=1 / math.sqrt(WIDTH)),
            "B's scores divided by √width",
            **parts,
        ),
    )
    yield (
        "no attention scale",
        two("attention scale", "Attention", attend(), attend(scale=1.0), "B's scores not divided", **parts),
    )
    yield (
        "groups repeated as a whole",
        two(
            "key and value groups",
            "Attention",
            attend(groups=2),
            attend(groups=2, tile=True),
            "repeated as a whole",
            **grouped,
        ),
    )
    yield (
        "rotated, causal mask missing",
        two(
            "looks ahead",
            "Attention",
            attend(turn=100.0),
            attend(turn=100.0, causal=False),
            "the last position agrees",
            **parts,
        ),
    )
    for name, made in (("LayerNorm", lambda: nn.LayerNorm(WIDTH)), ("Linear", linear)):
        yield f"{name} replaced by Identity", Fault(
            "returns its input", Run(made), Run(made, after=lambda net: setattr(net, "tested", nn.Identity())),
            "B returns its input unchanged, bit for bit, A does not; bias and weight exist on A only (verified from the recorded "
            "input and output): look at whether this module is left out on that side, or replaced by an Identity",
            ("tensor", "statistics"),
        )  # fmt: skip
    for name, turn in (("no window", 0.0), ("rotated, no window", 100.0)):
        yield (
            name,
            two(
                "from a position on",
                "Attention",
                attend(turn=turn, window=4),
                attend(turn=turn),
                "the positions before 4 agree, all from 4 of 10 on differ: look at the attention window (sliding_window)",
                **parts,
            ),
        )
    yield (
        "rotated by another base",
        two(
            "grows with position",
            "Attention",
            attend(turn=1e4, scale=3.0),
            attend(turn=5e5, scale=3.0),
            "no error at the first position",
            **parts,
        ),
    )
    yield (
        "heads not swapped back",
        two("transposed", "Attention", attend(), attend(swap=False), "without swapping them back", **parts),
    )
    yield "rotary base", two("rotary", "RotaryEmbedding", rotary(1e4), rotary(1e6), "base 10000 in A, 1e+06 in B")
    yield (
        "rotary layout",
        two("rotary", "RotaryEmbedding", rotary(1e4), rotary(1e4, pairs=True), "layout halves in A, pairs in B"),
    )
    yield (
        "rotary offset",
        two("rotary", "RotaryEmbedding", rotary(1e4), rotary(1e4, first=1), "first position 0 in A, 1 in B"),
    )
    yield (
        "rotary scaling",
        two("rotary", "RotaryEmbedding", rotary(1e4), rotary(1e4, stretch=4.0), "position scaling 1 in A, 4 in B"),
    )


def rotary(base: float, pairs: bool = False, first: int = 0, stretch: float = 1.0) -> Callable[..., Tensor]:
    return lambda self, x: angles(x, base, pairs, first, stretch)


def angles(x: Tensor, base: float, pairs: bool, first: int, stretch: float) -> Tensor:
    turns = (torch.arange(POSITIONS) + first)[:, None] / stretch * base ** (-torch.arange(WIDTH // 2) / (WIDTH // 2))
    table = turns.repeat_interleave(2, -1) if pairs else torch.cat([turns, turns], -1)
    return table.cos().expand(x.shape) + 0 * x


MODULES: dict[str, Fault] = dict(each for family in (norms, functions, attentions) for each in family())
