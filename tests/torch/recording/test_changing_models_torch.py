"""Models that change while they are recorded, and odd ones: on the meta device, without parameters, nested very deeply."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.errors import ProbeWarning
from probe.testing import Recording
from tests.recorder.faults import room_for
from tests.torch.faults_torch import batch, said
from tests.torch.training import hooks

# ---- Models in PyTorch that change while they are recorded, and odd ones: on the meta device, without parameters.

# ---- models that change --------------------------------------------------------------------------------

NEWS = "added or replaced after probe.start(), and not recorded: "


class Lora(nn.Module):
    """A low-rank addition around a layer, as adapters are injected."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def inject(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model[2] = Lora(model[2])


CHANGES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "add_module": (lambda m: m.add_module("3", nn.Linear(2, 2)), "3"),
    "another layer": (lambda m: m.__setitem__(0, nn.Linear(4, 4)), "0"),
    "another parameter": (lambda m: setattr(m[0], "weight", nn.Parameter(batch()[:4])), "0.weight"),
    "register_parameter": (lambda m: m[1].register_parameter("scale", nn.Parameter(torch.ones(2))), "1.scale"),
    "register_buffer": (lambda m: m[1].register_buffer("seen", torch.ones(2)), "1.seen"),
    "adapters": (inject, "2"),
    "weight norm": (lambda m: nn.utils.parametrizations.weight_norm(m[0]), "0.parametrizations"),
    "fewer": (lambda m: m.__setitem__(1, nn.Identity()), "1"),
    "gone": (lambda m: m.__delitem__(2), ""),
    "frozen": (lambda m: m[0].weight.requires_grad_(False), ""),
    "as it is": (lambda m: None, ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_added_or_replaced_is_told_once(name: str, tmp_path: Path) -> None:
    change, expected = CHANGES[name]

    def train(path: Path | None) -> list[bytes]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        if path:
            probe.start(model, path, task="tensor")
        for number in range(4):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model(batch(number)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 1:
                change(model)
            if path:
                probe.step(loss=number)
        probe.stop()
        assert not [h for h in hooks(model) if h[1] != "_forward_pre_hooks" or h[0] == "all"]
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    plain = train(None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(tmp_path / "a.h5") == plain
    run = Recording(tmp_path / "a.h5")
    wanted = [NEWS + expected] if expected else []
    assert said(caught) == [text for _, _, text in run.notes] == wanted
    assert len(run.steps) == 4 and len(run.find(path="", role="output")) == 4


def test_the_layer_inside_an_injected_adapter_is_recorded_on(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.warns(ProbeWarning, match="not recorded: 2$"), probe.capture(model, tmp_path / "a.h5"):
        for number in range(3):
            if number == 1:
                inject(model)
            model(batch(number)).square().sum().backward()
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert len(run.find(path="2", role="output")) == 3
    assert [len(run.find(step=step, phase="gradient")) for step in range(3)] == [4, 0, 0]


# ---- odd models ----------------------------------------------------------------------------------------


def test_a_model_on_the_meta_device(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5", task="tensor"):
        for _ in range(2):
            model(torch.ones(5, 4, device="meta")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert (
        said(caught)
        == [text for _, _, text in run.notes]
        == ["tensors on the meta device are not recorded; the first is param weight of 0"]
    )
    assert len(run.calls) == 6
    assert all(seen.slot.endswith(".step") for seen in run.seen)  # the optimizer's counts are on no meta device


@pytest.mark.parametrize("task", ["statistics", "tensor", "norms", "structure"])
def test_a_model_without_parameters(task: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Flatten())
    with probe.capture(model, tmp_path / "a.h5", task=task):
        for _ in range(2):
            x = batch().requires_grad_()
            model(x).sum().backward()
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert not run.notes and not run.parameters and len(run.steps) == 2
    assert run.find(path="", role="output", step=1)


# ---- Models in PyTorch that are nested very deeply.

# ---- depth ---------------------------------------------------------------------------------------------


class Level(nn.Module):
    """A layer, and the next level inside it."""

    def __init__(self, inner: nn.Module | None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x if self.inner is None else self.inner(x)


def nested(levels: int) -> nn.Module:
    torch.manual_seed(0)
    model = None
    for _ in range(levels):
        model = Level(model)
    return model


def deepest(forward: Callable[[nn.Module], object]) -> int:
    """Return how many containers deep a model may be nested."""
    low, high = 1, sys.getrecursionlimit()
    while high - low > 1:
        middle = (low + high) // 2
        try:
            forward(contained(middle))
            low = middle
        except RecursionError:
            high = middle
    return low


def contained(levels: int) -> nn.Module:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(levels):
        model = nn.Sequential(model)
    return model


def test_hooks_take_no_depth_from_the_model(tmp_path: Path) -> None:
    """What just fits on the stack without probe fits with it."""

    def forward(model: nn.Module) -> object:
        return model(batch())

    limit, levels = sys.getrecursionlimit(), deepest(forward)
    model = contained(levels)
    with probe.capture(model, tmp_path / "a.h5"):
        forward(model)
        probe.step()
    run = Recording(tmp_path / "a.h5")
    assert not run.notes and len({each.path for each in run.find(role="output")}) == levels + 1
    assert sys.getrecursionlimit() == limit


def in_a_large_thread(function: Callable[[], None]) -> None:
    """Run something with room on the C stack: PyTorch's own calls are deep."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    before = threading.stack_size(512 << 20)
    thread = threading.Thread(target=work)
    thread.start()
    threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]


def test_a_model_nested_900_levels_deep(tmp_path: Path) -> None:
    def work() -> None:
        with room_for(8000):
            model = nested(900)
            plain = model(batch()).detach().numpy().tobytes()
            with probe.capture(model, tmp_path / "a.h5", task="tensor", phases=["forward", "backward"]):
                output = model(batch())
                output.square().sum().backward()
            assert output.detach().numpy().tobytes() == plain and not hooks(model)

    in_a_large_thread(work)
    run = Recording(tmp_path / "a.h5")
    assert len(run.calls) == 1800 and not run.notes
    assert len([s for s in run.find(role="grad_input") if s.path.endswith("layer")]) == 899


@pytest.mark.parametrize("room", [0, 3, 6, 9, 12, 16, 20, 30])
def test_without_room_on_the_stack_for_probe_the_training_goes_on(room: int, tmp_path: Path) -> None:
    """A hook needs some frames more than the module: what it could not do is in the notes."""
    levels = 60
    model = nested(levels)
    marker = [m.register_forward_pre_hook(lambda *_: None) for m in model.modules()]  # so torch takes its slow path

    def forward() -> bytes:
        return model(batch()).detach().numpy().tobytes()

    low, high = 50, 2000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            with room_for(middle):
                forward()
            high = middle
        except RecursionError:
            low = middle
    plain = forward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe.capture(model, tmp_path / "a.h5"):
            with room_for(high + room + 2):
                assert forward() == plain
            probe.step()
            assert forward() == plain
    for handle in marker:
        handle.remove()
    assert not hooks(model)
    run = Recording(tmp_path / "a.h5")
    layers = [s for s in run.find(step=0, role="output") if s.path.endswith("layer")]
    told = any("RecursionError" in text or "could not be said" in text for _, _, text in run.notes)
    assert len(layers) == levels or told
    assert len([s for s in run.find(step=1, role="output") if s.path.endswith("layer")]) == levels
