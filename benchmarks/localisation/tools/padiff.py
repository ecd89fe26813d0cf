"""padiff on the pairs of PyTorch and PaddlePaddle: `python -m benchmarks.localisation.tools.padiff FOLDER -o padiff.json`.

Runs where padiff 0.2.0 is installed beside paddle, torch and probe. Both models run in one process by `auto_diff`, with the
weights, the loss and the optimizer of the pair and the same batch in every step, as padiff has it; once with its default tolerances
and once with an absolute and a relative tolerance of 1e-4, strict. Its answer is the node that it prints as ``*** HERE ***``, or the first parameter in its
report of gradients or weights. Each pair has a process of its own: padiff wraps the functions of both frameworks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

OPTIONS: dict[str, dict[str, Any]] = {
    "padiff": {},
    "padiff, atol 1e-4 strict": {"atol": 1e-4, "rtol": 1e-4, "compare_mode": "strict"},
}


def said_by_padiff(name: str, tool: str, folder: Path) -> dict[str, Any]:
    """Run a pair in this process; return path, phase and step of what padiff names, or why it cannot."""
    import padiff  # first: it wraps what is imported after it

    from benchmarks.localisation.pairs.registry import PARTS
    from benchmarks.localisation.tools.frameworks.paddle_side import PaddleRun
    from benchmarks.localisation.tools.frameworks.torch_side import TorchRun, initial
    from benchmarks.localisation.tools.frameworks.training import batch_of, examples, model_of

    pair = next(pair for pair in PARTS["ports"] if pair.name == name)
    weights = initial(model_of(pair.a.architecture))
    mine, theirs = TorchRun(pair.a, weights), PaddleRun(pair.b, weights, folder / f"{model_of(pair.a.architecture)}.h5")
    inputs, target = batch_of(mine.name, 0)
    paths = {module: path for path, module in mine.model.named_modules()}
    named: list[tuple[str, str]] = []

    def print_info(*args: Any, grad: bool = False, t_root: Any = None, **rest: Any) -> None:
        node = t_root
        while node is not None and node.net not in paths:  # a function: its caller
            node = node.father
        named.append((paths[node.net] if node is not None else "", "backward" if grad else "forward"))

    def log_file(file: str, mode: str, text: str) -> str:
        path = text.partition("torch path:\n")[2].strip().split("\n")[0].split(".")
        named.append((".".join(path[1:-1]), "gradient" if "grad" in file else "update"))
        return file

    def log(*texts: Any) -> None:
        if "Diff found in loss" in str(texts[0]):
            named.append(("", "loss"))

    checks = sys.modules["padiff.trainer.Checker"]
    checks.print_info, checks.log_file, checks.log = print_info, log_file, log
    key = "ids" if inputs.dtype.kind == "i" else "x"
    paddle, torch = sys.modules["paddle"], sys.modules["torch"]
    losses = (
        lambda out: examples("paddle").loss_of(out, paddle.to_tensor(target), theirs.reduction) * theirs.loss_factor,
        lambda out: examples("torch").loss_of(out, torch.from_numpy(target)),
    )
    given = ({key: paddle.to_tensor(inputs)}, {key: torch.from_numpy(inputs)})
    options = {**OPTIONS[tool]}
    right = padiff.auto_diff(
        theirs.model, mine.model, given, auto_weights=False, options=options, loss_fn=losses,
        optimizer=(theirs.optimizer, mine.optimizer), steps=pair.a.steps,
    )  # fmt: skip
    if right or not named:
        return {"named": None}
    return {"named": named[0]}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(folder: Path, output: Path) -> None:
    """Write padiff's answers, graded like probe's; FOLDER gets the recordings that weights are converted by."""
    from benchmarks.localisation.pairs.registry import PARTS
    from benchmarks.localisation.tools.peers import Named, cannot, graded

    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "benchmarks.localisation.tools.frameworks.worker", "torch", str(folder)],
        input="[]",
        text=True,
        check=True,
    )
    found = []
    for pair in (pair for pair in PARTS["ports"] if pair.b.framework == "paddle"):
        for tool in OPTIONS:
            if pair.mapping is not None:
                found.append(
                    cannot(tool, pair, "the trees differ: its LayerMap pairs single layers, and compares nothing else")
                )
                continue
            code = "import json; from pathlib import Path; from benchmarks.localisation.tools.padiff import said_by_padiff as s; "
            code += f"print('ANSWER' + json.dumps(s({pair.name!r}, {tool!r}, Path({str(folder)!r}))))"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
            if not lines:
                found.append(cannot(tool, pair, (done.stderr.strip().splitlines() or ["no answer"])[-1][:200]))
                continue
            named = json.loads(lines[-1].removeprefix("ANSWER"))["named"]
            found.append(graded(tool, pair, None if named is None else Named(*named, step=_step(done.stdout))))
    output.write_text(json.dumps([answer._asdict() for answer in found], indent=1) + "\n", encoding="utf-8")
    click.echo(f"{len(found)} answers")


def _step(text: str) -> int:
    return max(
        (int(line.split("Train Step ")[1].split("=")[0]) for line in text.splitlines() if "Train Step " in line),
        default=0,
    )


if __name__ == "__main__":
    main()
