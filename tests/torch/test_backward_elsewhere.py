"""Stages of ``torch.distributed.pipelining``, gradients that no backward pass gives to a parameter, backward passes that are compiled."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("torch.distributed")
pipelining = pytest.importorskip("torch.distributed.pipelining")
if not distributed.is_available():
    pytest.skip("this torch has no distributed", allow_module_level=True)
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from probe.records import Phase, Role  # noqa: E402
from probe.testing import Recording  # noqa: E402

STEPS, CHUNKS = 2, 3


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_a_forward_for_shapes_alone_is_not_recorded(tmp_path: Path, alone: None, schedule: str) -> None:
    """A stage runs once on memory that nobody has filled: its numbers are others each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    stage = pipelining.PipelineStage(model, 0, 1, torch.device("cpu"))
    plan = getattr(pipelining, schedule)(stage, CHUNKS, loss_fn=lambda out, target: (out - target).square().mean())
    calls: list[object] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    path = tmp_path / "a.h5"
    with pytest.warns(ProbeWarning, match="to learn shapes"), probe.capture(model, path):
        for step in range(STEPS):
            plan.step(torch.full((6, 4), float(step)), target=torch.ones(6, 4))
            probe.step()
    run = Recording(path)
    assert len(calls) == STEPS * CHUNKS + 1, "torch has run it once for the shapes"
    outputs = run.find(path="", role="output")
    assert [(each.step, each.micro) for each in outputs] == [(s, m) for s in range(STEPS) for m in range(CHUNKS)]
    assert len(run.find(path="0", role="grad_output")) == STEPS * CHUNKS


def test_gradients_that_no_backward_pass_gives_are_said_to_be_those_as_used(tmp_path: Path) -> None:
    model, path = nn.Linear(4, 4), tmp_path / "a.h5"
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        loss: Tensor = model(torch.ones(2, 4)).square().mean()
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
        probe.step()

    with pytest.warns(ProbeWarning) as caught, probe.capture(model, path):
        step()
        step()
    assert ["not as backward left them" in str(each.message) for each in caught] == [True]
    run = probe.open(path)
    assert {each.phase for each in run[""].param_grad} == {Phase.UPDATE}
    assert [each.role for each in run[""].param_grad] == [Role.PARAM_GRAD] * 4


def test_a_backward_pass_that_is_compiled_has_nothing_of_probes_in_it(tmp_path: Path) -> None:
    """Dynamo traces the hooks with it: what they call would be compiled into the user's own code."""
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    graphs: list[Any] = []

    def backend(graph: Any, inputs: object) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    def train(path: Path | None) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if path is not None:
            probe.start(model, path)
        loss = model(torch.ones(2, 4)).square().mean()
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend=backend)):
            loss.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        if path is not None:
            probe.step()
            probe.stop()
        return gradients

    plain, operations = train(None), [*graphs]
    graphs.clear()
    with pytest.warns(ProbeWarning, match="it is compiled"):
        recorded = train(tmp_path / "a.h5")
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert graphs == operations, "the same is compiled"
    run = Recording(tmp_path / "a.h5")
    assert ["error inside" in text for _, _, text in run.notes] == [False]


def test_a_usual_training_says_nothing(tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        with probe.capture(model, tmp_path / "a.h5"):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            probe.step()
