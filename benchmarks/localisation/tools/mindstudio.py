"""mindstudio-probe on the same pairs: `python -m benchmarks.localisation.tools.mindstudio --share 0.2 -o peers.json`.

Runs where mindstudio-probe 26.2.0 is installed beside torch and transformers. Dumps modules (level L0) with their tensors by
`PrecisionDebugger`, and compares step by step: `compare`, of which the answer is the first row that it marks as error (or
warning, if none is), and `compare -da`, of which it is the first node. Of a pair, the first step with an answer counts.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from benchmarks.localisation.pairs.pair import Pair, Setup
from benchmarks.localisation.pairs.registry import PARTS
from benchmarks.localisation.tools.peers import Named, PeerAnswer, cannot, graded
from benchmarks.localisation.tools.suite import chosen
from benchmarks.localisation.tools.training import run_of

TOOLS = ("mindstudio-probe compare", "mindstudio-probe compare -da")
_NAME = re.compile(
    r"^Module\.((?P<path>.+)\.)?(?P<cls>[^.]+)\.(?P<phase>forward|backward|parameters_grad)(\.(?P<rest>.*))?$"
)


class Dumps:
    """The dumps of all setups; the debugger is one per process, so each step of each run is a step of one long dump."""

    def __init__(self, folder: Path) -> None:
        from msprobe.pytorch import PrecisionDebugger

        config = {"task": "tensor", "dump_path": str(folder), "rank": [], "step": [], "level": "L0", "async_dump": False,
                  "tensor": {"scope": [], "list": [], "data_mode": ["all"]}}  # fmt: skip
        path = folder.parent / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        self._debugger = PrecisionDebugger(config_path=str(path))
        self._folder, self._count = folder, 0

    def of(self, setup: Setup) -> list[Path]:
        """Train and return a folder for each step, with a folder rank0 in it."""
        run, found = run_of(setup), []
        for index in range(setup.steps):
            self._debugger.start(model=run.model)
            run.step(index)
            self._debugger.stop()
            self._debugger.step()
            step = self._folder / f"step{self._count}"
            next(step.iterdir()).rename(
                step / "rank0"
            )  # "proc" and a number without torch.distributed; -da reads ranks
            self._count += 1
            found.append(step)
        return found


def first_of_compare(a: Path, b: Path, out: Path) -> Named | None:
    """Return what `compare` marks first."""
    _compare(a / "rank0" / "dump.json", b / "rank0" / "dump.json", out, diff_analyze=False)
    with next(out.glob("compare_result*.csv")).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for mark in ("error", "warning"):
        for row in rows:
            if row["Result"] == mark:
                named = _named(row["NPU Name"] if row["NPU Name"] != "N/A" else row["Bench Name"])
                is_frozen = row["Requires_grad Consistent"] == "False" and named.phase == "init"
                return named._replace(phase="gradient") if is_frozen else named
    return None


def first_of_analysis(a: Path, b: Path, out: Path) -> Named | None:
    """Return what `compare -da` names."""
    _compare(a, b, out, diff_analyze=True)
    for path in out.glob("diff_analyze*.json"):
        for nodes in json.loads(path.read_text(encoding="utf-8")).values():
            return _named(nodes[0]["op_name"]) if nodes else None
    return None


def answers(pairs: list[Pair]) -> Iterator[PeerAnswer]:
    """Yield the answers of both commands about each pair."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dumps = Dumps(folder / "dumps")
        for pair in pairs:
            why = _why_not(pair)
            if why:
                yield from (cannot(tool, pair, why) for tool in TOOLS)
                continue
            try:
                a, b = dumps.of(pair.a), dumps.of(pair.b)
                for tool, first in zip(TOOLS, (first_of_compare, first_of_analysis), strict=True):
                    yield _answer(tool, pair, first, a, b, folder / "out")
            except Exception as error:
                yield from (cannot(tool, pair, f"{type(error).__name__}: {error}"[:200]) for tool in TOOLS)
            for step in (folder / "dumps").iterdir():
                shutil.rmtree(step)


def _answer(tool: str, pair: Pair, first: Any, a: list[Path], b: list[Path], out: Path) -> PeerAnswer:
    for step, (mine, theirs) in enumerate(zip(a, b, strict=True)):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        found = first(mine, theirs, out)
        if found is not None:
            return graded(tool, pair, found._replace(step=step))
    return graded(tool, pair, None)


def _why_not(pair: Pair) -> str:
    if pair.a.framework != "torch" or pair.b.framework != "torch" or pair.a.architecture.startswith("port-"):
        return "PaddlePaddle is not supported, and sides in MindSpore are not tried here"
    if pair.mapping is not None:
        return "its data mapping for another structure names every single tensor, and is not tried here"
    if pair.phase == "update":
        return "it does not record what the optimizer does"
    return ""


def _named(name: str) -> Named:
    match = _NAME.match(name)
    if match is None:
        return Named(name, "forward")
    phase, rest = match["phase"], match["rest"] or ""
    if phase == "parameters_grad":
        phase = "gradient"
    elif ".parameters." in f".{rest}." and phase == "forward":
        phase = "init"
    return Named((match["path"] or "").removeprefix("module."), phase)


def _compare(a: Path, b: Path, out: Path, *, diff_analyze: bool) -> None:
    from msprobe.core.compare.auto_compare import compare_auto_mode

    compare_auto_mode(Namespace(
        golden_path=str(a), target_path=str(b), output_path=str(out), diff_analyze=diff_analyze, fuzzy_match=False,
        data_mapping=None, is_print_compare_log=False, xlsx=False, cell_mapping=None, layer_mapping=None,
        consistent_check=False, backend=None, config=None, api_mapping=None, rank=None,
    ))  # fmt: skip


@click.command()
@click.option("--share", type=click.FloatRange(0, 1), default=0.2, show_default=True)
@click.option("--part", type=click.Choice([*PARTS]), default="tuned", show_default=True)
@click.option("--only", multiple=True, help="Pairs whose names match this glob; may be repeated.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(share: float, part: str, only: tuple[str, ...], output: Path) -> None:
    """Write the answers of mindstudio-probe, graded like probe's, as JSON."""
    warnings.simplefilter("ignore")
    pairs = [p for p in chosen(share, part) if not only or any(fnmatchcase(p.name, glob) for glob in only)]
    found = [answer._asdict() for answer in answers(pairs)]
    output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    click.echo(f"{len(pairs)} pairs, {len(found)} answers")


if __name__ == "__main__":
    main()
