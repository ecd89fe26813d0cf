"""Modules that are compiled in place: their hooks are compiled with them, and they are recorded from outside."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from probe.records import Phase, Role  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")  # modules inside are not recorded


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_of(compiled: str, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 4), nn.Tanh()))
    with torch.no_grad():
        model[1][0].weight *= scale
    for path in compiled.split():
        (model if path == "root" else model.get_submodule(path)).compile(backend="eager")
    return model


def record(path: Path, compiled: str, scale: float = 1.0) -> Path:
    model = model_of(compiled, scale)
    with probe.capture(model, path):
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        probe.step(loss=loss)
    return path


def test_a_root_is_recorded_from_outside(tmp_path: Path) -> None:
    run = probe.open(record(tmp_path / "a.h5", "root"))
    found = {
        (each.phase, each.role) for role in (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT) for each in run[""].of(role)
    }
    assert found == {(Phase.FORWARD, Role.INPUT), (Phase.FORWARD, Role.OUTPUT), (Phase.BACKWARD, Role.GRAD_OUTPUT)}
    assert [each.phase for each in run["0.0"].param] == [Phase.INIT, Phase.INIT, Phase.UPDATE, Phase.UPDATE]


def test_another_weight_inside_is_named(tmp_path: Path) -> None:
    first = probe.compare(record(tmp_path / "a.h5", ""), record(tmp_path / "b.h5", "root", 1.01)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "1.0")


def test_layers_are_compared(tmp_path: Path) -> None:
    found = probe.compare(record(tmp_path / "a.h5", ""), record(tmp_path / "b.h5", "0 1"))
    assert {slot.path_a for slot in found.slots if slot.phase is Phase.FORWARD} == {"", "0", "1"}


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    model = model_of("root 1")
    before = model._compiled_call_impl, model[1]._compiled_call_impl
    probe.start(model, tmp_path / "a.h5")
    model(torch.ones(3, 4))
    assert copy.deepcopy(model)._compiled_call_impl is None
    probe.stop()
    assert (model._compiled_call_impl, model[1]._compiled_call_impl) == before


def test_an_exception_passes_through(tmp_path: Path) -> None:
    model = model_of("root")
    with probe.capture(model, tmp_path / "a.h5"):
        with pytest.raises(Exception, match="shape|size"):
            model(torch.ones(3, 5))
        model(torch.ones(3, 4))
        probe.step()
    assert len(probe.open(tmp_path / "a.h5")[""].output) == 1


def test_a_model_that_is_compiled_behind_the_start_is_said_not_to_be_seen(tmp_path: Path) -> None:
    model = model_of("")
    said = "gradients came, and no module was seen to run: was the model compiled behind probe.start()"
    with pytest.warns(ProbeWarning, match=re.escape(said)), probe.capture(model, tmp_path / "a.h5"):
        torch.compile(model, backend="eager")(torch.ones(3, 4)).square().mean().backward()
        probe.step()


def test_what_is_recorded_as_asked_is_not_said_to_be_unseen(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    model = model_of("")
    with probe.capture(model, tmp_path / "a.h5", phases=["gradient"]):
        torch.compile(model, backend="eager")(torch.ones(3, 4)).square().mean().backward()
        probe.step()
    assert not any("no module was seen to run" in str(each.message) for each in recwarn)
