"""A wrong eps in one RMSNorm of twelve in bfloat16, on every rung of the noise ladder; `probe.noise_run`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import probe
from probe.answer.result import Verdict
from probe.records import Phase

NORM = "post_attention_layernorm"
Recorded = Callable[..., Path]
IDS = torch.randint(0, 128, (4, 32), generator=torch.Generator().manual_seed(1))


def qwen2(layers: int = 12, dtype: torch.dtype = torch.bfloat16, attention: str = "sdpa") -> Any:
    """Make a model; its weights are those of bfloat16 whatever the dtype."""
    config = transformers.Qwen2Config(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation=attention, rms_norm_eps=1e-6,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(config).to(torch.bfloat16).to(dtype)


def wrong_eps(model: Any, layer: int) -> Any:
    getattr(model.model.layers[layer], NORM).variance_epsilon = 1e-5
    return model


def step(model: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    loss = model(input_ids=IDS, labels=IDS, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record a model once: the task, how it is changed, how it is made."""
    folder = tmp_path_factory.mktemp("noise")

    def path(task: str, change: str = "", **options: Any) -> Path:
        file = folder / ("-".join(map(str, [task, change, *options.values()])).replace(" ", "-") + ".h5")
        if not file.exists():
            model = CHANGES[change](qwen2(**options))
            with probe.capture(model, file, task=task):
                probe.step(loss=step(model, torch.optim.AdamW(model.parameters(), lr=1e-3)))
        return file

    return path


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
    "": lambda model: model, "eps in layer 5": lambda model: wrong_eps(model, 5),
    "one kernel": lambda model: with_norms(wrong_eps(model, 6), one_kernel),
}  # fmt: skip


def test_in_float32_no_further_run_is_needed(recorded: Recorded) -> None:
    wide = {"dtype": torch.float32, "attention": "eager"}
    found = probe.compare(recorded("tensor", dtype=torch.float32), recorded("tensor", "eps in layer 5", **wide))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, f"model.layers.5.{NORM}")
    assert found.noise == "built-in model" and found.flip is not None and found.flip.first > 10


@pytest.mark.parametrize(("fault", "layer", "task"), [
    ("eps in layer 5", 5, "tensor"), ("eps in layer 5", 5, "statistics"), ("one kernel", 6, "statistics"),
])  # fmt: skip
def test_in_bfloat16_a_further_run_or_a_reference_names_it(
    recorded: Recorded, fault: str, layer: int, task: str
) -> None:
    """Also where the norms have other classes, which leaves more room: right implementations may round to one side."""
    a, b = recorded(task), recorded(task, fault, attention="eager")
    assert probe.compare(a, b).first_divergence is None, "the built-in model sees none behind other noise"
    for rung, options in (("noise", {"attention": "eager"}), ("reference", {"dtype": torch.float32})):
        found = probe.compare(a, b, **{rung: recorded(task, **options)})
        first = found.first_divergence
        assert first is not None and (first.phase, first.path) == (Phase.FORWARD, f"model.layers.{layer}.{NORM}"), rung
        assert found.flip is not None and found.flip.first > 1
        assert fault == "one kernel" or any(text.startswith("its norm is off by ") for text in first.evidence)


def test_another_way_to_compute_the_same_is_no_divergence(recorded: Recorded) -> None:
    a, b = recorded("statistics"), recorded("statistics", attention="eager")
    for rung in ({}, {"reference": recorded("statistics", dtype=torch.float32)}):
        found = probe.compare(a, b, **rung)
        assert found.verdict is Verdict.ALIGNED, (rung, found.first_divergence)


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


def test_a_noise_run_is_a_floor(recorded: Recorded, tmp_path: Path) -> None:
    model = qwen2()
    with probe.noise_run(model, tmp_path / "a2.h5", task="statistics"):
        probe.step(loss=step(model, torch.optim.AdamW(model.parameters(), lr=1e-3)))
    a, noise = recorded("statistics"), tmp_path / "a2.h5"
    assert probe.compare(a, noise).verdict is Verdict.ALIGNED
    assert probe.compare(a, recorded("statistics", attention="eager"), noise=noise).verdict is Verdict.ALIGNED
    first = probe.compare(a, recorded("statistics", "eps in layer 5", attention="eager"), noise=noise).first_divergence
    assert first is not None and first.path == f"model.layers.5.{NORM}"
