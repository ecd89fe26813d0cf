"""Kinds of small pairs: what a module is given, returns and calls may differ, and a fault behind it is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.torch.kinds import Pair, aligned, at, cases, data, net, not_diverged, said, whole

PAIRS: list[Pair] = []

# ---- labels: one side makes of them what the other is given ---------------------------------------------------

SOURCE, TARGET = whole(40, 5, 7, low=1, seed=2), whole(40, 5, 6, low=1, seed=3)
BEGUN = torch.cat([torch.zeros(5, 1, dtype=torch.long), TARGET[:, :-1]], 1)


def translation(shifts: bool, eps: float = 1e-5) -> nn.Module:
    def run(self: nn.Module, source: Tensor, target: Tensor, labels: Tensor | None = None) -> Tensor:
        if shifts:
            target, labels = functional.pad(target, (1, 0))[:, :-1], target
        _, state = self.encoder(self.words(source))
        out, _ = self.decoder(self.words(target), state)
        out = self.head(self.norm(out)).transpose(1, 2)
        return functional.cross_entropy(out, labels) if shifts else self.criterion(out, labels)

    parts = {"words": nn.Embedding(40, 12), "encoder": nn.GRU(12, 12, batch_first=True)}
    parts |= {"decoder": nn.GRU(12, 12, batch_first=True), "norm": nn.LayerNorm(12, eps), "head": nn.Linear(12, 40)}
    return net("Translation", run, **parts, **({} if shifts else {"criterion": nn.CrossEntropyLoss()}))


for name, eps, right in (("clean", 1e-5, aligned), ("eps", 1e-3, at("norm", phase="forward"))):
    PAIRS.append(
        Pair(
            f"labels/translation-{name}",
            lambda: translation(True),
            lambda eps=eps: translation(False, eps),
            lambda m, _: m(SOURCE, TARGET),
            right,
            loss_b=lambda m, _: m(SOURCE, BEGUN, TARGET),
            steps=2,
        )
    )

KINDS_OF = whole(6, 20, seed=4)


def classes(one_hot: bool) -> nn.Module:
    def run(self: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        out = self.second(torch.tanh(self.first(x)))
        if one_hot:
            return -(labels * out.log_softmax(-1)).sum(-1).mean()
        return functional.cross_entropy(out, labels)

    return net("Classes", run, first=nn.Linear(10, 12), second=nn.Linear(12, 6))


for name, smoothing, right in (("clean", 0.0, aligned), ("smoothed", 0.1, at(""))):
    ONE_HOT = functional.one_hot(KINDS_OF, 6) * (1 - smoothing) + smoothing / 6
    PAIRS.append(
        Pair(
            f"labels/one-hot-{name}",
            lambda: classes(False),
            lambda: classes(True),
            lambda m, _: m(data(20, 10), KINDS_OF),
            right,
            loss_b=lambda m, _, labels=ONE_HOT: m(data(20, 10), labels),
        )
    )

MAP = torch.where(whole(5, 3, 8, 8, seed=6) == 0, 255, whole(5, 3, 8, 8, seed=5))


def segments(ignored: int) -> nn.Module:
    def run(self: nn.Module, image: Tensor, labels: Tensor) -> Tensor:
        out = self.head(torch.relu(self.norm(self.conv(image))))
        return functional.cross_entropy(out, labels, ignore_index=ignored)

    parts = {"conv": nn.Conv2d(3, 8, 3, padding=1), "norm": nn.BatchNorm2d(8), "head": nn.Conv2d(8, 5, 1)}
    return net("Segments", run, **parts)


for name, ignored, right in (("clean", -100, aligned), ("counted", 0, at(""))):
    GIVEN = torch.where(MAP == 255, ignored, MAP)
    PAIRS.append(
        Pair(
            f"labels/ignored-{name}",
            lambda: segments(255),
            lambda: segments(-100),
            lambda m, _: m(data(3, 3, 8, 8), MAP),
            right,
            loss_b=lambda m, _, labels=GIVEN: m(data(3, 3, 8, 8), labels),
        )
    )

# ---- another size, which is cut away again --------------------------------------------------------------------


def cropped(outside: bool, eps: float = 1e-5) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        y = self.conv(functional.pad(x, (3, 0, 3, 0))) if outside else self.conv(x)[..., :height, :width]
        return self.last(functional.silu(self.norm(y)))

    parts = {"norm": nn.GroupNorm(2, 6, eps), "last": nn.Conv2d(6, 4, 1)}
    return net("Cropped", run, conv=nn.Conv2d(3, 6, 4, padding=0 if outside else 3), **parts)


def to_eight(pads: bool, eps: float = 1e-5) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        length = x.shape[1]
        y = functional.pad(x, (0, 0, 0, -length % 8)) if pads else x
        return self.head(functional.gelu(self.norm(self.inner(y)))[:, :length].mean(1))

    return net("ToEight", run, inner=nn.Linear(8, 12), norm=nn.LayerNorm(12, eps), head=nn.Linear(12, 5))


def circular(mode: str | None) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.conv(functional.pad(self.first(x), (2, 2), mode=mode)) if mode else self.conv(self.first(x))
        return self.last(torch.tanh(y))

    conv = nn.Conv1d(6, 6, 5, padding=0 if mode else 2, padding_mode="zeros" if mode else "circular")
    return net("Circular", run, first=nn.Conv1d(3, 6, 1), conv=conv, last=nn.Conv1d(6, 2, 1))


def squared(*shape: int):
    return lambda m, _: m(data(*shape)).square().mean()


def twins(name: str, make, a: tuple, b: tuple, loss, right, statistics=None, **more) -> None:
    PAIRS.append(Pair(name, lambda: make(*a), lambda: make(*b), loss, right, statistics, **more))


IMAGES, SERIES, WAVES = squared(2, 3, 9, 11), squared(3, 13, 8), squared(4, 3, 12)
twins("other-size/crop-clean", cropped, (False,), (True,), IMAGES, aligned)
twins("other-size/crop-eps", cropped, (False,), (True, 1e-2), IMAGES, at("norm", phase="forward"))
twins("other-size/padded-clean", to_eight, (False,), (True,), SERIES, aligned)
twins("other-size/padded-eps", to_eight, (False,), (True, 1e-1), SERIES, at("norm", "", phase="forward"))
twins("other-size/circular-clean", circular, (None,), ("circular",), WAVES, aligned)
twins("other-size/circular-reflect", circular, (None,), ("reflect",), WAVES, at("conv", "", phase="forward"))

# ---- what one side returns, the other returns before a function of it ------------------------------------------


def scorer(ends, leak: float = 0.0) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        return ends(self.second(functional.leaky_relu(self.first(x), leak)))

    return net("Scorer", run, first=nn.Linear(10, 12), second=nn.Linear(12, 6))


def same(x: Tensor) -> Tensor:
    return x


def smoothed(by: float):
    return lambda m, _: functional.cross_entropy(m(data(20, 10)), KINDS_OF, label_smoothing=by)


def log_of(m: nn.Module, _: int) -> Tensor:
    return functional.nll_loss(m(data(20, 10)).log(), KINDS_OF)


for name, smoothing, right in (("clean", 0.0, aligned), ("smoothed", 0.1, at("", phase="loss"))):
    loss_b = smoothed(smoothing)
    softmax = (lambda x: x.softmax(-1),)
    statistics = right if smoothing == 0 else at("")  # of what a function is applied to no statistic tells
    twins(f"probabilities/softmax-{name}", scorer, softmax, (same,), log_of, right, statistics, loss_b=loss_b)

WANTED = data(20, 6, seed=8).tanh()
for name, loss_of, right in (
    ("clean", functional.mse_loss, aligned),
    ("huber", functional.smooth_l1_loss, at("", phase="loss")),
):
    loss_a = lambda m, _: functional.mse_loss(m(data(20, 10)), WANTED)  # noqa: E731
    loss_b = lambda m, _, of=loss_of: of(m(data(20, 10)).tanh(), WANTED)  # noqa: E731
    twins(f"probabilities/tanh-{name}", scorer, (torch.tanh,), (same,), loss_a, right, loss_b=loss_b)


class ActivatedNorm(nn.BatchNorm2d):
    leak = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(super().forward(x), self.leak)


class LeakyNorm(ActivatedNorm):
    leak = 0.1


def stem(norm) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return self.head((self.act(y) if norm is nn.BatchNorm2d else y).mean((2, 3)))

    parts = {"conv": nn.Conv2d(3, 6, 3, bias=False), "norm": norm(6)}
    parts |= {"act": nn.ReLU()} if norm is nn.BatchNorm2d else {}
    return net("Stem", run, **parts, head=nn.Linear(6, 4))


BN = (nn.BatchNorm2d,)
twins("probabilities/fused-norm-clean", stem, BN, (ActivatedNorm,), IMAGES, aligned)
twins("probabilities/fused-norm-leaky", stem, BN, (LeakyNorm,), IMAGES, at("norm", "act", "", phase="forward"))

# ---- routers: the scores are right, what is chosen by them is not ---------------------------------------------


def mixture(router: nn.Module, experts: int = 8) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        chosen, weights = self.router(x)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        taken = every.gather(1, chosen.long()[..., None].expand(-1, -1, 16)) * weights[..., None]
        return self.head(x + taken.sum(1))

    each = nn.ModuleList(nn.Linear(16, 16) for _ in range(experts))
    return net("Mixture", run, router=router, experts=each, head=nn.Linear(16, 4))


def switch(place: int, dtype: torch.dtype = torch.long) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, order = self.scores(x).softmax(-1).sort(-1, descending=True)
        return order[:, place : place + 1].to(dtype), weights[:, place : place + 1]

    return mixture(net("Switch", run, scores=nn.Linear(16, 8, bias=False)))


def grouped(of_two: bool, by_number: bool = False) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = torch.sigmoid(x @ self.weight.T)
        groups = scores.view(-1, 4, 4)
        best = (groups.topk(2, -1).values.sum(-1) if of_two else groups.amin(-1)).topk(2, -1).indices
        allowed = torch.zeros(len(x), 4).scatter(1, best, 1.0).repeat_interleave(4, 1)
        chosen = (scores * allowed).topk(3, -1).indices
        chosen = chosen.sort(-1).values if by_number else chosen
        weights = scores.gather(1, chosen)
        return chosen, weights / weights.sum(-1, keepdim=True)

    return mixture(net("Grouped", run, weight=nn.Parameter(data(16, 16, seed=9) / 4)), 16)


def expert_choice(largest: bool) -> nn.Module:
    def choose(self: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, tokens = self.scores(x).softmax(-1).T.topk(12, -1, largest=largest)
        return weights, tokens

    def run(self: nn.Module, x: Tensor) -> Tensor:
        weights, tokens = self.chooser(x)
        y = x
        for expert, weight, which in zip(self.experts, weights, tokens, strict=True):
            y = y.index_add(0, which, expert(x[which]) * weight[:, None])
        return self.head(y)

    chooser, each = net("Chooser", choose, scores=nn.Linear(16, 4)), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
    return net("Chosen", run, chooser=chooser, experts=each, head=nn.Linear(16, 4))


TOKENS = squared(48, 16)
twins("router/switch-clean", switch, (0,), (0, torch.int32), TOKENS, aligned)
twins("router/switch-second", switch, (0,), (1,), TOKENS, at("router", phase="forward"))
twins("router/groups-by-number", grouped, (True,), (True, True), TOKENS, aligned, not_diverged)
twins("router/groups-worst", grouped, (True,), (False,), TOKENS, at("router", phase="forward"))
twins("router/experts-choose-worst", expert_choice, (True,), (False,), TOKENS, at("chooser", phase="forward"))

# ---- one side asks for a gradient of what it need not know the gradient of ------------------------------------


def adapted(asks: bool, part: float = 1.0) -> nn.Module:
    """A frozen embedding and trained layers; the gradient of what the embedding returns, as for checkpointing."""

    def run(self: nn.Module, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head(self.block(x.requires_grad_() if asks else x))

    def block(self: nn.Module, x: Tensor) -> Tensor:
        y = torch.relu(self.up(x))
        return x + self.down(y * part + y.detach() * (1 - part))

    words = nn.Embedding(30, 8).requires_grad_(False)
    inner = net("Block", block, up=nn.Linear(8, 16), down=nn.Linear(16, 8))
    return net("Adapted", run, words=words, block=inner, head=nn.Linear(8, 30))


def residual(part: float = 1.0) -> nn.Module:
    def run(self: nn.Module, image: Tensor) -> Tensor:
        return self.head(self.residual(self.stem(image)).mean((2, 3)))

    def add(self: nn.Module, x: Tensor) -> Tensor:
        return x * part + x.detach() * (1 - part) + self.conv(torch.relu(x))

    inner = net("Residual", add, conv=nn.Conv2d(6, 6, 3, padding=1))
    return net("Critic", run, stem=nn.Conv2d(3, 6, 3), residual=inner, head=nn.Linear(6, 1))


def probed(asks: bool, part: float = 1.0) -> nn.Module:
    """A backbone without gradients, and a neck that is trained."""

    def run(self: nn.Module, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.backbone(x)
        return self.head(self.neck(x.requires_grad_() if asks else x))

    def neck(self: nn.Module, x: Tensor) -> Tensor:
        y = self.squeeze(x)
        return self.widen(y * torch.sigmoid(y * part + y.detach() * (1 - part)))

    backbone = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).requires_grad_(False)
    inner = net("Neck", neck, squeeze=nn.Linear(8, 4), widen=nn.Linear(4, 8))
    return net("Probed", run, backbone=backbone, neck=inner, head=nn.Linear(8, 3))


def words_of(m: nn.Module, _: int) -> Tensor:
    return functional.cross_entropy(m(whole(30, 4, 9))[:, :-1].transpose(1, 2), whole(30, 4, 9)[:, 1:])


def judged(asks: bool):
    return lambda m, _: functional.softplus(m(data(4, 3, 8, 8).requires_grad_(asks))).mean()


BACK = ("backward", "gradient")
ROWS = squared(12, 8)
twins("input-gradient/embedding-clean", adapted, (True,), (False,), words_of, aligned)
twins("input-gradient/embedding-half", adapted, (True,), (False, 0.5), words_of, at("block", phase=BACK))
twins("input-gradient/image-clean", residual, (), (), judged(True), aligned, loss_b=judged(False))
twins(
    "input-gradient/image-detached",
    residual,
    (),
    (0.0,),
    judged(True),
    at("residual", phase=BACK),
    loss_b=judged(False),
)
twins("input-gradient/backbone-clean", probed, (True,), (False,), ROWS, aligned)
twins("input-gradient/backbone-half", probed, (True,), (False, 0.5), ROWS, at("neck", phase=BACK))

# ---- layouts: inside a module on one side, around it on the other ----------------------------------------------


def channels(inside: bool, turned: bool = False) -> nn.Module:
    """[b, h, w, c] outside, [b, c, h, w] in the convolution."""

    def inner(self: nn.Module, x: Tensor) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def run(self: nn.Module, x: Tensor) -> Tensor:
        x = self.first(x)
        if inside:
            return self.last(x + self.mix(x))
        y = self.mix(x.permute(0, 3, 1, 2))
        return self.last(x + (y.permute(0, 3, 2, 1) if turned else y.permute(0, 2, 3, 1)))

    conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
    mix = net("Mix", inner, conv=conv) if inside else conv
    return net("Channels", run, first=nn.Linear(4, 6), mix=mix, last=nn.Linear(6, 3))


def time_first(first: bool, act=torch.relu) -> nn.Module:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = self.rnn(self.inp(x).transpose(0, 1))[0].transpose(0, 1) if first else self.rnn(self.inp(x))[0]
        return self.out(act(y))

    return net("Times", run, inp=nn.Linear(4, 8), rnn=nn.LSTM(8, 8, batch_first=not first), out=nn.Linear(8, 2))


def heads_first(first: bool, back: bool = True) -> nn.Module:
    """Batch and time have one size, so that no shape tells them apart."""

    def run(self: nn.Module, x: Tensor) -> Tensor:
        x = self.norm(x)
        y = x.transpose(0, 1) if first else x
        y = self.attention(y, y, y, need_weights=False)[0]
        return self.out(x + (y.transpose(0, 1) if first and back else y))

    attention = nn.MultiheadAttention(8, 2, batch_first=not first)
    return net("Heads", run, norm=nn.LayerNorm(8), attention=attention, out=nn.Linear(8, 2))


PICTURES, STEPS, SQUARE = squared(2, 7, 7, 4), squared(3, 11, 4), squared(6, 6, 8)
INSIDE = {"TopLayer": {"mix.conv": "mix"}}
twins("transposed/channels-clean", channels, (True,), (False,), PICTURES, aligned)
twins("transposed/channels-mapped", channels, (True,), (False,), PICTURES, aligned, mapping=INSIDE)
twins("transposed/channels-turned", channels, (True,), (False, True), PICTURES, at("mix", "", phase="forward"))
twins("transposed/time-clean", time_first, (False,), (True,), STEPS, aligned)
twins("transposed/time-gelu", time_first, (False,), (True, functional.gelu), STEPS, at("", phase="forward"))
twins("transposed/square-clean", heads_first, (False,), (True,), SQUARE, aligned)
twins("transposed/square-not-back", heads_first, (False,), (True, False), SQUARE, at("attention", "", phase="forward"))


@pytest.mark.parametrize(("pair", "task"), cases(PAIRS))
def test_pair(pair: Pair, task: str, tmp_path: Path) -> None:
    answer = pair.answer(tmp_path, task)
    assert pair.holds(answer, task), f"{said(answer)}\n{answer}"
