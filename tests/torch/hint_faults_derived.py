"""Faults in what is derived from something else: documents, tables of frequencies, caps, scaled float8."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from tests.torch import hint_runs as runs
from tests.torch.hint_faults_modules import attend
from tests.torch.hint_runs import Fault, Net, Of, Run, both

FREQUENCIES = 100.0 ** (-torch.arange(runs.WIDTH) / runs.WIDTH)
PLACES = (40 * torch.arange(runs.POSITIONS) + 3).expand(runs.SAMPLES, runs.POSITIONS)


def capped(cap: float) -> Callable[..., Tensor]:
    return lambda self, x: cap * torch.tanh(x / cap)


def visible(*begins: int) -> Tensor:
    """Return what positions see of documents that begin at some positions of each sample."""
    which = torch.bucketize(torch.arange(runs.POSITIONS), torch.tensor(begins), right=True)
    causal = torch.ones(runs.POSITIONS, runs.POSITIONS, dtype=torch.bool).tril()
    return (causal & (which[:, None] == which)).expand(runs.SAMPLES, runs.POSITIONS, runs.POSITIONS)


def packed(*begins: int) -> Run:
    """Return a model that sees documents by its mask."""

    def forward(self: Net, ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.before(self.embed(ids)) * attention_mask.float().mean(-1, keepdim=True))

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, seen: Tensor) -> Tensor:
        loss = runs.entropy(model(tokens, attention_mask=visible(*begins)), tokens)
        loss.backward()
        optimizer.step()
        return loss

    return Run(after=lambda net: runs.with_forward(net, forward), step=step)


def rotary(rounds: Callable[[Tensor], Tensor] = lambda x: x) -> Callable[..., Tensor]:
    """Return a module that multiplies by cosines of positions, which it may round first."""

    def table(self: Of, places: Tensor) -> Tensor:
        return torch.cos(rounds(places.float())[..., None] * self.inv_freq)

    def inner() -> Of:
        of_class = type("RotaryEmbedding", (Of,), {})
        return of_class(table, inv_freq=nn.Buffer(FREQUENCIES.clone()))

    return lambda: Of(lambda self, x: x * self.inner(PLACES), inner=inner())


def to_bfloat16(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def narrow(net: Net) -> None:
    net.tested.inner.inv_freq.copy_(to_bfloat16(FREQUENCIES))


def quantized(clip: float) -> Callable[..., Tensor]:
    """Return a module that hands float8 to another one, scaled so that its range ends at a share of the largest number."""

    def forward(self: Of, x: Tensor) -> Tensor:
        scale = torch.ones(1) if not clip else x.detach().abs().max().reshape(1) / 448 * clip
        held = x.detach() if not clip else (x.detach() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return x + self.inner(held, scale)

    return forward


def faults() -> Iterator[tuple[str, Fault]]:
    yield (
        "cap missing",
        both("soft cap", capped(0.8), lambda _, x: x * 1, "A computes 0.8 · tanh(x / 0.8), B x as it is"),
    )
    yield "another cap", both("soft cap", capped(0.8), capped(1.1), "B 1.1 · tanh(x / 1.1)")
    yield "other documents", Fault("documents", packed(0, 4), packed(0, 7), "at token 0, 4, 10, 14, 20, 24 by A's")
    yield "one document", Fault("documents", packed(0, 4), packed(0), "at 0, 10, 20 by B's attention_mask")
    wide, held = Run(rotary(), spread=1.0), Run(rotary(), narrow, spread=1.0)
    yield "frequencies in bfloat16", Fault("table of frequencies", wide, held, "rounded to bfloat16")
    there = Run(rotary(to_bfloat16), spread=1.0)
    yield "positions in bfloat16", Fault("angles in fewer bits", wide, there, "B rounds positions to bfloat16")
    parts, cap = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), runs.linear), "B's scores capped by 0.3"
    yield "cap of scores", runs.two("cap of scores", "Attention", attend(), attend(cap=0.3), cap, **parts)
    inner = {"inner": lambda: Of(lambda self, held, scale: held.float() * scale)}
    yield "float8", both("float8", quantized(0), quantized(1), "times input 1 is the other side's value", **inner)
    yield "float8 that ends early", both("float8", quantized(0), quantized(0.2), "at the end of its range", **inner)


DERIVED = dict(faults())
