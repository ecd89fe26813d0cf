"""What a rank holds or is given a part of, against a run that has it whole: what cannot be compared is said, and is no fault.

One process stands for the first of two ranks. What the other one would send is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("torch.distributed")
if not distributed.is_available():
    pytest.skip("this torch has no distributed", allow_module_level=True)
from facts import one_thread_one_seed  # noqa: F401, E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402
from probe.records import Phase  # noqa: E402

WIDTH, ROWS = 32, 65
"""of the rows, two ranks hold 33 and 32"""


@contextmanager
def ranks(count: int) -> Iterator[None]:
    """This process is the first of so many; what they send each other is nothing."""
    if count == 1:
        yield
        return
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", rank=0, world_size=count, store=fake.FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


def train(path: Path, net: nn.Module, world: int, *, given: slice = slice(None), lr: float = 1e-3) -> Path:
    """Record two steps of a rank that is given a part of the batch; the others' gradients are added up as DDP does."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
    batches = [probe.make_inputs({"x": f"float32[8,{WIDTH}]"}, seed=step, to="torch")["x"] for step in range(2)]
    whole: dict[nn.Parameter, Tensor] = {}
    for parameter in net.parameters() if given != slice(None) else ():
        parameter.register_post_accumulate_grad_hook(lambda p: _replace(p.grad, whole[p]))
    with ranks(world), probe.capture(net, path, task="tensor"):
        for batch in batches:
            if given != slice(None):
                twin = Net()
                twin.load_state_dict(net.state_dict())
                twin(batch).square().mean().backward()
                whole.update(zip(net.parameters(), [each.grad for each in twin.parameters()], strict=True))
            loss = net(batch[given]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return next(path.parent.glob(f"{path.stem}*"))


def _replace(gradient: Tensor, other: Tensor) -> None:
    gradient.copy_(other)


class Net(nn.Module):
    """A norm and two layers; ``rows`` of the first weight, and as many columns of the second, are held by this rank."""

    def __init__(self, rows: int = ROWS, *, is_gathered: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        torch.manual_seed(0)
        up, down = torch.randn(ROWS, WIDTH) / 6, torch.randn(WIDTH, ROWS) / 8
        self.norm = nn.LayerNorm(WIDTH, eps=eps)
        self.up = Layer(up, rows, is_gathered)
        self.down = Layer(down, WIDTH) if is_gathered else Layer(down[:, :rows], WIDTH)
        self.others = None if is_gathered or rows == ROWS else (up[rows:], down[:, rows:])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if self.others is not None:
            self.down.sent = torch.tanh(x @ self.others[0].T) @ self.others[1].T
        return self.down(torch.tanh(self.up(x)))


class Layer(nn.Module):
    """Holds the first rows of a weight. It gathers the rest before it runs, as FSDP does, or adds what other ranks send."""

    def __init__(self, weight: Tensor, rows: int, is_gathered: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight[:rows].clone())
        self.rest, self.sent = weight[rows:] if is_gathered else None, None

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight if self.rest is None else torch.cat([self.weight, self.rest]))
        return y if self.sent is None else y + self.sent


def against(folder: Path, make: Callable[[], Net], world: int = 1, **options: object) -> Comparison:
    """Compare the whole model on so many ranks with what a rank of two does."""
    a = train(folder / "a.h5", Net(), world)
    return probe.compare(a, train(folder / "b.h5", make(), 2, **options))


def test_a_rank_with_its_share_of_the_batch_is_compared_by_what_ranks_add_up(tmp_path: Path) -> None:
    result = against(tmp_path, Net, given=slice(0, 4))
    assert result.verdict is Verdict.UNDECIDED, result.divergences
    assert result.doubts == (
        "B is rank 0 of 2 and was given a part of the batch that A (one process) was given: forward and backward are not compared, "
        "gradients of the whole batch are; give both the same part, or compare with a run of as many ranks",
    )


def test_a_fault_behind_shares_of_a_batch_is_found(tmp_path: Path) -> None:
    first = against(tmp_path, Net, given=slice(0, 4), lr=1.03e-3).divergences[0]
    assert first.hint == "the settings differ: lr 0.001 against 0.00103 (group 0)"


def test_what_a_part_of_a_layer_passes_back_is_judged_where_ranks_have_added_it_up(tmp_path: Path) -> None:
    result = against(tmp_path, lambda: Net(33))
    assert result.verdict is Verdict.UNDECIDED, result.divergences
    assert result.doubts[0].startswith(
        "A is rank 0 of 1, B rank 0 of 2: 2 weights are held in parts on one side, first weight of up (shape [65, 32] against [33, 32])"
    )


def test_a_fault_beside_a_layer_in_parts_is_found(tmp_path: Path) -> None:
    first = against(tmp_path, lambda: Net(33, eps=1e-3)).divergences[0]
    assert first.path == "norm"
    assert str(first.hint).startswith("A used eps 1.0e-05, B 1.0e-03 (verified")


@pytest.mark.parametrize("world", [1, 2])
def test_a_weight_that_one_side_shards_is_no_weight_of_another_size(tmp_path: Path, world: int) -> None:
    result = against(tmp_path, lambda: Net(33, is_gathered=True), world)
    assert result.verdict is Verdict.UNDECIDED, result.divergences
    assert (
        f"A is rank 0 of {world}, B rank 0 of 2: 1 weight is held in parts on one side, first weight of up (shape [65, 32] against [33, 32]); "
        "what a rank holds is compared with a run that is split alike"
    ) in result.doubts


def in_sequence(path: Path, *, adds_up: bool = True) -> Path:
    """Record a step of a rank that holds parts of the layers; backward leaves its share of the norm's gradients, the rest is added later."""
    net, whole = Net(33), {}
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def keep_share(parameter: Tensor) -> None:
        whole[parameter] = parameter.grad.clone()
        parameter.grad.mul_(torch.linspace(0, 1, WIDTH))

    for parameter in net.norm.parameters():
        parameter.register_post_accumulate_grad_hook(keep_share)
    with ranks(2), probe.capture(net, path, task="tensor"):
        loss = net(probe.make_inputs({"x": f"float32[8,{WIDTH}]"}, seed=0, to="torch")["x"]).square().mean()
        loss.backward()
        for parameter in whole if adds_up else ():
            parameter.grad.copy_(whole[parameter])
        optimizer.step()
        probe.step(loss=loss)
    return next(path.parent.glob(f"{path.stem}*"))


@pytest.mark.parametrize("swapped", [False, True])
def test_gradients_that_ranks_add_up_behind_backward_are_judged_as_they_are_used(tmp_path: Path, swapped: bool) -> None:
    files = train(tmp_path / "a.h5", Net(), 1), in_sequence(tmp_path / "b.h5")
    result = probe.compare(*(files[::-1] if swapped else files))
    assert result.verdict is Verdict.UNDECIDED, result.divergences
    assert (
        f"{'B' if swapped else 'A'} is one process, the other side adds gradients up over ranks behind backward: as backward left them "
        "they are not judged, as the optimizer used them they agree"
    ) in result.warnings


def test_gradients_that_ranks_do_not_add_up_are_wrong(tmp_path: Path) -> None:
    result = probe.compare(train(tmp_path / "a.h5", Net(), 1), in_sequence(tmp_path / "b.h5", adds_up=False))
    first = result.divergences[0]
    assert (first.phase, first.path) == (Phase.GRADIENT, "norm")


class Sliced(nn.Module):
    """Hands its layer the first rows, as under context parallelism; what other ranks make of the rest is added here."""

    def __init__(self, rows: int, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.rows, self.scale = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), rows, scale

    def forward(self, x: Tensor) -> Tensor:
        others = functional.linear(x[self.rows :], self.layer.weight, self.layer.bias)
        return self.norm(torch.cat([self.layer(x[: self.rows]), others]) * self.scale)


def test_what_modules_are_handed_in_parts_leaves_it_open(tmp_path: Path) -> None:
    files = train(tmp_path / "a.h5", Sliced(8), 1), train(tmp_path / "b.h5", Sliced(4), 2)
    result = probe.compare(*files)
    assert result.verdict is Verdict.UNDECIDED, result.divergences
    assert result.doubts == (
        "A is rank 0 of 1, B rank 0 of 2: the input 0 of layer is held in parts on one side (shape [8, 32] against [4, 32]); what a rank "
        "holds is compared with a run that is split alike",
    )
    first = probe.compare(files[0], train(tmp_path / "c.h5", Sliced(4, 1.01), 2)).divergences[0]
    assert first.path == ""


class Wrapped(nn.Module):
    """Low-rank weights in modules of their own."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Own(nn.Module):
    """Low-rank weights beside the frozen one."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        like = Wrapped(base)
        self.weight, self.bias = base.weight, base.bias
        down, up = like.down.weight.detach(), like.up.weight.detach()
        self.lora_a, self.lora_b = nn.Parameter(2 * down), nn.Parameter(2 * up)  # no numbers that pair them

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias) + x @ self.lora_a.T @ self.lora_b.T / 4


def test_weights_that_learn_and_have_no_counterpart_are_not_said_to_stay_as_they_are(tmp_path: Path) -> None:
    files = []
    for name, adapted in (("a", Wrapped), ("b", Own)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)).requires_grad_(False)
        net[0] = adapted(net[0])
        files.append(train(tmp_path / f"{name}.h5", net, 1))
    result = probe.compare(*files)
    assert result.doubts == (
        "none of the parameters that were compared is changed in any step, in A or in B; those that are, if any, have no counterpart: "
        "what the optimizers do was not compared; give a layer mapping that pairs them (params)",
    )
    assert "parameter gradients are of weights that have no counterpart: they are not compared" in result.warnings
