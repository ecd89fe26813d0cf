"""Kinds of small pairs: what no loss sees, what cancels, mappings with a wrong line, blocks in other parts, 16 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from kinds import (  # noqa: E402
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
    said,
    whole,
)
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import probe  # noqa: E402

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


@pytest.mark.parametrize(("pair", "task"), cases(PAIRS))
def test_pair(pair: Pair, task: str, tmp_path: Path) -> None:
    answer = pair.answer(tmp_path, task)
    assert pair.holds(answer, task), f"{said(answer)}\n{answer}"
