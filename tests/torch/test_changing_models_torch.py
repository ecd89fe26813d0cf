"""Models in PyTorch that change while they are recorded, and odd ones: on the meta device, without parameters."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from faults_torch import batch, ended, said  # noqa: F401, E402
from test_neutral import hooks  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from probe.testing import Recording  # noqa: E402

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


@pytest.mark.parametrize("task", ["statistics", "tensor", "norms", "structure"])
def test_a_model_that_never_runs(task: str, tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with probe.capture(model, tmp_path / "a.h5", task=task):
        for number in range(2):
            torch.nn.functional.linear(batch(number), model.weight).sum().backward()
            optimizer.step()
            probe.step(loss=number)
    run = Recording(tmp_path / "a.h5")
    assert not len(run.calls) and len(run.steps) == 2
    notes = {text for _, _, text in run.notes}
    assert all(text.startswith("gradients came, and no module was seen to run") for text in notes) and len(notes) == (
        task != "norms"
    )
    if task in ("statistics", "tensor"):
        assert [s.slot for s in run.find(role="delta")] == ["weight", "bias"] * 2


def test_a_training_without_anything(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with probe.capture(model, tmp_path / "a.h5"):
        pass
    run = Recording(tmp_path / "a.h5")
    assert run.info.closed and not run.seen and not hooks(model)
