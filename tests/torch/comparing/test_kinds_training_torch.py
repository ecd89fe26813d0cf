"""Kinds of small pairs: what no loss sees, what cancels, mappings with a wrong line, blocks in other parts, experts, 16 bits."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import probe
from tests.torch.kinds import (
    Pair,
    adamw,
    aligned,
    at,
    cases,
    data,
    names_mapping,
    net,
    not_aligned,
    not_diverged,
    renamed,
    said,
    undecided_or,
    whole,
)

# ---- Kinds of small pairs: what no loss sees, what cancels, mappings with a wrong line, blocks in other parts, 16 bits.

PAIRS: list[Pair] = []


def twins(name: str, make, a: tuple, b: tuple, loss, right, statistics=None, **more) -> None:
    PAIRS.append(Pair(name, lambda: make(*a), lambda: make(*b), loss, right, statistics, **more))


def squared(*shape: int):
    return lambda m, _: m(data(*shape)).square().mean()


# ---- what is not used: no gradient on one side, a gradient of zeros on the other -------------------------------


def branches(times_zero: bool) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.main(x)
        return self.head(y + 0.0 * self.side(x) if times_zero else y)

    return net("Branches", run, main=nn.Linear(8, 8), side=nn.Linear(8, 8), head=nn.Linear(8, 4))


def rows(sparse: bool) -> nn.Module:
    def run(self: nn.Module, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(ids)))

    return net("Rows", run, words=nn.Embedding(12, 8, sparse=sparse), head=nn.Linear(8, 4))


def listed(calls_all: bool) -> nn.Module:
    def experts(self: nn.Module, x: Tensor, who: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        for k, each in enumerate(self.each):
            mine = torch.where(who == k)[0]
            if calls_all or len(mine):
                y = y.index_add(0, mine, each(x[mine]))
        return y

    def run(self: nn.Module, x: Tensor, who: Tensor) -> Tensor:
        return self.out(torch.relu(self.inp(x)) + self.experts(self.inp(x), who))

    each = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
    return net("Listed", run, inp=nn.Linear(8, 8), experts=net("Experts", experts, each=each), out=nn.Linear(8, 4))


class Both:
    """Adam for the rows that were seen, and for all else."""

    def __init__(self, model: nn.Module) -> None:
        self.rows = torch.optim.SparseAdam([model.words.weight], lr=1e-2)
        self.rest = torch.optim.Adam(model.head.parameters(), lr=1e-2)

    def step(self) -> None:
        self.rows.step()
        self.rest.step()

    def zero_grad(self) -> None:
        self.rows.zero_grad()
        self.rest.zero_grad()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def halves(m: nn.Module, step: int) -> Tensor:
    return m(whole(6, 20, seed=step) + 6 * step).square().mean()


def sent(m: nn.Module, step: int) -> Tensor:
    who = torch.tensor([0, 1, 2] * 4) if step == 0 else torch.tensor([0, 2] * 6)
    return m(data(12, 8, seed=step), who).square().mean()


twins("unused/branch-clean", branches, (False,), (True,), squared(10, 8), aligned)
BRANCH = at("side", phase="update", step=0)
twins("unused/branch-decayed", branches, (False,), (True,), squared(10, 8), BRANCH, optimizer=adamw)
twins("unused/rows-clean", rows, (True,), (False,), halves, aligned, steps=2)
LATER = {"optimizer": Both, "optimizer_b": adam, "steps": 2}
twins("unused/rows-momentum", rows, (True,), (False,), halves, at("words", phase="update", step=1), **LATER)
twins("unused/expert-clean", listed, (False,), (True,), sent, aligned, steps=2)
EXPERT = at("experts.each.1", phase="update", step=1)
twins("unused/expert-decayed", listed, (False,), (True,), sent, EXPERT, optimizer=adamw, steps=2)

# ---- rows that no loss sees ------------------------------------------------------------------------------------

LENGTHS = torch.tensor([7, 4, 5])
SEEN = torch.arange(7) < LENGTHS[:, None]


def encoder(zeroes: bool, eps: float = 1e-5) -> nn.Module:
    """Padding on the right; one side sets what attention returns there to zero."""

    def attend(self: nn.Module, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None].expand(-1, 7, -1))
        return self.out(y * seen[..., None] if zeroes else y)

    def run(self: nn.Module, ids: Tensor, seen: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head(self.norm(x + self.attention(x, seen)))

    attention = net("Attention", attend, qkv=nn.Linear(12, 36), out=nn.Linear(12, 12))
    parts = {"words": nn.Embedding(30, 12), "attention": attention, "norm": nn.LayerNorm(12, eps)}
    return net("Encoder", run, **parts, head=nn.Linear(12, 30))


def of_seen(m: nn.Module, _: int) -> Tensor:
    ids = whole(30, 3, 7, low=1) * SEEN
    return functional.cross_entropy(m(ids, SEEN)[SEEN], ids[SEEN])


PACKED = whole(30, 2, 10, low=2)
DOCUMENT = torch.tensor([[0] * 4 + [1] * 4 + [2] * 2, [0] * 6 + [1] * 3 + [2]])
REAL = DOCUMENT < 2


def packed(joined: bool) -> nn.Module:
    """Two documents in a row, and a tail that only sees itself."""

    def attend(self: nn.Module, x: Tensor, document: Tensor) -> Tensor:
        sees = torch.ones(10, 10, dtype=torch.bool).tril() & (document[:, :, None] == document[:, None])
        sees = torch.ones(10, 10, dtype=torch.bool).tril().expand(len(x), -1, -1) if joined else sees
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.out((q @ k.mT / 3).masked_fill(~sees, -1e9).softmax(-1) @ v)

    def run(self: nn.Module, ids: Tensor, document: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head(x + self.attention(self.norm(x), document))

    attention = net("Causal", attend, **{name: nn.Linear(9, 9) for name in ("q", "k", "v", "out")})
    parts = {"words": nn.Embedding(30, 9), "norm": nn.LayerNorm(9), "attention": attention}
    return net("Packed", run, **parts, head=nn.Linear(9, 30))


def of_documents(filler: int):
    def loss(m: nn.Module, _: int) -> Tensor:
        ids = torch.where(REAL, PACKED, filler)
        return functional.cross_entropy(m(ids, DOCUMENT)[REAL], PACKED[REAL])

    return loss


HIDDEN = whole(3, 4, 9, seed=11) == 0


def patches(fill: float, act=functional.gelu) -> nn.Module:
    """Masked patches hold another filler; each patch is judged by itself, and only those that are there."""

    def mlp(self: nn.Module, x: Tensor) -> Tensor:
        return self.down(act(self.up(x)))

    def run(self: nn.Module, image: Tensor) -> Tensor:
        x = self.embed(image).flatten(2).mT
        x = x.masked_fill(HIDDEN[..., None], fill)
        return self.head(x + self.mlp(x))

    inner = net("Mlp", mlp, up=nn.Linear(8, 16), down=nn.Linear(16, 8))
    return net("Patches", run, embed=nn.Conv2d(3, 8, 4, 4), mlp=inner, head=nn.Linear(8, 48))


def of_patches(m: nn.Module, _: int) -> Tensor:
    image = data(4, 3, 12, 12)
    target = functional.unfold(image, 4, stride=4).mT
    return (m(image) - target)[~HIDDEN].square().mean()


twins("unseen-rows/right-clean", encoder, (False,), (True,), of_seen, aligned, not_diverged)
twins("unseen-rows/right-eps", encoder, (False,), (True, 1e-2), of_seen, at("norm", phase="forward"), not_aligned)
FILLED = {"loss_b": of_documents(1)}
twins("unseen-rows/packed-clean", packed, (False,), (False,), of_documents(0), not_diverged, **FILLED)
JOINED = at("attention", phase="forward")
INTEGERS = {"wrong": {"tensor": "rows of integers that the loss does not see have no gradient of their own"}}
twins(
    "unseen-rows/packed-joined", packed, (False,), (True,), of_documents(0), JOINED, not_aligned, **FILLED, **INTEGERS
)
twins("unseen-rows/patches-clean", patches, (0.0,), (1.0,), of_patches, aligned, not_diverged)
SILU = at("mlp", phase="forward")
twins("unseen-rows/patches-silu", patches, (0.0,), (1.0, functional.silu), of_patches, SILU, not_aligned)

# ---- sums that cancel ------------------------------------------------------------------------------------------


def policy() -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.inp(x))).log_softmax(-1)

    return net("Policy", run, inp=nn.Linear(8, 16), out=nn.Linear(16, 5))


def of_groups(ordered: bool, scaled: bool = True):
    """Advantages within groups of eight, of which the sum is zero."""

    def loss(m: nn.Module, _: int) -> Tensor:
        taken = m(data(64, 8)).gather(1, whole(5, 64, 1, seed=12))[:, 0].view(8, 8)
        reward = data(8, 8, seed=13)
        advantage = reward - reward.mean(1, keepdim=True)
        advantage = advantage / reward.std(1, keepdim=True) if scaled else advantage
        terms = (taken - taken.detach()).exp() * advantage
        value = -terms.mean() if ordered else -terms.T.flip(0).sum(0).sum() / 64
        probe.log("policy_loss", value.detach())
        return value

    return loss


def critic(slope: float = 0.2) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        return self.score(self.act(self.inp(x)))

    return net("Critic", run, inp=nn.Linear(8, 16), act=nn.LeakyReLU(slope), score=nn.Linear(16, 1))


def of_difference(together: bool):
    """What a critic thinks of true and of drawn samples, which are nearly the same."""

    def loss(m: nn.Module, _: int) -> Tensor:
        true, drawn = data(256, 8), data(256, 8) + 1e-3 * data(256, 8, seed=14)
        if together:
            score = m(torch.cat([true, drawn]))
            return (score[256:] - score[:256]).mean()
        return m(drawn).mean() - m(true).mean()

    return loss


def of_both(ordered: bool):
    def loss(m: nn.Module, _: int) -> Tensor:
        score = m(torch.cat([data(256, 8), data(256, 8) + 1e-3 * data(256, 8, seed=14)]))
        terms = score[256:] - score[:256]
        return terms.mean() if ordered else score[256:].mean() - score[:256].mean()

    return loss


def centred() -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(self.inp(x))
        return z, self.out(torch.relu(z))

    return net("Centred", run, inp=nn.Linear(8, 12), norm=nn.BatchNorm1d(12), out=nn.Linear(12, 4))


def with_penalty(weight: float, ordered: bool):
    def loss(m: nn.Module, _: int) -> Tensor:
        z, out = m(data(50, 8))
        penalty = z.mean() if ordered else z.T.flip(0).sum(1).sum() / z.numel()
        probe.log("penalty", penalty.detach())
        return out.square().mean() + weight * penalty

    return loss


twins("cancelled/groups-clean", policy, (), (), of_groups(True), aligned, loss_b=of_groups(False))
UNSCALED = at("", "out", phase=("loss", "backward", "gradient"))
twins("cancelled/groups-unscaled", policy, (), (), of_groups(True), UNSCALED, loss_b=of_groups(False, False))
twins("cancelled/difference-clean", critic, (), (), of_both(True), aligned, loss_b=of_both(False))
OTHER = {"loss_b": of_difference(True), "wrong": {"tensor": "joined calls are laid in A's order of calls"}}
twins("cancelled/difference-joined", critic, (), (), of_difference(False), not_diverged, **OTHER)
SLOPE = at("act", phase="forward")
twins("cancelled/difference-slope", critic, (), (0.1,), of_both(True), SLOPE, loss_b=of_both(False))
twins("cancelled/penalty-clean", centred, (), (), with_penalty(1.0, True), aligned, loss_b=with_penalty(1.0, False))
TWICE = at("", "norm", phase=("loss", "backward", "gradient"))
twins("cancelled/penalty-twice", centred, (), (), with_penalty(1.0, True), TWICE, loss_b=with_penalty(2.0, False))

# ---- a wrong line of a mapping ---------------------------------------------------------------------------------


def stack(name: str, block: str, two: str, three: str = "", eps: float = 1e-5) -> nn.Module:
    def inner(self: nn.Module, x: Tensor) -> Tensor:
        return x + self.get_submodule(two)(torch.tanh(self.get_submodule(three)(x)))

    def run(self: nn.Module, x: Tensor) -> Tensor:
        for each in self.get_submodule(name):
            x = each(x)
        return x

    each = [net(block, inner, **{three: nn.LayerNorm(8, eps), two: nn.Linear(8, 8)}) for _ in range(3)]
    return net("Model", run, **{name: nn.ModuleList(each)})


def attention(fused: bool) -> nn.Module:
    def attend(self: nn.Module, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1) if fused else (self.q(x), self.k(x), self.v(x))
        return self.out((q @ k.mT / 3).softmax(-1) @ v)

    def run(self: nn.Module, x: Tensor) -> Tensor:
        return self.head(x + self.attention(self.norm(x)))

    parts = {"qkv": nn.Linear(8, 24)} if fused else {name: nn.Linear(8, 8) for name in "qkv"}
    inner = net("Fused" if fused else "Split", attend, **parts, out=nn.Linear(8, 8))
    return net("Model", run, norm=nn.LayerNorm(8), attention=inner, head=nn.Linear(8, 3))


def fuse(a: nn.Module, b: nn.Module) -> None:
    split = a.state_dict()
    state = {name: split[name] for name in b.state_dict() if "qkv" not in name}
    for slot in ("weight", "bias"):
        state[f"attention.qkv.{slot}"] = torch.cat([split[f"attention.{name}.{slot}"] for name in "qkv"])
    b.load_state_dict(state)


def two_norms(first: str, second: str, eps: float = 1e-5) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        x = x + torch.tanh(self.one(self.get_submodule(first)(x)))
        return x + torch.tanh(self.two(self.get_submodule(second)(x)))

    parts = {first: nn.LayerNorm(8), "one": nn.Linear(8, 8), second: nn.LayerNorm(8, eps), "two": nn.Linear(8, 8)}
    return net("Model", run, **parts)


A_STACK, B_STACK, DEEP = ("blocks", "BlockA", "fc", "ln"), ("layers", "BlockB", "lin", "norm"), squared(12, 8)
LINES = {"BlockA": {"fc": "lin", "ln": "norm"}}
CROSSED = {"TopLayer": {"blocks.0": "layers.1", "blocks.1": "layers.0", "blocks.2": "layers.2"}}
twins("wrong-line/blocks", stack, A_STACK, B_STACK, DEEP, names_mapping, mapping=CROSSED | LINES)
RIGHT = {"TopLayer": {"blocks": "layers"}}
twins("wrong-line/blocks-right", stack, A_STACK, B_STACK, DEEP, aligned, mapping=RIGHT | LINES)
LONG = squared(4, 5, 8)
FUSED = {"mapping": {"Split": {"qkv": {"from": ["q", "v", "k"]}}}, "copy": fuse}
# no statistic knows an order of parts
UNKNOWN = lambda answer: not_diverged(answer) or names_mapping(answer)  # noqa: E731
twins("wrong-line/fused", attention, (False,), (True,), LONG, names_mapping, UNKNOWN, **FUSED)
FUSED = {"mapping": {"Split": {"qkv": {"from": ["q", "k", "v"]}}}, "copy": fuse}
twins("wrong-line/fused-right", attention, (False,), (True,), LONG, aligned, **FUSED)
NORMS = ("before", "after"), ("norm_a", "norm_b")
SWAPPED = {"TopLayer": {"before": "norm_b", "after": "norm_a"}}
HEALED = "a module whose tensors all healed and whose gradients differ: the gradient is named, not the line"
HEALED = {"wrong": {"tensor": HEALED, "statistics": HEALED}}
twins("wrong-line/norms", two_norms, *NORMS, DEEP, names_mapping, mapping=SWAPPED, **HEALED)
STRAIGHT = {"TopLayer": {"before": "norm_a", "after": "norm_b"}}
EPS = at("after", phase="forward")
twins("wrong-line/norms-right-eps", two_norms, NORMS[0], (*NORMS[1], 1e-2), DEEP, EPS, mapping=STRAIGHT)


# ---- Kinds of small pairs: blocks in other parts, mixtures of experts in 16 bits, tables on a grid of 16 bits.

# ---- blocks of other classes and names, with a parameter elsewhere; the second one is wrong --------------------


def scale(kind: str) -> nn.Module:
    """A norm over the channels of an image, of a class that nobody knows."""

    def run(self: nn.Module, x: Tensor) -> Tensor:
        x = (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True, unbiased=False) + 1e-6)
        return x * self.weight[:, None, None] + self.bias[:, None, None]

    return net(kind, run, weight=nn.Parameter(1 + 0.1 * data(8)), bias=nn.Parameter(0.1 * data(8, seed=2)))


def convolutions(deep: bool, wrong: float = 1.0) -> nn.Module:
    norm, first, second = ("affine", "dw", "pw") if deep else ("norm", "depthwise", "pointwise")

    def block(self: nn.Module, x: Tensor) -> Tensor:
        y = self.get_submodule(first)(self.get_submodule(norm)(x))
        return x + self.get_submodule(second)(functional.gelu(y)) * self.factor

    def body(self: nn.Module, x: Tensor) -> Tensor:
        for each in self.get_submodule("units" if deep else "stages"):
            x = each(x)
        return x

    each = []
    for number in range(3):
        parts = {norm: scale("Affine" if deep else "ChannelNorm")}
        parts |= {first: nn.Conv2d(8, 8, 3, padding=1, groups=8), second: nn.Conv2d(8, 8, 1)}
        each.append(net("Unit" if deep else "Stage", block, **parts, factor=wrong if number == 1 else 1.0))
    if not deep:
        run = lambda self, x: self.head(body(self, self.stem(x)).mean((2, 3)))  # noqa: E731
        parts = {"stem": nn.Conv2d(3, 8, 1), "stages": nn.Sequential(*each), "head": nn.Linear(8, 4)}
        return net("ConvNet", run, **parts)
    run = lambda self, x: self.classify(self.body(self.inp(x)).mean((2, 3)))  # noqa: E731
    parts = {"inp": nn.Conv2d(3, 8, 1), "body": net("Body", body, units=nn.ModuleList(each))}
    return net("Network", run, **parts, classify=nn.Linear(8, 4))


def vision(higher: bool, wrong: float = 1.0) -> nn.Module:
    """The token of the class and the positions: in the embedding, or in the model."""

    def block(self: nn.Module, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = x + self.mix(y.mT).mT
        return y + self.up(torch.tanh(self.down(y))) * self.factor

    def embed(self: nn.Module, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).mT
        return torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions

    def run(self: nn.Module, image: Tensor) -> Tensor:
        x = embed(self, image) if higher else self.embed(image)
        for each in self.layers if higher else self.blocks:
            x = each(x)
        return self.head(x[:, 0])

    parts = {"token": nn.Parameter(torch.randn(1, 1, 8)), "positions": nn.Parameter(torch.randn(1, 10, 8))}
    parts |= {"patch": nn.Conv2d(3, 8, 4, 4)}
    each = []
    for number in range(3):
        inner = {"norm": nn.LayerNorm(8), "mix": nn.Linear(10, 10), "down": nn.Linear(8, 6), "up": nn.Linear(6, 8)}
        each.append(net("Layer" if higher else "MixBlock", block, **inner, factor=wrong if number == 1 else 1.0))
    if higher:
        return net("Vision", run, **parts, layers=nn.ModuleList(each), head=nn.Linear(8, 4))
    return net("Images", run, embed=net("Embed", embed, **parts), blocks=nn.ModuleList(each), head=nn.Linear(8, 4))


def sparse(is_packed: bool, wrong: float = 1.0) -> nn.Module:
    """The weights of the experts: one tensor, or a list of modules."""

    def packed(self: nn.Module, x: Tensor, weights: Tensor) -> Tensor:
        every = torch.einsum("eoi,nei->neo", self.out, torch.relu(torch.einsum("eoi,ni->neo", self.inp, x)))
        return (every * weights[..., None]).sum(1)

    def listed(self: nn.Module, x: Tensor, weights: Tensor) -> Tensor:
        every = [b(torch.relu(a(x))) for a, b in zip(self.inp, self.out, strict=True)]
        return sum(y * weights[:, k, None] for k, y in enumerate(every))

    def block(self: nn.Module, x: Tensor) -> Tensor:
        y = self.norm(x)
        weights, chosen = self.gate(y).softmax(-1).topk(2, -1)
        weights = torch.zeros(len(x), 4).scatter(1, chosen, weights)
        return x + self.experts(y, weights) * self.factor

    def run(self: nn.Module, x: Tensor) -> Tensor:
        x = self.inp(x)
        for each in self.blocks if is_packed else self.layers:
            x = each(x)
        return self.head(x)

    each = []
    for number in range(3):
        if is_packed:
            parts = {"inp": nn.Parameter(torch.randn(4, 12, 8) / 3), "out": nn.Parameter(torch.randn(4, 8, 12) / 3)}
        else:
            parts = {"inp": nn.ModuleList(nn.Linear(8, 12, bias=False) for _ in range(4))}
            parts |= {"out": nn.ModuleList(nn.Linear(12, 8, bias=False) for _ in range(4))}
        experts = net("Packed" if is_packed else "Experts", packed if is_packed else listed, **parts)
        inner = {"norm": nn.LayerNorm(8), "gate": nn.Linear(8, 4, bias=False), "experts": experts}
        kind = "SparseBlock" if is_packed else "MoeLayer"
        each.append(net(kind, block, **inner, factor=wrong if number == 1 else 1.0))
    blocks = {"blocks" if is_packed else "layers": nn.ModuleList(each)}
    return net("SparseNet", run, inp=nn.Linear(6, 8), **blocks, head=nn.Linear(8, 3))


def unpack(a: nn.Module, b: nn.Module) -> None:
    ours, state = a.state_dict(), {}
    for name in b.state_dict():
        head, _, rest = name.replace("layers", "blocks").partition("experts.")
        slot, number, *_ = rest.split(".") if rest else ("", "", "")
        state[name] = ours[f"{head}experts.{slot}"][int(number)] if rest else ours[head]
    b.load_state_dict(state)


NAMES = {
    "body.units": "stages",
    "affine": "norm",
    "dw": "depthwise",
    "pw": "pointwise",
    "classify": "head",
    "inp": "stem",
}
CONVS = {"copy": renamed(NAMES)}
VISION = {
    "copy": renamed(
        {"layers": "blocks", "token": "embed.token", "positions": "embed.positions", "patch": "embed.patch"}
    )
}
IMAGES, PIECES, ROWS = squared(3, 3, 6, 6), squared(4, 3, 12, 12), squared(40, 6)
BLOCK = at("blocks.1", phase="forward")
EXPERTS = at("blocks.1", "blocks.1.experts", phase="forward")
twins("parents/norm-class-clean", convolutions, (False,), (True,), IMAGES, aligned, **CONVS)
twins("parents/norm-class", convolutions, (False,), (True, 1.1), IMAGES, at("stages.1", phase="forward"), **CONVS)
twins("parents/parameters-higher-clean", vision, (False,), (True,), PIECES, aligned, **VISION)
twins("parents/parameters-higher", vision, (False,), (True, 1.1), PIECES, BLOCK, **VISION)
twins("parents/packed-clean", sparse, (True,), (False,), ROWS, aligned, copy=unpack)
twins("parents/packed", sparse, (True,), (False, 1.1), ROWS, EXPERTS, copy=unpack)

# ---- mixtures of experts: float32 against 16 bits ---------------------------------------------------------------


def shared(act=functional.silu, gated: bool = True, dtype: torch.dtype = torch.float32, best: bool = True) -> nn.Module:
    """Routed experts, and one that sees every token behind a gate of its own; the third layer is as asked."""

    def expert(self: nn.Module, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))

    def make(act) -> nn.Module:
        parts = {"gate": nn.Linear(32, 48, bias=False), "up": nn.Linear(32, 48, bias=False)}
        return net("Expert", expert, **parts, down=nn.Linear(48, 32, bias=False), act=act)

    def mix(self: nn.Module, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).float().softmax(-1).topk(2, -1, largest=self.best)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        y = torch.zeros_like(x)
        for k, each in enumerate(self.experts):
            token, place = torch.where(chosen == k)
            y = y.index_add(0, token, each(x[token]) * weights[token, place, None])
        always = self.shared(x)
        return y + (torch.sigmoid(self.shared_gate(x)) * always if self.gated else always)

    def block(self: nn.Module, x: Tensor) -> Tensor:
        return x + self.moe(self.norm(x))

    def run(self: nn.Module, ids: Tensor) -> Tensor:
        x = self.words(ids).flatten(0, 1)
        for each in self.layers:
            x = each(x)
        return self.head(self.norm(x))

    layers = []
    for number in range(4):
        asked = number == 2
        parts = {
            "router": nn.Linear(32, 8, bias=False),
            "experts": nn.ModuleList(make(functional.silu) for _ in range(8)),
        }
        parts |= {"shared": make(act if asked else functional.silu), "shared_gate": nn.Linear(32, 1, bias=False)}
        moe = net("SharedMoe", mix, **parts, gated=gated or not asked, best=best or not asked)
        layers.append(net("MoeBlock", block, norm=nn.RMSNorm(32), moe=moe))
    parts = {"words": nn.Embedding(64, 32), "layers": nn.ModuleList(layers), "norm": nn.RMSNorm(32)}
    return net("SharedLm", run, **parts, head=nn.Linear(32, 64, bias=False)).to(dtype)


def mixtral(fault: str = "", dtype: torch.dtype = torch.float32) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        attn_implementation="eager",
    )
    model = transformers.MixtralForCausalLM(config)
    if fault == "relu":
        model.model.layers[1].mlp.experts.act_fn = nn.ReLU()
    return model.to(dtype)


def top_one(factor: float = 1.0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Each token goes to one expert; the second layer multiplies what it says."""

    def mix(self: nn.Module, x: Tensor) -> Tensor:
        weight, chosen = self.router(x.float()).softmax(-1).max(-1)
        every = torch.einsum("nd,edh->neh", x, self.weight)
        taken = torch.relu(every[torch.arange(len(x)), chosen])
        return self.out(taken) * weight[:, None].to(x.dtype) * self.factor

    def run(self: nn.Module, ids: Tensor) -> Tensor:
        x = self.words(ids).flatten(0, 1)
        for norm, each in zip(self.norms, self.mixers, strict=True):
            x = x + each(norm(x))
        return self.head(x)

    mixers = []
    for number in range(3):
        parts = {"router": nn.Linear(32, 4, bias=False), "weight": nn.Parameter(torch.randn(4, 32, 40) / 5)}
        mixers.append(net("TopOne", mix, **parts, out=nn.Linear(40, 32), factor=factor if number == 1 else 1.0))
    parts = {"words": nn.Embedding(64, 32), "norms": nn.ModuleList(nn.LayerNorm(32) for _ in range(3))}
    model = net("TopOneLm", run, **parts, mixers=nn.ModuleList(mixers), head=nn.Linear(32, 64)).to(dtype)
    for each in model.mixers:
        each.router.float()
    return model


IDS = whole(64, 4, 64)


def of_words(m: nn.Module, _: int) -> Tensor:
    out = m(IDS)
    out = (out if isinstance(out, Tensor) else out.logits).float().view(4, 64, 64)
    return functional.cross_entropy(out[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())


BF16, FP16, SILU_BLOCKS = torch.bfloat16, torch.float16, functional.silu
SHARED = undecided_or(at("layers.2.moe", "layers.2.moe.shared", phase="forward"))
GATE = undecided_or(at("layers.2.moe", "layers.2.moe.shared_gate", phase="forward"))  # which B does not call
MIXTRAL = undecided_or(at("model.layers.1.mlp", "model.layers.1.mlp.experts", phase="forward"))
ONE = undecided_or(at("mixers.1", phase="forward"))
twins("moe-16-bits/shared-clean", shared, (), (SILU_BLOCKS, True, BF16), of_words, not_diverged)
twins("moe-16-bits/shared-relu", shared, (), (torch.relu, True, BF16), of_words, SHARED)
twins("moe-16-bits/shared-no-gate", shared, (), (SILU_BLOCKS, False, BF16), of_words, GATE)
WORST = at("layers.2.moe", phase="forward")
twins("moe-16-bits/shared-worst", shared, (), (SILU_BLOCKS, True, BF16, False), of_words, undecided_or(WORST))
twins("moe-16-bits/shared-worst-32", shared, (), (SILU_BLOCKS, True, torch.float32, False), of_words, WORST)
twins("moe-16-bits/mixtral-clean", mixtral, (), ("", BF16), of_words, not_diverged)
twins("moe-16-bits/mixtral-relu", mixtral, (), ("relu", BF16), of_words, MIXTRAL)
twins("moe-16-bits/top-one-clean", top_one, (), (1.0, FP16), of_words, not_diverged)
twins("moe-16-bits/top-one-scale", top_one, (), (1.1, FP16), of_words, ONE)

# ---- tables: exact, or on a grid of 16 bits though what uses them multiplies them ------------------------------


def on_grid(x: Tensor, coarse: bool) -> Tensor:
    return x.bfloat16().float() if coarse else x


def sinusoids(coarse: bool, dtype: torch.dtype = torch.float32) -> nn.Module:
    def table(self: nn.Module, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[1])[:, None] * self.frequency
        return torch.cat([angle.sin(), angle.cos()], -1).to(x.dtype)

    def run(self: nn.Module, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head(torch.tanh(self.fc(x + self.positions(x))))

    positions = net("Positions", table)
    model = net("Sinusoids", run, words=nn.Embedding(64, 16), positions=positions, fc=nn.Linear(16, 16))
    model.head = nn.Linear(16, 64)
    model.to(dtype)
    exact = 10000.0 ** (-torch.arange(8).float() / 8) * 0.7
    positions.register_buffer("frequency", on_grid(exact, coarse))
    return model


def mel(coarse: bool, floor: float = 1e-5, dtype: torch.dtype = torch.float32) -> nn.Module:
    def filtered(self: nn.Module, power: Tensor) -> Tensor:
        return (power.float() @ self.filters + self.floor).log().to(power.dtype)

    def run(self: nn.Module, wave: Tensor) -> Tensor:
        power = torch.fft.rfft(wave.float().unfold(1, 32, 16) * torch.hann_window(32)).abs().square()
        return self.head(torch.relu(self.conv(self.mel(power.to(self.head.weight.dtype)).mT)).mean(2))

    mels = net("Mel", filtered, floor=floor)
    model = net("Speech", run, mel=mels, conv=nn.Conv1d(6, 8, 3), head=nn.Linear(8, 4)).to(dtype)
    width = (torch.arange(17)[:, None] - torch.linspace(1, 15, 6)).abs()
    mels.register_buffer("filters", on_grid((1 - width / 3).clamp(min=0) / math.pi, coarse))
    return model


def alibi(coarse: bool, dtype: torch.dtype = torch.float32) -> nn.Module:
    def bias(self: nn.Module, x: Tensor) -> Tensor:
        where = torch.arange(x.shape[1])
        return self.slopes[:, None, None] * (where - where[:, None]).clamp(max=0)

    def run(self: nn.Module, ids: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = (each.unflatten(-1, (6, 4)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = (q @ k.mT).float() / 2 + self.alibi(x)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        y = scores.masked_fill(hidden, -math.inf).softmax(-1).to(x.dtype) @ v
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))

    slopes = net("Alibi", bias)
    parts = {"words": nn.Embedding(64, 24), "alibi": slopes, "qkv": nn.Linear(24, 72), "out": nn.Linear(24, 24)}
    model = net("AlibiLm", run, **parts, head=nn.Linear(24, 64)).to(dtype)
    slopes.register_buffer("slopes", on_grid(2.0 ** (-8 * torch.arange(1, 7) / 6), coarse))
    return model


WAVES = lambda m, _: m(data(3, 320)).float().square().mean()  # noqa: E731
twins("table/sinusoids-clean", sinusoids, (False,), (False, BF16), of_words, not_diverged)
twins("table/sinusoids-coarse", sinusoids, (False,), (True, BF16), of_words, at("positions"))
twins("table/sinusoids-float32", sinusoids, (False,), (True,), of_words, at("positions"))
twins("table/mel-clean", mel, (False,), (False, 1e-5, BF16), WAVES, not_diverged)
twins("table/mel-coarse", mel, (False,), (True, 1e-5, BF16), WAVES, not_diverged)
twins("table/mel-floor", mel, (False,), (False, 1.0, BF16), WAVES, at("mel", phase="forward"))
twins("table/mel-float32", mel, (False,), (True,), WAVES, at("mel"))
twins("table/alibi-clean", alibi, (False,), (False, BF16), of_words, not_diverged)
twins("table/alibi-float32", alibi, (False,), (True,), of_words, at("alibi"))


@pytest.mark.parametrize(("pair", "task"), cases(PAIRS))
def test_pair(pair: Pair, task: str, tmp_path: Path) -> None:
    answer = pair.answer(tmp_path, task)
    assert pair.holds(answer, task), f"{said(answer)}\n{answer}"
