"""`python -m benchmarks.matching_cost`: time and memory of pairing modules without a mapping, by the number of modules."""

from __future__ import annotations

import multiprocessing
import resource
import time

import click

from probe.mapping import LayerMapping
from probe.matching import match
from probe.matching.automatic.completing import complete
from probe.matching.automatic.outline import outline
from probe.records import ModuleInfo, ParameterInfo

SIZES = 2_000, 20_000, 100_000
_WIDTH = 64
_MIB = 1 << 10
_Side = tuple[list[ModuleInfo], list[ParameterInfo]]


def transformer(modules: int, *, fused: bool) -> _Side:
    """Return a transformer of about so many modules, with q, k and v in one layer or apart."""
    found: list[ModuleInfo] = []
    parameters: list[ParameterInfo] = []

    def add(path: str, kind: str, parent: int, *shapes: tuple[int, ...]) -> int:
        index = len(found)
        found.append(ModuleInfo(path, kind, parent))
        for slot, shape in zip(("weight", "bias"), shapes, strict=False):
            parameters.append(ParameterInfo((f"{path}.{slot}",), index, slot, shape, "float32", True))
        return index

    w = _WIDTH
    root = add("", "GPT" if fused else "Llama", -1)
    add("words" if fused else "embed", "Embedding", root, (1000, w))
    layers = add("blocks" if fused else "layers", "ModuleList", root)
    top = "blocks" if fused else "layers"
    for n in range(modules // (9 if fused else 12)):
        layer = add(f"{top}.{n}", "Block" if fused else "Layer", layers)
        here = f"{top}.{n}"
        attention = add(f"{here}.{'mixer' if fused else 'attn'}", "Attention", layer)
        at = f"{here}.{'mixer' if fused else 'attn'}"
        if fused:
            add(f"{at}.inner", "Linear", attention, (3 * w, w))
        else:
            for name in ("q_proj", "k_proj", "v_proj"):
                add(f"{at}.{name}", "Linear", attention, (w, w))
        add(f"{at}.{'out' if fused else 'o_proj'}", "Linear", attention, (w, w))
        mlp = add(f"{here}.{'ff' if fused else 'mlp'}", "MLP", layer)
        at = f"{here}.{'ff' if fused else 'mlp'}"
        add(f"{at}.{'wide' if fused else 'up'}", "Linear", mlp, (4 * w, w))
        add(f"{at}.{'thin' if fused else 'down'}", "Linear", mlp, (w, 4 * w))
        add(f"{here}.{'one' if fused else 'norm1'}", "LayerNorm", layer, (w,), (w,))
        add(f"{here}.{'two' if fused else 'norm2'}", "LayerNorm", layer, (w,), (w,))
    return found, parameters


def measured(size: int) -> tuple[int, int, int, float, float]:
    """Return modules of both sides, pairs, seconds and MiB."""
    sides = transformer(size, fused=False), transformer(size, fused=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    a, b = (outline(*side) for side in sides)
    certain = match(a.tree, b.tree, LayerMapping(), lambda _: frozenset(), lambda _: frozenset())
    found = complete(certain, a, b)
    seconds = time.perf_counter() - began
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / _MIB
    return len(a), len(b), len(found.pairs), seconds, memory


@click.command()
@click.option("--size", "sizes", multiple=True, type=int, help="About so many modules; may be repeated.")
def main(sizes: tuple[int, ...]) -> None:
    """Pair two transformers under other names, one with q, k and v in one layer, each size in a process of its own.

    Example: python -m benchmarks.matching_cost --size 2000
    """
    click.echo(f"{'modules of A':>12} {'of B':>8} {'pairs':>8} {'seconds':>8} {'MiB':>6}")
    for size in sizes or SIZES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            n, m, pairs, seconds, memory = pool.apply(measured, (size,))
        click.echo(f"{n:>12,} {m:>8,} {pairs:>8,} {seconds:>8.2f} {memory:>6.0f}")


if __name__ == "__main__":
    main()
