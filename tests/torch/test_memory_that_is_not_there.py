"""Tensors that point nowhere: results of collectives that are waited for, memory that the program has freed."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.adapters.torch.adapter import TorchAdapter  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from probe.numbers.packed import unpack  # noqa: E402
from probe.testing import Recording  # noqa: E402

TASKS = pytest.mark.parametrize("task", ["statistics", "tensor", "norms"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "complex64"])
def test_the_result_of_a_collective_is_what_it_holds(dtype: str) -> None:
    """Tensor parallel layers return these: their own address is 0."""
    collectives = pytest.importorskip("torch.distributed._functional_collectives")
    held = torch.arange(6).to(getattr(torch, dtype)).reshape(2, 3)
    adapter = TorchAdapter()
    with adapter.unseen():
        found, plain = (adapter.measure(each, ()) for each in (collectives.AsyncCollectiveTensor(held), held))
        values = adapter.values(collectives.AsyncCollectiveTensor(held))
    assert unpack(found)[:-1] == unpack(plain)[:-1] and (unpack(found).sketch == unpack(plain).sketch).all()
    assert (values == adapter.values(held)).all()


class Frees(nn.Module):
    """Returns a tensor of which nobody needs the memory any more, as it says."""

    def forward(self, x: Tensor) -> Tensor:
        out = x.detach() * 2
        out.untyped_storage().resize_(0)
        return out


@TASKS
def test_freed_memory_is_not_read(tmp_path: Path, task: str) -> None:
    """Of outputs, of a parameter between two steps, and of one that is there again."""
    model = nn.Sequential(nn.Linear(4, 4), Frees())
    weight, kept = model[0].weight, model[0].weight.detach().clone()
    storage = weight.untyped_storage()
    size = storage.nbytes()
    with warnings.catch_warnings(record=True) as caught, probe.capture(model, tmp_path / "a.h5", task=task):
        warnings.simplefilter("always", ProbeWarning)
        for _ in range(3):
            model(torch.ones(2, 4))
            model[0](torch.ones(2, 4)).sum().backward()
            storage.resize_(0)
            probe.step()
            storage.resize_(size)
            weight.data.copy_(kept)
    said = [str(each.message) for each in caught if "freed" in str(each.message)]
    assert len(said) == 1 and said[0].startswith("probe: tensors whose memory the program has freed are not recorded")
    run = Recording(tmp_path / "a.h5")
    assert len(run.steps) == 3 and not run.find(path="1", role="output")
    if task != "norms":
        assert len(run.find(path="0", role="output")) == 6
    assert torch.equal(weight, kept)
