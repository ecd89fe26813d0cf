"""``python -m benchmarks.operations``: are faults in functional code named at their line, from statistics and from values of operations?"""

from __future__ import annotations

import ast
import linecache
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch

import probe
from benchmarks.operations import faults
from probe.answer.comparison import Comparison

HERE = Path(faults.__file__)
FUNCTIONS = [
    (each.lineno, each.end_lineno or 0)
    for each in ast.walk(ast.parse(HERE.read_text("utf-8")))
    if isinstance(each, ast.FunctionDef)
]
HEAD = """# Faults in functional code

Written by `python -m benchmarks.operations --markdown docs/evidence/operations.md`. {faults} faults in the functional code of small Qwen2, GPT-2 and ViT
models of transformers and of a block in Megatron's style, and {clean} rewritings that are right, written by somebody who had not seen how operations are
aligned, and recorded with `level="mix"` on both sides. *Exact*: the line with the fault is named; *near*: a line that uses the wrong value first;
*function*: another line of the faulty function; *module*: the right module without its line, or a line elsewhere.
"""


@contextmanager
def planted(name: str, patches: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Put functions into the place of others."""
    before = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    faults.ON = name
    try:
        for owner, attribute, function in patches:
            setattr(owner, attribute, function)
        yield
    finally:
        faults.ON = ""
        for owner, attribute, function in before:
            setattr(owner, attribute, function)


def record(architecture: str, path: Path, task: str) -> None:
    """Record one forward and backward pass."""
    model = faults.build(architecture)
    torch.manual_seed(1)
    ids, pixels, labels = torch.randint(1, 128, (2, 16)), torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    mask = torch.ones(2, 15)
    mask[1, 9:] = 0
    torch.manual_seed(2)
    probe.start(model, path, level="mix", task=task, quiet=True)
    if architecture == "mega":
        loss = model(ids, mask)
    else:
        given = (
            {"pixel_values": pixels, "labels": labels} if architecture == "vit" else {"input_ids": ids, "labels": ids}
        )
        loss = model(**given).loss
    loss.backward()
    probe.step(loss=loss)
    probe.stop()


def grade(name: str, answer: Comparison) -> tuple[str, str]:
    """Return how well a fault is named, and where."""
    first = answer.first_divergence
    if first is None:
        return ("missed" if answer.verdict == "aligned" else "undecided"), ""
    place = (first.b or first.a)[0]
    line = linecache.getline(place.file, place.line) if Path(place.file) == HERE and "/" in place.path else ""
    named = f"`{place.path}` `{line.partition('#')[0].strip()}`" if line else f"`{place.path or 'the model'}`"
    if f"# {name}.x" in line:
        return "exact", named
    if f"# {name}.n" in line:
        return "near", named
    around = [
        span for span in FUNCTIONS if f"# {name}.x" in "".join(linecache.getlines(str(HERE))[span[0] - 1 : span[1]])
    ]
    return ("function" if line and any(a <= place.line <= b for a, b in around) else "module"), named


@click.command()
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here.")
def main(markdown: Path | None) -> None:
    """Record each pair, compare it, and print how it is answered."""
    lines = [HEAD.format(faults=len(faults.FAULTS), clean=len(faults.CLEAN))]
    with tempfile.TemporaryDirectory() as folder:
        for task in ("statistics", "tensor"):
            rows, counts = [], Counter[str]()
            for name, architecture, patches in (*faults.FAULTS, *faults.CLEAN):
                right, other = Path(folder) / f"{task}-{architecture}.h5", Path(folder) / f"{task}-{name}.h5"
                if not right.exists():
                    record(architecture, right, task)
                with planted(name, patches):
                    record(architecture, other, task)
                answer = probe.compare(right, other)
                is_fault = (name, architecture, patches) in faults.FAULTS
                result, named = grade(name, answer) if is_fault else (f"clean: {answer.verdict.value}", "")
                counts[result] += 1
                rows.append(f"| {name} | {architecture} | {result} | {named} |")
                click.echo(f"{task:10} {name:12} {result:10} {named}")
            summary = ", ".join(f"{count} {result}" for result, count in counts.most_common())
            click.echo(summary)
            lines += [
                f"## From {'values' if task == 'tensor' else task}\n\n{summary}.\n",
                "| pair | model | answer | named |",
                "|---|---|---|---|",
                *rows,
                "",
            ]
    if markdown is not None:
        markdown.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
