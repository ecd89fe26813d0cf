"""`python -m benchmarks.megatron_core`: is what is wrong in a GPTModel of megatron-core named, whatever mapping is given?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from transformers import Qwen2Config, Qwen2ForCausalLM

import probe
from benchmarks.megatron_core.environment import REPO, VERSION, environment
from benchmarks.megatron_core.faults import FAULTS
from benchmarks.megatron_core.worker import CLEAN, QWEN2
from probe.answer.comparison import Comparison

sys.path.insert(0, str(REPO / "docs" / "examples"))

from convert_qwen2 import megatron_config, to_megatron  # noqa: E402

DATA = REPO / "tests" / "data"
MAPPINGS = {
    "none": None,
    "library": "megatron-core/qwen2",
    "template": str(DATA / "template-qwen2.5-mindspeed-llm.yaml"),
    "template, from Qwen2": str(DATA / "template-qwen2.5-llamafactory.yaml"),
}


@click.command()
@click.option("--task", type=click.Choice(["tensor", "statistics"]), multiple=True, help="Default: both.")
def main(task: tuple[str, ...]) -> None:
    """Compare a Qwen2 of transformers with a GPTModel of megatron-core, right and with each fault; status 1 if a place is wrong."""
    table = Table(title=f"megatron-core {VERSION}", title_justify="left")
    for name in ("fault", "recorded", *MAPPINGS):
        table.add_column(name)
    sums: dict[str, Counter[str]] = {name: Counter() for name in MAPPINGS}
    with tempfile.TemporaryDirectory() as folder:
        for each in task or ("tensor", "statistics"):
            baseline = _recorded(Path(folder) / each, each)
            for number, fault in enumerate([CLEAN, *FAULTS]):
                cells = []
                for name, mapping in MAPPINGS.items():
                    found = probe.compare(baseline, Path(folder) / each / f"{number}.h5", mapping=mapping)
                    cells.append(_said(fault, found))
                    sums[name][cells[-1].partition(":")[0]] += 1
                table.add_row(fault, each, *cells)
    table.add_section()
    table.add_row(
        "all", "", *(", ".join(f"{count} {kind}" for kind, count in sorted(each.items())) for each in sums.values())
    )
    console = Console()
    (console if console.is_terminal else Console(width=180)).print(table)
    raise SystemExit(1 if any(each["wrong"] for each in sums.values()) else 0)


def _recorded(folder: Path, task: str) -> Path:
    """Record Qwen2 here and all GPTModels in their own environment; return Qwen2's file."""
    folder.mkdir()
    model = qwen2()
    tokens = torch.randint(160, (2, 12), generator=torch.Generator().manual_seed(7))
    state = weights_of(model)
    weights = folder / "weights.pt"
    torch.save({"config": QWEN2, "weights": state, "tokens": tokens}, weights)
    command = [environment(), "-m", "benchmarks.megatron_core.worker", weights, folder, task]
    subprocess.run(list(map(str, command)), check=True, cwd=REPO, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, folder / "qwen2.h5", task=task):
        for _ in range(2):
            logits = model(input_ids=tokens).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return folder / "qwen2.h5"


def qwen2() -> Qwen2ForCausalLM:
    """Return the Qwen2 of transformers, always with the same weights."""
    torch.manual_seed(7)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, use_cache=False,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():  # fresh biases are all 0, norm weights all 1
            if parameter.dim() == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return model.train()


def weights_of(model: Qwen2ForCausalLM) -> dict[str, torch.Tensor]:
    """Return its weights as those of a GPTModel."""
    return to_megatron(model.state_dict(), megatron_config(model.config))


def _said(fault: str, found: Comparison) -> str:
    """Return whether the answer is right, says less, or names another place."""
    first = found.first_divergence
    if fault == CLEAN:
        return "right" if found.verdict.value == "aligned" else f"wrong: {found.verdict.value}"
    if first is None:
        return f"less: {found.verdict.value}"
    wanted = FAULTS[fault]
    named = {ref.path for ref in (*first.a, *first.b)}
    is_right = first.phase.label == wanted.phase if wanted.phase else bool(named.intersection(wanted.places))
    return "right" if is_right else f"wrong: {first.phase.label} {first.path}"


if __name__ == "__main__":
    main()
