"""Models that are written otherwise on the two sides: in other parts, in chunks, in another order, in a model's own code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import probe  # noqa: E402
from probe.comparison.answer import Comparison  # noqa: E402
from probe.comparison.result import Divergence, Kind, Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

WIDTH = 16


def compared(
    path: Path, a: nn.Module, b: nn.Module, *, steps: int = 1, autocast: bool = False, mapping: Any = None
) -> Comparison:
    """Train both models and compare them."""
    for name, model in (("a", a), ("b", b)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with probe.capture(model, path / f"{name}.h5"):
            for step in range(steps):
                x = torch.randn(8, 6, WIDTH, generator=torch.Generator().manual_seed(step))
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    made = model(x)
                    loss = sum(each.float().square().mean() for each in (made if isinstance(made, tuple) else (made,)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                probe.step(loss=loss)
    return probe.compare(path / "a.h5", path / "b.h5", mapping=mapping)


def first(found: Comparison) -> Divergence:
    assert found.verdict is Verdict.DIVERGED, found
    assert found.first_divergence is not None
    return found.first_divergence


def load(model: nn.Module, **weights: Tensor) -> nn.Module:
    model.load_state_dict({name.replace("__", "."): value.clone() for name, value in weights.items()})
    return model


def linear(inner: int = WIDTH, out: int = WIDTH, seed: int = 0, **options: Any) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inner, out, **options)


# ---- two calls in another order, of which nothing differs ---------------------------------------------------


class Skips(nn.Module):
    """Two blocks of two branches, with a factor between them; in the second form the branch on the side is called first."""

    def __init__(self, skip_first: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(seed=seed) for seed in range(4))
        self.skip_first, self.factor = skip_first, factor

    def forward(self, x: Tensor) -> Tensor:
        return self._block(2, self.factor * self._block(0, x).tanh())

    def _block(self, begin: int, x: Tensor) -> Tensor:
        main, side = (self.layers[begin + at] for at in (0, 1))
        if self.skip_first:
            aside = side(x)
            return main(x) + aside
        return main(x) + side(x)


def test_the_order_of_calls_that_are_given_and_return_the_same_is_not_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "right").mkdir()
    assert compared(tmp_path / "right", Skips(False), Skips(True)).verdict is Verdict.ALIGNED
    found = first(compared(tmp_path, Skips(False), Skips(True, 1.2)))
    assert (found.kind, found.path) == (Kind.INTRODUCED, "")
    assert "the input 0 of layers.2 differs, what was there before it agrees" in found.evidence


# ---- other parts on both sides ------------------------------------------------------------------------------


class Whole(nn.Module):
    """Attention with one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.inp, self.qkv, self.out = linear(seed=0), linear(out=3 * WIDTH, seed=1), linear(seed=2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.inp(x)).chunk(3, -1)
        return self.out(functional.scaled_dot_product_attention(q, k, v))


class Halves(nn.Module):
    """The same with two, inside a module that the other side does not have."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.first = linear(seed=0)
        whole = linear(out=3 * WIDTH, seed=1)
        q = load(nn.Linear(WIDTH, WIDTH), weight=whole.weight[:WIDTH], bias=whole.bias[:WIDTH])
        kv = load(nn.Linear(WIDTH, 2 * WIDTH), weight=whole.weight[WIDTH:], bias=whole.bias[WIDTH:])
        self.attend = _Attend(q, kv, scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.first(x))


class _Attend(nn.Module):
    def __init__(self, q: nn.Linear, kv: nn.Linear, scale: float) -> None:
        super().__init__()
        self.q, self.kv, self.last, self.scale = q, kv, linear(seed=2), scale

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.kv(x).chunk(2, -1)
        return self.last(((self.q(x) @ k.mT) * self.scale).softmax(-1) @ v)


def test_a_module_is_not_missing_where_the_other_side_has_others_without_a_partner(tmp_path: Path) -> None:
    (tmp_path / "right").mkdir()
    right = compared(tmp_path / "right", Whole(), Halves(WIDTH**-0.5))
    assert right.verdict is Verdict.ALIGNED, right
    found = first(compared(tmp_path, Whole(), Halves(1.0)))
    assert (found.kind, found.path) == (Kind.INTRODUCED, "")
    assert not any("has no counterpart" in text for text in found.evidence)


class OneProduct(nn.Module):
    """A layer of what it is given and of a number, and another one."""

    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2 = linear(WIDTH + 1, 3 * WIDTH), linear(3 * WIDTH, WIDTH, 1)

    def forward(self, t: float, x: Tensor) -> Tensor:
        return self.l2(self.l1(torch.cat([x, torch.full_like(x[..., :1], t)], -1)).tanh())


class TwoProducts(nn.Module):
    """The same, of w @ x + v * t."""

    def __init__(self) -> None:
        super().__init__()
        whole = linear(WIDTH + 1, 3 * WIDTH)
        self.wx = load(nn.Linear(WIDTH, 3 * WIDTH), weight=whole.weight[:, :WIDTH], bias=whole.bias)
        self.wt, self.proj = nn.Parameter(whole.weight[:, WIDTH].detach().clone()), linear(3 * WIDTH, WIDTH, 1)

    def forward(self, t: float, x: Tensor) -> Tensor:
        return self.proj((self.wx(x) + t * self.wt).tanh())


class Euler(nn.Module):
    """Solves the equation whose right side a field is."""

    def __init__(self, name: str, field: nn.Module) -> None:
        super().__init__()
        self.add_module(name, field)
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        for t in (0.0, 0.5):
            x = x + 0.5 * getattr(self, self.name)(t, x)
        return x


def test_a_layer_whose_columns_are_in_part_another_weight_is_no_layer_of_another_size(tmp_path: Path) -> None:
    found = compared(tmp_path, Euler("f", OneProduct()), Euler("field", TwoProducts()))
    assert found.verdict is Verdict.ALIGNED, found


# ---- parts of the batch, one after the other ----------------------------------------------------------------


class Chunked(nn.Module):
    """Runs a batch as it is, or in two parts, as large renderings are."""

    def __init__(self, parts: int, factor: float = 1.0) -> None:
        super().__init__()
        self.inner, self.last, self.parts, self.factor = linear(seed=0), linear(seed=1, out=4), parts, factor

    def forward(self, x: Tensor) -> Tensor:
        found = [self.last(self.inner(each.flatten(0, 1)).relu()).float() for each in x.chunk(self.parts)]
        return self.factor * torch.cat(found).sigmoid().view(len(x), -1)


@pytest.mark.parametrize("autocast", [False, True])
def test_parts_of_a_batch_are_no_fault(tmp_path: Path, autocast: bool) -> None:
    found = compared(tmp_path, Chunked(1), Chunked(2), autocast=autocast)
    assert found.verdict is Verdict.ALIGNED, found


def test_what_is_wrong_behind_parts_of_a_batch_is_not_their_size(tmp_path: Path) -> None:
    found = first(compared(tmp_path, Chunked(1), Chunked(2, 1.2)))
    assert (found.kind, found.path) == (Kind.INTRODUCED, "")


# ---- a module on one side, the model's own code on the other ------------------------------------------------


class Codes(nn.Module):
    """Takes the next of a number of codes, which are averages of what is given, and learns with all of it."""

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(3)))

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x.flatten(0, 1), self.codes).argmin(-1)
        taken = self.codes[near].view_as(x)
        with torch.no_grad():
            self.codes.mul_(self.decay).add_(x.flatten(0, 1)[:5], alpha=1 - self.decay)
        return x + (taken - x).detach()


class Quantized(nn.Module):
    def __init__(self, quantize: Callable[[Tensor], Tensor] | Codes) -> None:
        super().__init__()
        self.inner, self.last, self.quantize = linear(seed=0), linear(seed=1), quantize

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.quantize(self.inner(x)))


def test_a_module_without_partner_is_not_missing_where_a_step_before_agreed(tmp_path: Path) -> None:
    codes = Codes(0.9)  # no module of the model: its code is the model's own
    found = first(compared(tmp_path, Quantized(lambda x: codes.forward(x)), Quantized(Codes(0.5)), steps=3))
    assert (found.step, found.phase, found.kind, found.b[0].path) == (1, Phase.FORWARD, Kind.INTRODUCED, "quantize")
    assert found.evidence[0] == "B calls quantize; A does not (inlined or missing)"


# ---- a norm before a module, or inside it -------------------------------------------------------------------


class Before(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(WIDTH), nn.Sequential(linear(seed=0), nn.Tanh(), linear(seed=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Sequential(nn.LayerNorm(WIDTH), linear(seed=0), nn.Tanh(), linear(seed=1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixing(x)


def test_a_mapping_that_pairs_a_module_with_one_that_holds_its_norm_is_told_so(tmp_path: Path) -> None:
    lines = {"mixing.0": "norm", "mixing.1": "mixer.0", "mixing.3": "mixer.2"}
    (tmp_path / "right").mkdir()
    right = compared(tmp_path / "right", Before(), Inside(), mapping={"Inside": lines, "ignore": ["mixing"]})
    assert right.verdict is Verdict.ALIGNED, right
    found = first(compared(tmp_path, Before(), Inside(), mapping={"Inside": {**lines, "mixing": "mixer"}}))
    assert found.evidence == ("B calls mixing.0 inside mixing, A before mixer: the two are not given the same",)
    assert found.hint.startswith("if B is meant so, mixing is no counterpart of mixer: leave it out of the mapping")


# ---- outputs that other outputs are made of -----------------------------------------------------------------


class Sampled(nn.Module):
    """Returns what it samples around, too."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.mean, self.last, self.detached = linear(seed=0), linear(seed=1), detached

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(x)
        return self.last((mean.detach() if self.detached else mean) + 0.1), mean


def test_a_graph_that_is_cut_behind_an_output_is_not_only_looked_for_in_the_loss(tmp_path: Path) -> None:
    found = first(compared(tmp_path, Sampled(False), Sampled(True)))
    assert found.phase is Phase.LOSS
    assert "the loss agrees, and so does what comes back to the model's other outputs" in found.evidence
    assert found.hint.endswith("or at what the model's own code makes of its output 1: the others may be made of it")


# ---- what is said of weights and calls ----------------------------------------------------------------------


class Shift(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.arange(float(WIDTH)).view(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.by


class Shifted(nn.Module):
    """Adds what it learns itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = linear(), nn.Parameter(torch.arange(float(WIDTH)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.shift


class Shifting(nn.Module):
    """The same, in a module of its own."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.moved = linear(), Shift(shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.moved(self.layer(x))


@pytest.mark.parametrize("shape", [(1, WIDTH), (1, 1, WIDTH), (WIDTH,)])
def test_axes_of_size_1_need_no_line_of_their_own(tmp_path: Path, shape: tuple[int, ...]) -> None:
    mapping = {"Shifting": {"params": {"moved.by": "shift"}}}
    found = compared(tmp_path, Shifted(), Shifting(shape), mapping=mapping)
    assert found.verdict is Verdict.ALIGNED, found
    assert not found.left_out, found.left_out


class Thrice(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.layer, self.times = linear(), times

    def forward(self, x: Tensor) -> Tensor:
        return sum(self.layer(x) for _ in range(self.times)) / self.times


def test_of_several_calls_the_first_is_placed(tmp_path: Path) -> None:
    found = compared(tmp_path, Thrice(1), Thrice(3))
    assert any(
        "calls 1, 2 of 3, the first between call 0 of layer and call 2 of layer, have no" in each.text
        for each in found.changes
    )
