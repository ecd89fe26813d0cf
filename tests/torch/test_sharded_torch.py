"""Parameters that are sharded over ranks (DTensor, as FSDP2 makes them): each rank records what it holds, and asks no other one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("torch.distributed")
if not distributed.is_available():
    pytest.skip("this torch has no distributed", allow_module_level=True)
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import probe  # noqa: E402
from probe.records import Phase, Role  # noqa: E402


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Two ranks, of which this is the first; what they send each other is nothing."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    try:
        yield distributed.device_mesh.init_device_mesh("cpu", (2,))
    finally:
        distributed.destroy_process_group()


class Sharded(nn.Module):
    """Has half of a weight, as its rank does."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to_local())


@pytest.mark.filterwarnings("error::probe.errors.ProbeWarning")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_a_rank_holds_is_recorded(tmp_path: Path, mesh: Any, task: str) -> None:
    tensors = pytest.importorskip("torch.distributed.tensor")
    torch.manual_seed(0)
    half = torch.randn(4, 3)
    model = Sharded(tensors.DTensor.from_local(half.clone(), mesh, [tensors.Shard(0)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    path = probe.start(model, tmp_path / "a.h5", task=task)
    loss = model(torch.ones(2, 3)).sum()
    loss.backward()
    optimizer.step()
    probe.step(loss=loss)
    probe.stop()
    assert path is not None
    run = probe.open(path)
    recorded = {(each.phase, each.role): each for each in [*run[""].param, *run[""].param_grad, *run[""].delta]}
    assert {phase for phase, role in recorded if role is Role.PARAM} == {Phase.INIT, Phase.UPDATE}
    assert all(each.shape == (4, 3) for each in recorded.values())
    assert np.isclose(recorded[Phase.INIT, Role.PARAM].norm, float(half.norm()))
    assert np.isclose(recorded[Phase.GRADIENT, Role.PARAM_GRAD].mean, 2.0)
    assert np.isclose(recorded[Phase.UPDATE, Role.DELTA].mean, -1.0)
    if task == "tensor":
        assert (recorded[Phase.INIT, Role.PARAM].values() == half.numpy()).all()
        assert np.allclose(recorded[Phase.UPDATE, Role.PARAM].values(), half.numpy() - 1)


@pytest.mark.filterwarnings("error::probe.errors.ProbeWarning")
def test_what_is_gathered_while_the_model_runs_is_no_other_parameter(tmp_path: Path, mesh: Any) -> None:
    """FSDP2 leaves the outermost parameters whole until backward has ended."""
    tensors = pytest.importorskip("torch.distributed.tensor")
    model = nn.Linear(3, 4, bias=False)
    sharded = nn.Parameter(tensors.DTensor.from_local(torch.randn(2, 3), mesh, [tensors.Shard(0)]))
    whole = nn.Parameter(torch.randn(4, 3))
    model.weight = sharded
    path = probe.start(model, tmp_path / "a.h5")
    model.weight = whole
    model(torch.ones(2, 3))
    model.weight = sharded
    probe.step()
    probe.stop()
    assert path is not None
    assert [each.shape for each in probe.open(path)[""].param] == [(2, 3)]
