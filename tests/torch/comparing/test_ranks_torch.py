"""What ranks add up: gradients within backward or behind it, of some weights alone, what a sharded layer returns and passes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed, nn

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict

# ---- What ranks add up: gradients within backward or behind it, gradients of some weights alone, what a sharded layer returns and passes back.
#
# One process stands for the first of two ranks. What the other one would send is computed here.

WIDTH = 96


@pytest.fixture(autouse=True)
def two_ranks() -> Iterator[None]:
    """Two ranks, of which this is the first; what they send each other is nothing."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.norm(x))))


def batches(step: int) -> tuple[Tensor, Tensor]:
    given = probe.make_inputs({"x": f"float32[16,{WIDTH}]"}, seed=step, to="torch")["x"]
    return given[:8], given[8:]


def of_the_other_rank(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the gradients that the other rank would send."""
    twin = Net()
    twin.load_state_dict(net.state_dict())
    twin(x).square().mean().backward()
    return {name: parameter.grad for name, parameter in twin.named_parameters()}


def behind_backward(net: nn.Module, theirs: dict[str, Tensor]) -> None:
    for name, parameter in net.named_parameters():
        parameter.grad.add_(theirs[name]).div_(2)


def _adds(theirs: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        parameter.grad.add_(theirs[name]).div_(2)

    return hook


def record(
    path: Path, after: Callable[[nn.Module, dict[str, Tensor]], None], within: bool = False, task: str = "statistics"
) -> Path:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    theirs: dict[str, Tensor] = {}
    if within:
        for name, parameter in net.named_parameters():
            parameter.register_post_accumulate_grad_hook(_adds(theirs, name))
    with probe.capture(net, path, task=task):
        for step in range(2):
            mine, others = batches(step)
            theirs.update(of_the_other_rank(net, others))
            loss = net(mine).square().mean()
            loss.backward()
            after(net, theirs)
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return next(path.parent.glob(f"{path.stem}*"))


def nothing(net: nn.Module, theirs: dict[str, Tensor]) -> None:
    pass


def clip(net: nn.Module, to: float = 0.01) -> None:
    torch.nn.utils.clip_grad_norm_(net.parameters(), to)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("swapped", [False, True])
def test_gradients_added_up_within_backward_or_behind_it(tmp_path: Path, task: str, swapped: bool) -> None:
    files = record(tmp_path / "a.h5", behind_backward, task=task), record(tmp_path / "b.h5", nothing, True, task)
    result = probe.compare(*(files[::-1] if swapped else files))
    assert result.verdict is Verdict.ALIGNED, result.divergences
    side = "A" if swapped else "B"
    assert (
        f"{side} adds its gradients up over ranks within backward, the other side behind it: as backward left them they are not "
        "judged, as the optimizer used them they agree"
    ) in result.warnings


def test_gradients_that_are_then_not_used_alike_are_wrong(tmp_path: Path) -> None:
    def half(net: nn.Module, theirs: dict[str, Tensor]) -> None:
        net.up.weight.grad.mul_(0.5)

    result = probe.compare(record(tmp_path / "a.h5", behind_backward), record(tmp_path / "b.h5", half, True))
    assert result.verdict is Verdict.DIVERGED
    assert result.divergences[0].path == "up" and result.divergences[0].evidence[0].startswith(
        "the gradient of this parameter differs"
    )


def some_behind(net: nn.Module, theirs: dict[str, Tensor]) -> None:
    """Forget the norm's."""
    for name, parameter in net.named_parameters():
        if not name.startswith("norm."):
            parameter.grad.add_(theirs[name]).div_(2)


def hint_of(folder: Path, b: Callable[[nn.Module, dict[str, Tensor]], None]) -> str:
    def clipped(
        reduce: Callable[[nn.Module, dict[str, Tensor]], None],
    ) -> Callable[[nn.Module, dict[str, Tensor]], None]:
        def after(net: nn.Module, theirs: dict[str, Tensor]) -> None:
            reduce(net, theirs)
            clip(net)

        return after

    result = probe.compare(record(folder / "a.h5", clipped(behind_backward)), record(folder / "b.h5", clipped(b)))
    assert result.verdict is Verdict.DIVERGED
    return str(result.divergences[0].hint)


def test_weights_whose_gradients_one_side_forgets_to_add_up_are_named(tmp_path: Path) -> None:
    """Clipping scales all others, too: that is not what is wrong."""
    hint = hint_of(tmp_path, some_behind)
    assert hint.startswith(
        "by the numbers: A adds to each of its gradients what backward did not leave there, as a reduction over ranks does, B adds"
    )
    assert (
        "B adds to up.weight, up.bias, down.weight, down.bias what backward did not leave there, as a reduction over ranks does, and multiplies by"
        in hint
    )
    assert hint.endswith("the other 2")


def test_gradients_that_one_side_does_not_add_up_are_told_from_a_factor(tmp_path: Path) -> None:
    hint = hint_of(tmp_path, nothing)
    assert hint.startswith(
        "by the numbers: A adds to each of its gradients what backward did not leave there, as a reduction over ranks does, B clips"
    )


class Added(torch.autograd.Function):
    """Adds what the other rank sends, forward or back."""

    @staticmethod
    def forward(ctx: object, x: Tensor, theirs: Tensor, back: bool) -> Tensor:
        ctx.back = back
        ctx.save_for_backward(theirs)
        return x.clone() if back else x + theirs

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient + ctx.saved_tensors[0] if ctx.back else gradient, None, None


class Part(nn.Linear):
    """A rank's part of a layer; ``adds`` says where what the ranks compute is added up."""

    def __init__(self, adds: str) -> None:
        super().__init__(WIDTH, WIDTH)
        self.adds = adds

    def forward(self, x: Tensor) -> Tensor:
        theirs = torch.linspace(-1, 1, WIDTH).expand_as(x).sin()
        x = Added.apply(x, theirs, True) if self.adds == "back" else x
        y = nn.functional.linear(x, self.weight)
        return (Added.apply(y, theirs, False) if self.adds == "forward" else y) + self.bias


def part(path: Path, adds: str) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), Part(adds), nn.Linear(WIDTH, WIDTH))
    with probe.capture(net, path, task="tensor"):
        net(batches(0)[0]).square().mean().backward()
        probe.step()
    return next(path.parent.glob(f"{path.stem}*"))


@pytest.mark.parametrize(
    ("adds", "said"),
    [
        ("forward", "B returns x · Wᵀ + bias of what this rank holds, A does not: as where what all ranks compute is added up on A only "
                    "(verified from the recorded input and weight): look at the reduction over ranks (all-reduce, reduce-scatter) at "
                    "the end of this layer"),
        ("back", "B passes back what this rank's own weight and output's gradient give, A does not: as where what all ranks pass back "
                 "is added up on A only (verified from the recorded weight and gradient): look at the reduction over ranks "
                 "(all-reduce, reduce-scatter) in this layer's backward"),
    ],
)  # fmt: skip
def test_a_layer_that_does_not_add_up_what_the_ranks_compute(tmp_path: Path, adds: str, said: str) -> None:
    first = probe.compare(part(tmp_path / "a.h5", adds), part(tmp_path / "b.h5", "")).divergences[0]
    assert (first.path, first.hint) == ("1", said)


class Column(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class Row(nn.Module):
    """Adds the bias, and what the other rank sends."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias, self.sent = nn.Parameter(weight.clone()), nn.Parameter(bias.clone()), None

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight.T
        return (y if self.sent is None else y + self.sent) + self.bias


class Pair(nn.Module):
    """A layer that is split by its outputs and one that is split by its inputs, as Megatron has them, between two norms."""

    def __init__(self, parts: int, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        up, down, bias = torch.randn(2 * WIDTH, WIDTH) / 10, torch.randn(WIDTH, 2 * WIDTH) / 10, torch.randn(WIDTH)
        kept, self.others = slice(0, 2 * WIDTH // parts), slice(2 * WIDTH // parts, None)
        self.first, self.last = nn.LayerNorm(WIDTH, eps=1e-3 if fault == "eps" else 1e-5), nn.LayerNorm(WIDTH)
        self.up, self.down, self.fault = Column(up[kept]), Row(down[:, kept], bias), fault
        self._up, self._down = up[self.others], down[:, self.others]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if len(self._up) and self.fault != "forgotten":
            self.down.sent = torch.tanh(x.detach() @ self._up.T) @ self._down.T
        return self.last(self.down(torch.tanh(self.up(x))))


def run(path: Path, parts: int, fault: str = "") -> Path:
    model = Pair(parts, fault)
    with probe.capture(model, path, task="tensor", phases=["init", "forward"]):
        model(batches(0)[0])
        probe.step()
    return next(path.parent.glob(f"{path.stem}*"))


def against_one_process(folder: Path, fault: str = "") -> Comparison:
    b = run(folder / "b.h5", 2, fault)
    distributed.destroy_process_group()
    try:
        a = run(folder / "a.h5", 1)
    finally:
        fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
        distributed.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    return probe.compare(a, b)


def test_a_rank_of_a_split_model_against_one_process_is_undecided_and_why(tmp_path: Path) -> None:
    result = against_one_process(tmp_path)
    assert result.verdict is Verdict.UNDECIDED, result.divergences
    assert (
        "A is rank 0 of 1, B rank 0 of 2: 2 weights are held in parts on one side, first weight of up (shape [192, 96] against [96, 96]); "
        "what a rank holds is compared with a run that is split alike"
    ) in result.doubts


def test_faults_of_what_is_whole_on_both_sides_are_found_all_the_same(tmp_path: Path) -> None:
    first = against_one_process(tmp_path, "eps").divergences[0]
    assert first.path == "first"
    assert str(first.hint).startswith("A used eps 1.0e-05, B 1.0e-03 (verified")


def test_a_split_layer_that_returns_something_else_is_found(tmp_path: Path) -> None:
    first = against_one_process(tmp_path, "forgotten").divergences[0]
    assert first.path == "down"
    assert first.evidence == (
        "its inputs were not compared, its output differs",
        "inputs that are not known to agree: argument 0 (on one side only, or of another kind)",
        "not compared: its weight, of which a rank of one side holds a part",
    )
    assert str(first.hint).startswith(
        "look at how this layer is split over ranks: which part each rank holds, what is added up"
    )


def test_other_sizes_without_ranks_are_a_fault(tmp_path: Path) -> None:
    distributed.destroy_process_group()
    try:
        files = run(tmp_path / "a.h5", 1), run(tmp_path / "b.h5", 2)
    finally:
        fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
        distributed.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    first = probe.compare(*files).divergences[0]
    assert first.hint == "the two models are not built with the same sizes"
