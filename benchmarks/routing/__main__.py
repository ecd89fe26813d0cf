"""``python -m benchmarks.routing``: faults and clean pairs of mixtures of experts, bare and with routing replayed."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"PROBE_QUIET": "1", "HF_HUB_OFFLINE": "1"}

import click
import torch
import torch.nn.functional as F

import probe
from benchmarks.routing.models import ARCHITECTURES, FAULTS, FAULTY, Fault, build
from probe.answer.comparison import Comparison

WEIGHTS = ("random", "trained")
SIDES = (
    (torch.bfloat16, "eager"),
    (torch.bfloat16, "grouped_mm"),
    (torch.float32, "grouped_mm"),
    (torch.bfloat16, "batched_mm"),
)
"""of B; A is in float32, its experts one after the other"""
CLEAN = [(name, weights, side) for side in SIDES for name in ARCHITECTURES for weights in WEIGHTS][:20]
HEAD = """# Mixtures of experts

Written by `python -m benchmarks.routing --markdown docs/evidence/routing.md`. Small Qwen3-MoE, Mixtral and DeepSeek-V3 models of transformers, one training step
recorded with values: A in float32 with experts one after the other, B in bfloat16 or with packed experts. {faults} faults in layer {layer} of B, and {clean} right
pairs. Each pair is compared bare; where the answer is `UNDECIDED` and asks for it, B runs again with `routing="a.h5"`. *Named*: the module, or the code
around it that hands the result on. *Random*: as transformers initialises; *trained*: vectors as large as trained ones, and routers surer of their choice.
"""


def record(model: Any, path: Path, **options: Any) -> Path:
    """Record one training step."""
    ids = torch.randint(0, 256, (4, 96), generator=torch.Generator().manual_seed(3))
    probe.start(model, path, task="tensor", overwrite=True, **options)
    logits = model(input_ids=ids).logits.float()
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, 256), ids[:, 1:].reshape(-1))
    loss.backward()
    probe.step(loss=loss)
    probe.stop()
    return path


def answered(a: Path, b: Path, make: Callable[[], Any]) -> tuple[Comparison, Comparison | None]:
    """Return the bare answer, and the one with routing replayed where the bare one asks for it."""
    bare = probe.compare(a, record(make(), b))
    is_asked = any(each.code == "behind-other-routing" for each in bare.reasons)
    return bare, probe.compare(a, record(make(), b, routing=a)) if is_asked else None


def grade(fault: Fault, answer: Comparison) -> str:
    """Return how well a fault is named."""
    found = answer.first_divergence
    if found is None:
        return answer.verdict.value
    path = found.a[0].path
    return "named" if path in [f"model.layers.{FAULTY}.{each}" for each in fault.right] else f"wrong: {path}"


@click.command()
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here.")
@click.option("--only", default="", help="Faults whose names have this in them; no clean pairs.")
def main(markdown: Path | None, only: str) -> None:
    """Record each pair, compare it, and print how it is answered."""
    warnings.simplefilter("ignore")
    began, counts = time.time(), Counter[str]()
    rows: dict[str, list[str]] = {"faults": [], "clean": []}
    with tempfile.TemporaryDirectory() as folder:
        b = Path(folder) / "b.h5"
        a = {
            (name, weights): record(build(name, weights, torch.float32, "eager"), Path(folder) / f"{name}-{weights}.h5")
            for name in ARCHITECTURES
            for weights in WEIGHTS
        }
        for number, fault in enumerate(each for each in FAULTS if only in each.name):
            for weights in WEIGHTS:
                side = SIDES[number % 2]

                def make(fault: Fault = fault, weights: str = weights, side: tuple[torch.dtype, str] = side) -> Any:
                    model = build(fault.architecture, weights, *side)
                    fault.plant(model.model.layers[FAULTY])
                    return model

                bare, routed = answered(a[fault.architecture, weights], b, make)
                grades = [grade(fault, each) for each in (bare, routed) if each is not None]
                counts[f"{weights}: {grades[-1].partition(':')[0]}"] += 1
                counts["exit 0"] += grades[-1] == "aligned"
                line = f"{fault.name} | {fault.architecture} | {weights} | {side[1]} | {grades[0]} | {' '.join(grades[1:])}"
                rows["faults"].append(f"| {line} |")
                click.echo(f"{time.time() - began:4.0f} s  {line}")
        for name, weights, side in [] if only else CLEAN:
            bare, _ = answered(a[name, weights], b, lambda: build(name, weights, *side))  # noqa: B023
            routed = probe.compare(a[name, weights], record(build(name, weights, *side), b, routing=a[name, weights]))
            found = [each.verdict.value for each in (bare, routed)]
            counts.update(f"clean, {how}: {each}" for how, each in zip(("bare", "routing"), found, strict=True))
            line = f"{name} | {weights} | {str(side[0]).removeprefix('torch.')} {side[1]} | {found[0]} | {found[1]}"
            rows["clean"].append(f"| {line} |")
            click.echo(f"{time.time() - began:4.0f} s  {line}")
    said = "; ".join(f"{key} {count}" for key, count in sorted(counts.items()))
    click.echo(said)
    if markdown is not None:
        head = HEAD.format(faults=len(FAULTS), layer=FAULTY, clean=len(CLEAN))
        tables = [
            "| fault | model | weights | experts of B | bare | with routing |\n|---|---|---|---|---|---|", *rows["faults"],
            "\n## Right pairs\n\n| model | weights | B | bare | with routing |\n|---|---|---|---|---|", *rows["clean"],
        ]  # fmt: skip
        markdown.write_text("\n".join([head, f"{said}.\n", "## Faults\n", *tables, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
