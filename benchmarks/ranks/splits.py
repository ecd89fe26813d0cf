"""`python -m benchmarks.ranks.splits`: one batch of 8 split into other micro-batches on each side: clean, and with ten faults."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import probe

SPLITS = (1, 2, 4, 8)
"""micro-batches of 8, 4, 2 and 1 samples"""
SAMPLES, LENGTH, VOCABULARY = 8, 12, 96
CLEAN = "clean"

Model = Any
Fault = Callable[[Model, torch.optim.Optimizer], object]


def _scaled(path: str, factor: float) -> Fault:
    return lambda model, optimizer: model.get_submodule(path).register_forward_hook(
        lambda module, given, made: made * factor
    )


def _set(path: str, name: str, value: object) -> Fault:
    return lambda model, optimizer: setattr(model.get_submodule(path), name, value)


def _shifted(name: str, by: float) -> Fault:
    def plant(model: Model, optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            model.get_parameter(name).add_(by)

    return plant


def _weight_gradient(name: str, factor: float) -> Fault:
    return lambda model, optimizer: model.get_parameter(name).register_hook(lambda gradient: gradient * factor)


def _gradient(path: str, factor: float) -> Fault:
    def scaled(module: nn.Module, given: Any, made: Any) -> tuple[Any, ...]:
        return (given[0] * factor,)

    return lambda model, optimizer: model.get_submodule(path).register_full_backward_hook(scaled)


def _grouped(name: str, value: object) -> Fault:
    return lambda model, optimizer: [group.update({name: value}) for group in optimizer.param_groups]


def _rotary(model: Model, optimizer: torch.optim.Optimizer) -> None:
    model.model.rotary_emb.inv_freq.mul_(0.9)


LAYER = "model.layers.1"
FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "eps of a norm": (_set(f"{LAYER}.input_layernorm", "variance_epsilon", 1e-2), (f"{LAYER}.input_layernorm",)),
    "another activation": (_set(f"{LAYER}.mlp", "act_fn", nn.GELU()), (f"{LAYER}.mlp.act_fn",)),
    "a scaled projection": (_scaled(f"{LAYER}.self_attn.o_proj", 1.01), (f"{LAYER}.self_attn.o_proj",)),
    "scale of attention": (_set(f"{LAYER}.self_attn", "scaling", 0.3), (f"{LAYER}.self_attn",)),
    "rotary frequencies": (_rotary, ("model.rotary_emb",)),
    "a bias": (_shifted(f"{LAYER}.self_attn.q_proj.bias", 0.05), (f"{LAYER}.self_attn.q_proj",)),
    "a weight": (_shifted(f"{LAYER}.mlp.up_proj.weight", 0.01), (f"{LAYER}.mlp.up_proj",)),
    "a gradient on its way": (_gradient(f"{LAYER}.mlp.down_proj", 1.1), (f"{LAYER}.mlp.down_proj",)),
    "the gradient of a weight": (_weight_gradient(f"{LAYER}.mlp.gate_proj.weight", 2.0), (f"{LAYER}.mlp.gate_proj",)),
    "the learning rate": (_grouped("lr", 2e-3), ("",)),
}
"""what is planted on B, and the modules that are right"""


def record(path: Path, micros: int, fault: str, task: str) -> None:
    """Train two steps on the same samples, and record them."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if fault in FAULTS:
        FAULTS[fault][0](model, optimizer)
    with probe.capture(model, path, task=task):
        for step in range(2):
            ids = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(step))
            total = 0.0
            for part in ids.chunk(micros):
                logits = model(input_ids=part, use_cache=False).logits[:, :-1]
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / micros
                loss.backward()
                total += loss.item()
            optimizer.step()
            probe.step(loss=total)
            optimizer.zero_grad()


def answers(folder: Path, task: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield the fault, the micro-batches of both sides, and what is said: right, aligned, or the place."""
    for micros in SPLITS:
        for fault in (CLEAN, *FAULTS):
            record(folder / f"{fault}-{micros}.h5", micros, fault, task)
    for fault in (CLEAN, *FAULTS):
        for mine in SPLITS:
            for theirs in SPLITS:
                found = probe.compare(folder / f"{CLEAN}-{mine}.h5", folder / f"{fault}-{theirs}.h5")
                if fault == CLEAN and mine == theirs:  # the same run twice is never called aligned
                    continue
                first = found.first_divergence
                wanted = (
                    found.verdict == "aligned"
                    if fault == CLEAN
                    else first is not None and first.path in FAULTS[fault][1]
                )
                said = (
                    found.verdict.value if first is None else f"{first.phase.label} {first.path or 'the whole model'}"
                )
                yield fault, mine, theirs, "right" if wanted else said


@click.command()
@click.option("--task", type=click.Choice(["tensor", "statistics"]), multiple=True, help="Default: both.")
def main(task: tuple[str, ...]) -> None:
    """Compare all pairs of splits; status 1 if an answer is wrong."""
    torch.set_num_threads(1)
    wrong = 0
    for each in task or ("tensor", "statistics"):
        counts: dict[str, Counter[str]] = {fault: Counter() for fault in (CLEAN, *FAULTS)}
        with tempfile.TemporaryDirectory() as folder:
            for fault, mine, theirs, said in answers(Path(folder), each):
                counts[fault][
                    said if said == "right" else f"{mine}×{SAMPLES // mine} ⟷ {theirs}×{SAMPLES // theirs}: {said}"
                ] += 1
        table = Table("fault", "right", "otherwise", title=f"micro-batches, {each}", title_justify="left")
        for fault, said in counts.items():
            right = said.pop("right", 0)
            wrong += sum(said.values())
            table.add_row(fault, f"{right} of {right + sum(said.values())}", "\n".join(said))
        Console(width=150).print(table)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
