"""`python -m benchmarks.megatron_core.layouts`: are layouts of megatron-core itself aligned with one process, and faults of parallel code named?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import torch

import probe
from benchmarks.megatron_core.__main__ import qwen2, weights_of
from benchmarks.megatron_core.environment import REPO, VERSION, environment
from benchmarks.megatron_core.layouts.cases import BETWEEN, FAULTS, LAYOUTS, MAPPING, STEPS, Layout, whole_of
from benchmarks.megatron_core.layouts.worker import tokens_of
from benchmarks.megatron_core.worker import QWEN2
from benchmarks.ranks.__main__ import Clean, Named, answered, compared, named, page

HEAD = f"""# megatron-core on many ranks

Written by `python -m benchmarks.megatron_core.layouts --markdown docs/evidence/megatron-ranks.md`, which prints each answer. A `GPTModel` of
megatron-core {VERSION} (two layers, hidden size 32, 4 heads in 2 groups, gate and up, biases) trains for two steps with Megatron's own parallel layers,
schedules, `DistributedDataParallel` and `finalize_model_grads`, and PyTorch's AdamW, over gloo on a CPU. Norms are PyTorch's with Megatron's mark of
sequence parallelism: Megatron's own need apex or TransformerEngine. Groups are read from `parallel_state`; no layout is given. `qwen2` is a Qwen2 of
4 layers, compared with that of transformers by the library's mapping; the others have no mapping. Experts get their tokens by all-gather: the
all-to-all dispatcher needs streams of CUDA. Not shown: GPUs, more than four ranks, unseen faults.

"""


def train(folder: Path, layouts: Sequence[Layout]) -> None:
    """Train and record in megatron-core's environment."""
    command = [str(environment()), "-m", "benchmarks.megatron_core.layouts.worker", str(folder)]
    done = subprocess.run(
        command, input=json.dumps([layout.as_json() for layout in layouts]), cwd=REPO, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    if done.returncode or "failed" in done.stdout:
        raise RuntimeError(f"{done.stdout}\n{done.stderr}")


def measured(folder: Path) -> tuple[list[Clean], list[Named]]:
    """Train all layouts and faults, and compare them."""
    clean = [
        layout.but(name=named(f"{task}-{name}"), task=task)
        for task in ("tensor", "statistics")
        for name, layout in LAYOUTS.items()
    ]
    planted = [(fault, layout) for fault in FAULTS for layout in fault.layouts]
    faulty = [LAYOUTS[layout].but(name=named(f"{fault.name}-{layout}"), fault=fault.name) for fault, layout in planted]
    wholes = dict.fromkeys(map(whole_of, clean))
    for whole in wholes:
        if whole.model == "qwen2":
            _record_qwen2(folder, whole)
    train(folder, [*(whole for whole in wholes if whole.model != "qwen2"), *clean, *faulty])
    pairs = [(whole_of(each).name, each.name, each.task, MAPPING if each.model == "qwen2" else None) for each in clean]
    pairs += [
        (named(f"{task}-{a}"), named(f"{task}-{b}"), task, None)
        for task in ("tensor", "statistics")
        for a, b in BETWEEN
    ]
    found = [answered(folder, fault, layout, whole_of(each).name, each.name)
             for (fault, layout), each in zip(planted, faulty, strict=True)]  # fmt: skip
    return [compared(folder, *pair) for pair in pairs], found


def _record_qwen2(folder: Path, layout: Layout) -> None:
    """Record Qwen2 of transformers, and keep its weights as those of a GPTModel."""
    model = qwen2()
    torch.save(weights_of(model), folder / "qwen2.pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with probe.capture(model, folder / f"{layout.name}.h5", task=layout.task, quiet=True, overwrite=True):
        for step in range(STEPS):
            tokens = tokens_of(QWEN2["vocab_size"], step)
            logits = model(input_ids=tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)


@click.command()
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="write the page of evidence here")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="keep the recordings here")
def main(markdown: Path | None, folder: Path | None) -> None:
    """Train, compare, and print what was named; status 1 if a clean layout is not aligned, or a fault not named."""
    with tempfile.TemporaryDirectory() as made:
        place = folder or Path(made)
        place.mkdir(parents=True, exist_ok=True)
        cleans, found = measured(place)
    print(*cleans, *found, sep="\n")
    text = page(cleans, found, HEAD)
    print(text)
    if markdown is not None:
        markdown.write_text(text, encoding="utf-8")
    sys.exit(int(any(each.verdict != "aligned" for each in cleans) or any(not each.has_module for each in found)))


if __name__ == "__main__":
    main()
