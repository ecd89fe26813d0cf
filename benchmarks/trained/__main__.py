"""``python -m benchmarks.trained [--seeds 3] [--steps 1600]``: clean and faulty pairs of models that look trained, and that are."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import click
import torch
from torch import nn

import probe
from benchmarks.trained.models import (
    LOOKS,
    MAKE,
    batches_of,
    blocks,
    made,
    record,
    sequences,
    text,
    trained,
)

DTYPES = ("fp32", "bf16", "autocast")
FAULTED = 5
"""the layer with a fault: behind the one that makes channels enormous"""


def _eps(net: nn.Module) -> str:
    name = "ln_2" if hasattr(blocks(net)[0], "ln_2") else "post_attention_layernorm"
    norm = getattr(blocks(net)[FAULTED], name)
    forward = norm.forward
    norm.forward = lambda x: 1.1 * forward(x)  # what an eps does to small inputs
    return name


def _activation(net: nn.Module) -> str:
    mlp = blocks(net)[FAULTED].mlp
    name = "act" if hasattr(mlp, "act") else "act_fn"
    setattr(mlp, name, type(getattr(mlp, name))())
    getattr(mlp, name).forward = nn.functional.mish
    return f"mlp.{name}"


FAULTS: dict[str, Callable[[nn.Module], str]] = {"a norm's scale": _eps, "another activation": _activation}
"""each returns the name of the module inside the layer that is wrong"""


def looks(folder: Path, look: str, seeds: int) -> Iterator[tuple[str, str]]:
    """Yield for each pair of models that look trained the dtype, with the fault if there is one, and what probe says."""
    a, b = folder / "a.h5", folder / "b.h5"
    for name, dtype, seed in product(MAKE, DTYPES, range(seeds)):
        batches = batches_of(seed)
        record(a, made(name, "sdpa", look, seed), dtype, batches)
        record(b, made(name, "eager", look, seed), dtype, batches, threads=2)
        yield dtype, probe.compare(a, b).verdict.value
        for fault, plant in FAULTS.items() if not seed else ():
            net = made(name, "eager", look, seed)
            place = plant(net)
            first = probe.compare(a, record(b, net, dtype, batches[:1])).first_divergence
            is_right = first is not None and first.path.endswith(f".{FAULTED}.{place}")
            yield f"{dtype}, {fault}", "named" if is_right else first.path if first else "missed"


def after_training(folder: Path, steps: int, seeds: int) -> Iterator[tuple[str, str]]:
    """Yield the same for models that were trained: other kernels, another batch split, another number of threads."""
    a, b, data = folder / "a.h5", folder / "b.h5", text()
    for name in MAKE:
        weights = trained(name, steps, data)
        for dtype, seed in product(DTYPES, range(seeds)):
            chance = torch.Generator().manual_seed(seed)
            batches = [sequences(data, 8, 64, chance) for _ in range(3)]
            record(a, _with(name, "sdpa", weights), dtype, batches)
            for attention, split, threads in (("eager", 1, 1), ("sdpa", 2, 1), ("sdpa", 1, 2)):
                record(b, _with(name, attention, weights), dtype, batches, split=split, threads=threads)
                yield dtype, probe.compare(a, b).verdict.value


def _with(name: str, attention: str, weights: dict[str, torch.Tensor]) -> nn.Module:
    net = MAKE[name](attention, 6)
    net.load_state_dict(weights)
    return net


@click.command()
@click.option("--seeds", default=3, show_default=True, help="How many of each.")
@click.option("--steps", default=1600, show_default=True, help="Steps of training; 0 leaves trained models out.")
def main(seeds: int, steps: int) -> None:
    """Print a row for each look and dtype."""
    print("| weights | dtype, fault | answers |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for look in LOOKS:
            _print(look, looks(Path(folder), look, seeds))
        if steps:
            _print("trained", after_training(Path(folder), steps, seeds))


def _print(look: str, answers: Iterator[tuple[str, str]]) -> None:
    counts: dict[str, Counter[str]] = {}
    for about, said in answers:
        counts.setdefault(about, Counter())[said] += 1
    for about, found in counts.items():
        print(
            f"| {look} | {about} | {', '.join(f'{count} {text}' for text, count in found.most_common())} |", flush=True
        )


if __name__ == "__main__":
    main()
