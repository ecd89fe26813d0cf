"""The batch, the sequence or the model is split otherwise: micro-batches, loss scales, stages, shares of a batch, shards of a layer, phases alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Kind, Verdict
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

# ---- What a rank holds or is given a part of, against a run that has it whole: what cannot be compared is said, and is no fault.
#
# One process stands for the first of two ranks. What the other one would send is computed here.

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
    assert any(
        warning.startswith("weights that were not compared, for want of a counterpart") for warning in result.warnings
    )


# ---- A model against its stages, which the program calls in turn: what it hands from one to the next is no batch.

WIDTH_STAGES = 32
MAPPING = {"TopLayer": {"a.layers.0": "layers.0", "b.layers.0": "layers.1", "b.norm": "norm", "b.head": "head"}}


class Sine(torch.nn.Module):
    """Makes an error five times as large: after a few of them, that of rounding is beyond what one call could make."""

    def forward(self, x: Any) -> Any:
        return (5 * x).sin()


class Block(torch.nn.Module):
    """Adds up in another order where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.is_split = torch.nn.Linear(WIDTH_STAGES, WIDTH_STAGES), False
        self.waves = torch.nn.Sequential(*(Sine() for _ in range(4)))

    def forward(self, x: Any) -> Any:
        if not self.is_split:
            return self.waves(self.up(x))
        parts = [torch.nn.functional.linear(x[..., half], self.up.weight[:, half])
                 for half in (slice(WIDTH_STAGES // 2), slice(WIDTH_STAGES // 2, None))]  # fmt: skip
        return self.waves(parts[0] + parts[1] + self.up.bias)


class Stage(torch.nn.Module):
    def __init__(self, layers: list[Any], norm: Any = None, head: Any = None) -> None:
        super().__init__()
        self.layers, self.norm, self.head = torch.nn.ModuleList(layers), norm, head
        self.is_normed, self.factor = True, 1.0

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(self.factor * x)
        if self.head is None:
            return x
        return self.head(self.norm(x) if self.is_normed else x)


def record(
    path: Path, task: str, *, are_stages: bool, fault: str = "", frozen: bool = False, factor: float = 1.0
) -> Path:
    torch.manual_seed(0)
    blocks, norm, head = [Block(), Block()], torch.nn.LayerNorm(WIDTH_STAGES), torch.nn.Linear(WIDTH_STAGES, 8)
    whole = Stage(blocks, norm, head)
    stages = torch.nn.ModuleDict({"a": Stage(blocks[:1]), "b": Stage(blocks[1:], norm, head)})
    blocks[0].is_split, stages["b"].is_normed = are_stages, fault != "norm"
    blocks[0].requires_grad_(not frozen)
    for each in (whole, stages["a"], stages["b"]):
        each.factor = factor
    optimizer = torch.optim.SGD([each for each in whole.parameters() if each.requires_grad], lr=1e-3)
    x, y = torch.randn(1, 16, WIDTH_STAGES), torch.randn(1, 16, 8)
    with probe.capture(stages if are_stages else whole, path, task=task):
        for given, wanted in zip(x, y, strict=True):
            handed = stages["a"](given) if are_stages else given
            handed = handed * 1.01 if fault == "scale" else handed
            loss = ((stages["b"](handed) if are_stages else whole(given)) - wanted).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss.item())
    return path


def compared(folder: Path, task: str, **options: Any) -> Any:
    same = {name: value for name, value in options.items() if name != "fault"}
    a = record(folder / "a.h5", task, are_stages=False, **same)
    return probe.compare(a, record(folder / "b.h5", task, are_stages=True, **options), MAPPING)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("options", [{"frozen": True}, {"factor": 1.1}])
def test_rounding_is_handed_on(tmp_path: Path, task: str, options: dict[str, Any]) -> None:
    """As it is, though it does not learn, or as the program makes something of it, and it learns."""
    found = compared(tmp_path, task, **options)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_done_to_it_on_the_way_is_the_programs_fault(tmp_path: Path, frozen: bool) -> None:
    found = compared(tmp_path, "statistics", fault="scale", frozen=frozen)
    first = found.first_divergence
    assert (first.phase, first.kind, first.path) == (Phase.FORWARD, Kind.INTRODUCED, "layers.1")
    assert first.evidence[0] == "the input 0 of layers.1 differs, what was there before it agrees"
    assert [each.path for each in found.divergences] == ["layers.1"]
    assert found.inputs.different == ()


def test_a_module_that_a_stage_leaves_out_is_named(tmp_path: Path) -> None:
    first = compared(tmp_path, "statistics", fault="norm").first_divergence
    assert (first.kind, first.path) == (Kind.MISSING, "norm")
    assert first.evidence[0] == "A calls norm; B does not (inlined or missing)"
    assert str(first.hint) == "look at the code that calls norm: B does not call b.norm"


# ---- Loss scales where the batch is split otherwise: gradients of parameters are all that can be compared, and 16 bits make them coarse.

TASKS = ("statistics", "tensor")


class ScalesNet(nn.Module):
    """Attention, whose keys' bias gets a gradient that is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 8)
        self.queries, self.keys = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.tanh(self.up(x)))
        scores = self.queries(y) @ self.keys(y).transpose(-1, -2)
        return scores.softmax(-1) @ y


def train_scales(path: Path, task: str, micros: int, scale: float = 0.0, *, clips_late: bool = True) -> Path:
    """Record two steps, with a loss scale in float16, else in float32."""
    torch.manual_seed(0)
    model = ScalesNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=bool(scale))
    with probe.capture(model, path, task=task):
        for step in range(2):
            given = probe.make_inputs({"x": "float32[8,4,16]", "y": "float32[8,4,8]"}, seed=step, to="torch")
            total = 0.0
            for x, y in zip(given["x"].chunk(micros), given["y"].chunk(micros), strict=True):
                with torch.autocast("cpu", dtype=torch.float16, enabled=bool(scale)):
                    loss = (model(x).float() - y).square().mean() / micros
                scaler.scale(loss).backward()
                total += loss.item()
            if clips_late:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            probe.step(loss=total)
    return path


_OPEN = pytest.mark.xfail(
    strict=True, reason="false alarm: a key's bias, whose gradient is rounding, of 16 bits on one side"
)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("a", "b", "factor"),
    [
        pytest.param((1, 0.0), (2, 1024.0), 1024, marks=_OPEN),
        ((4, 1024.0), (2, 4096.0), 4),
        ((4, 4096.0), (2, 256.0), 1 / 16),
    ],
)
def test_a_loss_scale_that_is_undone_is_no_fault(
    tmp_path: Path, task: str, a: tuple[int, float], b: tuple[int, float], factor: float
) -> None:
    found = probe.compare(train_scales(tmp_path / "a.h5", task, *a), train_scales(tmp_path / "b.h5", task, *b))
    assert found.verdict is Verdict.ALIGNED, found
    text = f"B's gradients are {factor:g} times A's, the optimizer used them without that factor: "
    assert any(warning.startswith(text) for warning in found.warnings), found.warnings


@_OPEN
def test_a_scale_that_is_taken_out_behind_clipping_is_one(tmp_path: Path) -> None:
    a = train_scales(tmp_path / "a.h5", "tensor", 1)
    found = probe.compare(a, train_scales(tmp_path / "b.h5", "tensor", 2, 1024.0, clips_late=False))
    first = found.first_divergence
    assert first is not None and first.phase is Phase.UPDATE
    assert (
        first.hint == "B clips gradients that are still 1024 times as large: divide them by the loss scale, then clip"
    )


# ---- Micro-batches against the whole batch, where axes stand in another order.


class Layers(torch.nn.Module):
    """Works on [samples, positions, width], or on [positions, samples, width] as Megatron does."""

    def __init__(self, is_turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = torch.nn.Embedding(32, 12), torch.nn.LayerNorm(12)
        self.inner, self.head, self.is_turned = torch.nn.Linear(12, 12), torch.nn.Linear(12, 32), is_turned

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        x = self.head(torch.tanh(self.inner(self.norm(x.transpose(0, 1) if self.is_turned else x))))
        return x.transpose(0, 1) if self.is_turned else x


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("is_turned", [False, True], ids=["samples first", "positions first"])
@pytest.mark.parametrize("fault", [None, "inner"])
def test_micro_batches_whose_axes_stand_in_another_order(
    tmp_path: Path, fault: str | None, is_turned: bool, task: str
) -> None:
    ids = torch.randint(0, 32, (4, 6), generator=torch.Generator().manual_seed(1))
    for name, turns, micros in (("whole", not is_turned, 1), ("micros", is_turned, 2)):
        model = Layers(turns)
        if fault and micros > 1:
            model.inner.register_forward_hook(lambda module, given, made: made * 1.01)
        with probe.capture(model, tmp_path / f"{name}.h5", task=task):
            for own in ids.chunk(micros):
                (torch.nn.functional.cross_entropy(model(own).flatten(0, 1), own.flatten()) / micros).backward()
            probe.step()
    answer = probe.compare(tmp_path / "whole.h5", tmp_path / "micros.h5")
    assert [found.path for found in answer.divergences][:1] == ([fault] if fault else []), answer
    inner = answer["inner"]
    assert fault or {inner.output[0].verdict, inner.grad_output[0].verdict} <= {"equal", "noise"}


@pytest.mark.parametrize("is_other", [False, True], ids=["the same", "others in the second"])
@pytest.mark.parametrize("micros", [(1, 2), (2, 1), (2, 4)], ids=str)
def test_labels_that_are_logged_for_each_micro_batch_are_one_tensor(
    tmp_path: Path, micros: tuple[int, int], is_other: bool
) -> None:
    ids = torch.randint(0, 32, (4, 6), generator=torch.Generator().manual_seed(1))
    for name, count in zip("ab", micros, strict=True):
        model, labels = Layers(False), ids.clone()
        labels[1] += int(is_other and name == "b")
        with probe.capture(model, tmp_path / f"{name}.h5", task="tensor"):
            for given, wanted in zip(ids.chunk(count), labels.chunk(count), strict=True):
                probe.log("labels", wanted)
                (torch.nn.functional.cross_entropy(model(given).flatten(0, 1), given.flatten()) / count).backward()
            probe.step()
    answer = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    first = answer.first_divergence
    assert (first is not None and first.kind is Kind.INPUTS) if is_other else answer.verdict is Verdict.ALIGNED, answer
    assert not any("want of a counterpart" in text for text in answer.warnings)


# ---- Some phases alone, over several steps: weights that differ are known by what calls find, and their updates are not.


def recorded(path: Path, phases: list[str] | None, lr: float = 1e-2) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    with probe.capture(model, path, phases=phases):
        for step in range(3):
            loss = model(torch.randn(8, 16, generator=torch.Generator().manual_seed(step))).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("phases", [["forward", "loss"], ["forward", "gradient"], ["forward", "backward"]], ids=str)
def test_weights_that_differ_where_no_update_was_recorded(tmp_path: Path, phases: list[str]) -> None:
    a = recorded(tmp_path / "a.h5", phases)
    with Reader(a) as run:
        found = [int(row["step"]) for row in run.records if (row["phase"], row["role"]) == (Phase.FORWARD, Role.PARAM)]
    assert found == [1] * 4 + [2] * 4, "what calls find written to"
    assert probe.compare(a, recorded(tmp_path / "same.h5", phases)).verdict is Verdict.ALIGNED
    other = probe.compare(a, recorded(tmp_path / "b.h5", phases, lr=2e-2))
    assert other.verdict is Verdict.UNDECIDED, other
    assert re.fullmatch(
        r"step 1 uses weights that differ \(rel \S+, all 4 together\), and what changed them was not recorded: record the phases "
        r"init and update too( \(also in step 2\))?",
        other.doubts[0],
    )


@pytest.mark.parametrize("phases", [["forward"], ["init", "forward"], ["forward", "gradient"]], ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_updates_that_one_side_alone_recorded_are_not_taken_for_something_elses_work(
    tmp_path: Path, phases: list[str], turned: bool
) -> None:
    files = [recorded(tmp_path / "a.h5", None), recorded(tmp_path / "b.h5", phases, lr=2e-2)]
    found = probe.compare(*(files[::-1] if turned else files))
    assert found.verdict is Verdict.UNDECIDED, found
    assert re.fullmatch(
        r"step 1 uses weights that differ \(rel \S+, all 4 together\), and what changed them was not recorded: .*",
        found.doubts[0],
    )


# ---- Tensors that a module's code logs lie between what it was given and what it returns.


class Gate(nn.Module):
    """Logs what it makes of its layer's output; ``shift`` is taken back behind it, or not."""

    def __init__(self, shift: float, is_lost: bool) -> None:
        super().__init__()
        self.layer, self.shift, self.is_lost = nn.Linear(8, 32), shift, is_lost

    def forward(self, x: Tensor) -> Tensor:
        scores = self.layer(x) * (1 + self.shift)
        probe.log("scores", scores)
        return torch.sigmoid(self.layer(x) if self.is_lost else scores)


def recorded_logged(path: Path, shift: float = 0.0, is_lost: bool = False) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(Gate(shift, is_lost), nn.Linear(32, 4))
    with probe.capture(model, path):
        loss = model(torch.randn(16, 8)).square().mean()
        loss.backward()
        probe.step(loss=loss)
    return path


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_logged_tensor_is_judged_before_what_is_made_of_it(tmp_path: Path, is_lost: bool) -> None:
    a = recorded_logged(tmp_path / "a.h5", 0.0, is_lost)
    same = probe.compare(a, recorded_logged(tmp_path / "same.h5", 0.0, is_lost))
    assert same.verdict is Verdict.ALIGNED and same["0"].value[0].verdict == "equal"
    first = probe.compare(a, recorded_logged(tmp_path / "b.h5", 0.01, is_lost)).first_divergence
    assert first is not None and (first.phase, first.role, first.path) == (Phase.FORWARD, Role.VALUE, "0"), first
    assert first.a[0].slot == "scores"
