"""A wrong eps in one RMSNorm of twelve, and other ways to compute the same, on every rung of the noise ladder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from benchmarks.noise.models import attention_in_float32, llama, qwen2, record, resummed, split, threads, wrong_eps
from probe.comparison.result import Verdict
from probe.records import Phase

TASKS = ("tensor", "statistics")
NORM = "post_attention_layernorm"
Recorded = Callable[..., Path]
MODELS = {"qwen2": qwen2, "llama": llama}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Record a model once: its architecture, how it is changed, what is around it, the task."""
    folder = tmp_path_factory.mktemp("noise")
    found: dict[tuple[object, ...], Path] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def path(name: str, task: str, change: str = "", around: str = "", **options: Any) -> Path:
        key = (name, task, change, around, *options.items())
        if key not in found:
            model = CHANGES[change](MODELS[name](**options))
            with AROUND[around]():
                found[key] = record(folder / f"{len(found)}.h5", model, task=task)
        return found[key]

    yield path
    torch.set_num_threads(before)


class OpByOp(torch.nn.Module):
    """RMSNorm without a kernel of its own and without float32: every operation rounds."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def one_kernel(norm: Any) -> torch.nn.RMSNorm:
    """Return PyTorch's own."""
    found = torch.nn.RMSNorm(norm.weight.shape[0], norm.variance_epsilon, dtype=norm.weight.dtype)
    found.weight = norm.weight
    return found


def with_norms(model: Any, make: Callable[[Any], torch.nn.Module]) -> Any:
    """Put norms of another class in the place of all."""
    for layer in model.model.layers:
        layer.input_layernorm = make(layer.input_layernorm)
        layer.post_attention_layernorm = make(layer.post_attention_layernorm)
    model.model.norm = make(model.model.norm) if make is one_kernel else model.model.norm
    return model


CHANGES: dict[str, Callable[[Any], Any]] = {
    "": lambda model: model, "eps in layer 5": lambda model: wrong_eps(model, 5, NORM),
    "eps in the first norm": lambda model: wrong_eps(model, 0, "input_layernorm"),
    "eps in the last layer": lambda model: wrong_eps(model, 11, NORM),
    "op by op": lambda model: with_norms(model, OpByOp),
    **{f"one kernel, {k}": lambda model, k=k: with_norms(wrong_eps(model, k, NORM), one_kernel) for k in (0, 6, 11)},
    "split": split, "resummed": resummed, "resummed in 4": lambda model: resummed(model, 4),
}  # fmt: skip
AROUND: dict[str, Callable[[], Any]] = {
    "": contextlib.nullcontext, "float32 attention": attention_in_float32, "threads": lambda: threads(2),
}  # fmt: skip


# Shows 3


@pytest.mark.parametrize(("name", "task"), [*zip(MODELS, TASKS, strict=True)])
def test_in_float32_no_further_run_is_needed(recorded: Recorded, name: str, task: str) -> None:
    wide = {"dtype": torch.float32, "attention": "eager"}
    found = probe.compare(recorded(name, task, dtype=torch.float32), recorded(name, task, "eps in layer 5", **wide))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, f"model.layers.5.{NORM}")
    assert found.noise == "built-in model" and found.flip is not None and found.flip.first > 10


@pytest.mark.parametrize(
    ("fault", "path", "task"),
    [("eps in layer 5", f"model.layers.5.{NORM}", "tensor"), ("eps in layer 5", f"model.layers.5.{NORM}", "statistics"),
     ("eps in the first norm", "model.layers.0.input_layernorm", "statistics"),
     ("eps in the last layer", f"model.layers.11.{NORM}", "statistics")],
)  # fmt: skip
def test_in_bfloat16_a_further_run_or_a_reference_names_it(
    recorded: Recorded, fault: str, path: str, task: str
) -> None:
    a, b = recorded("qwen2", task), recorded("qwen2", task, fault, attention="eager")
    alone = probe.compare(a, b).first_divergence
    assert alone is None or alone.path == path == "model.layers.0.input_layernorm", (
        "the built-in model sees none behind other noise"
    )
    for rung, options in (("noise", {"attention": "eager"}), ("reference", {"dtype": torch.float32})):
        found = probe.compare(a, b, **{rung: recorded("qwen2", task, **options)})
        first = found.first_divergence
        assert first is not None and (first.phase, first.path) == (Phase.FORWARD, path), rung
        assert found.flip is not None and found.flip.first > 2
        assert any(text.startswith("its norm is off by ") for text in first.evidence)


@pytest.mark.parametrize("rung", ["noise", "reference"])
@pytest.mark.parametrize("layer", [0, 6, 11])
def test_it_is_named_where_the_norms_have_other_classes(recorded: Recorded, rung: str, layer: int) -> None:
    """There is more room for the norm then, since right implementations may round to one side."""
    a, b = recorded("qwen2", "statistics"), recorded("qwen2", "statistics", f"one kernel, {layer}", attention="eager")
    options = {"attention": "eager"} if rung == "noise" else {"dtype": torch.float32}
    first = probe.compare(a, b, **{rung: recorded("qwen2", "statistics", **options)}).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, f"model.layers.{layer}.{NORM}")
    assert (first.a[0].class_name, first.b[0].class_name) == ("Qwen2RMSNorm", "RMSNorm")


# Shows 4


@pytest.mark.parametrize("task", TASKS)
def test_an_implementation_that_rounds_to_one_side_is_no_divergence(recorded: Recorded, task: str) -> None:
    """Op by op in bfloat16 norms are off by more than any further run of A shows; no scale of theirs is wrong."""
    a, b = recorded("qwen2", task), recorded("qwen2", task, "op by op")
    found = probe.compare(a, b, noise=recorded("qwen2", task, attention="eager"))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


OTHERS = [("", "", {"attention": "eager"}), ("", "float32 attention", {}), ("split", "", {}), ("", "threads", {}),
          ("resummed", "", {}), ("resummed in 4", "", {"attention": "eager"})]  # fmt: skip
"""legitimate ways to compute the same: change, what is around, options of the model"""


@pytest.mark.parametrize("other", range(len(OTHERS)))
def test_other_ways_to_compute_the_same_are_no_divergence(recorded: Recorded, other: int) -> None:
    """In bfloat16, by the built-in model, by the other ways, by the reference; the benchmark has all of them."""
    change, around, options = OTHERS[other]
    a, b = recorded("qwen2", "statistics"), recorded("qwen2", "statistics", change, around, **options)
    further = [recorded("qwen2", "statistics", c, w, **o) for k, (c, w, o) in enumerate(OTHERS) if k != other]
    rungs: list[dict[str, Any]] = [{}, {"noise": further}]
    rungs.append({"reference": recorded("qwen2", "statistics", dtype=torch.float32)})
    for rung in rungs:
        found = probe.compare(a, b, **rung)
        assert found.verdict is Verdict.ALIGNED, (rung, found.first_divergence)
        assert found.flip is None or found.flip.factor < 1


def test_a_run_that_equals_a_bit_for_bit_says_nothing(recorded: Recorded) -> None:
    a, b = recorded("qwen2", "statistics"), recorded("qwen2", "statistics", attention="eager")
    equal = recorded("qwen2", "statistics", "", "threads")
    found = probe.compare(a, b, noise=equal)
    if probe.compare(a, equal).flip is None:  # so small products are computed by one thread anyway
        assert f"noise: {equal.name} equals A in all that it has of it, and says nothing of noise" in found.warnings


# probe.noise_run


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_a_noise_run_leaves_no_trace(tmp_path: Path, optimizer: type[torch.optim.Optimizer]) -> None:
    model = qwen2(2)
    options = {"lr": 1e-3, "momentum": 0.9} if optimizer is torch.optim.SGD else {"lr": 1e-3}
    stepper = optimizer(model.parameters(), **options)  # type: ignore[call-arg]
    ids = torch.randint(0, 128, (2, 8), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        stepper.zero_grad()
        torch.nn.functional.dropout(torch.ones(8), 0.5)

    def everything() -> list[torch.Tensor]:
        states = [
            value.clone() for state in stepper.state.values() for value in state.values() if torch.is_tensor(value)
        ]
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [*(value.clone() for value in model.state_dict().values()), *states, *grads, torch.get_rng_state()]

    step()
    model(input_ids=ids, labels=ids).loss.backward()
    before, held = everything(), {id(value) for state in stepper.state.values() for value in state.values()}
    with probe.noise_run(model, tmp_path / "a2.h5", task="tensor"):
        step()
    after = everything()
    assert len(before) == len(after) and all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    assert {id(value) for state in stepper.state.values() for value in state.values() if torch.is_tensor(value)} <= held


@pytest.mark.parametrize("task", TASKS)
def test_a_noise_run_is_a_floor(recorded: Recorded, tmp_path: Path, task: str) -> None:
    model = qwen2()
    ids = torch.randint(0, 128, (4, 32), generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.noise_run(model, tmp_path / "a2.h5", task=task):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
    a, noise = recorded("qwen2", task), tmp_path / "a2.h5"
    assert probe.compare(a, noise).verdict is Verdict.ALIGNED
    assert probe.compare(a, recorded("qwen2", task, attention="eager"), noise=noise).verdict is Verdict.ALIGNED
    first = probe.compare(a, recorded("qwen2", task, "eps in layer 5", attention="eager"), noise=noise).first_divergence
    assert first is not None and first.path == f"model.layers.5.{NORM}"
