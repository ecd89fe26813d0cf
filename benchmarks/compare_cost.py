"""What a comparison costs in CPU time and memory: `python -m benchmarks.compare_cost`.

Records a Qwen2 (random weights, made here) several times in a temporary folder and compares the recordings, each
comparison in a process of its own. CPU time is user and system time of all threads, after the imports. What the verdict
adds is the CPU time of judging (all that a step's comparison does but measuring its pairs of tensors and reading tables), divided by
that of all else.
"""

from __future__ import annotations

import functools
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
MIB = 1 << 20
SEED = 20240611
_COMPARISONS = 10
"""over which the time that judging takes is added up"""


@dataclass(frozen=True)
class Model:
    """One recording of the benchmark."""

    task: str
    hidden: int
    layers: int
    sequence: int
    attention: str = "sdpa"
    noise: float = 0.0
    """relative size of what is added to every weight"""


@dataclass(frozen=True)
class Cost:
    """What one comparison cost: the median of several, each in a process of its own."""

    case: str
    rows: int
    """records of A"""
    file_mib: float
    cpu_s: float
    cpu_range_s: tuple[float, float]
    wall_s: float
    rss_imports_mib: float
    rss_peak_mib: float
    read_mib: float
    """bytes that the process asked the system for"""
    equal: int
    """pairs of tensors that are bit-equal, of `compared`"""
    compared: int
    verdict: str
    verdict_adds: float
    """CPU time of judging, divided by that of all else"""

    @property
    def growth_mib(self) -> float:
        """Peak memory over what the imports take."""
        return self.rss_peak_mib - self.rss_imports_mib


SMALL = {"task": "statistics", "hidden": 128, "layers": 7, "sequence": 64}
LARGE = {"task": "tensor", "hidden": 512, "layers": 8, "sequence": 256}
BASELINES = {"baseline, statistics": Model(**SMALL), "baseline, tensors": Model(**LARGE)}
CASES = {
    "statistics": Model(**SMALL, attention="eager", noise=1e-7),
    "tensors, none equal": Model(**LARGE, attention="eager", noise=1e-7),
    "tensors, a part equal": Model(**LARGE, attention="eager"),
    "tensors, all equal": Model(**LARGE),
}
"""side B of each comparison; side A is the baseline of the same task"""


def record(model: Model, path: Path) -> None:
    """Record one training step of a Qwen2."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    import probe

    torch.set_num_threads(2)
    torch.manual_seed(SEED)
    config = Qwen2Config(
        vocab_size=4096, hidden_size=model.hidden, intermediate_size=4 * model.hidden, num_hidden_layers=model.layers,
        num_attention_heads=model.hidden // 64, num_key_value_heads=model.hidden // 64,
        attn_implementation=model.attention, tie_word_embeddings=False,
    )  # fmt: skip
    net = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1 + model.noise * torch.randn_like(parameter))
    ids = torch.randint(4096, (2, model.sequence), generator=torch.Generator().manual_seed(SEED))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    with probe.capture(net, path, task=model.task):
        loss = net(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)


def compare_once(a: str, b: str) -> dict[str, object]:
    """Compare two recordings in this process, which must be a fresh one; return what it cost."""
    import probe
    import probe.comparing
    from probe.store.reading.reader import Reader

    imports, before = _memory("VmRSS"), _bytes_read()
    cpu, wall = time.process_time(), time.perf_counter()
    found = probe.compare(a, b)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak, read = _memory("VmHWM"), _bytes_read() - before
    with Reader(a) as reader:
        rows = len(reader.records)
    return {
        "rows": rows, "cpu_s": cpu, "wall_s": wall, "rss_imports_mib": imports, "rss_peak_mib": peak,
        "read_mib": read / MIB, "equal": sum(slot.verdict == "equal" for slot in found.slots),
        "compared": found.coverage.compared, "verdict": found.verdict.value, "verdict_adds": _verdict_adds(a, b),
    }  # fmt: skip


def _verdict_adds(a: str, b: str) -> float:
    """Compare a few times more, with clocks around judging and around the measuring that it asks for.

    Without Python's garbage collector, as `timeit` measures: it is chance whether that stops the one or the other.
    """
    import probe
    from probe import comparing
    from probe.verdict.steps.step import Step

    spent = {"judging": 0.0, "measuring": 0.0}

    def timed(owner: Any, name: str, kind: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return original(*args, **kwargs)
            finally:
                spent[kind] += time.process_time() - start

        setattr(owner, name, clocked)

    timed(comparing, "judge", "judging")
    timed(Step, "error", "measuring")
    gc.collect()
    gc.disable()
    start = time.process_time()
    for _ in range(_COMPARISONS):
        probe.compare(a, b)
    judging = spent["judging"] - spent["measuring"]
    return judging / (time.process_time() - start - judging)


def _memory(field: str) -> float:
    """Return a line of ``/proc/self/status`` in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def cost(case: str, a: Path, b: Path, repeats: int) -> Cost:
    """Compare two recordings, each time in a new process; return the median."""
    command = [sys.executable, "-m", "benchmarks.compare_cost", "--once", str(a), str(b)]
    runs = [
        json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout) for _ in range(repeats)
    ]
    times = [run["cpu_s"] for run in runs]
    median = {
        name: statistics.median(run[name] for run in runs) for name in runs[0] if not isinstance(runs[0][name], str)
    }
    return Cost(case=case, file_mib=a.stat().st_size / MIB, cpu_range_s=(min(times), max(times)),
                verdict=runs[0]["verdict"], **median)  # fmt: skip


def _record_apart(path: Path) -> None:
    """Record what the file is named after, in a process of its own."""
    subprocess.run([sys.executable, "-m", "benchmarks.compare_cost", "--record", str(path)], cwd=ROOT, check=True)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(CASES)), help="Measure this case; may be repeated.")
@click.option("--repeats", default=3, show_default=True, help="How often each comparison is made.")
@click.option("--json", "document", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Leave the recordings in this folder.")
@click.option("--once", nargs=2, type=click.Path(), hidden=True)
@click.option("--record", "recorded", type=click.Path(path_type=Path), hidden=True)
def main(
    only: tuple[str, ...], repeats: int, document: Path | None, keep: Path | None, once: tuple[str, str] | None,
    recorded: Path | None,
) -> None:  # fmt: skip
    """Record, compare, and print what the comparisons cost.

    Example: python -m benchmarks.compare_cost --json compare_cost.json
    """
    if once:
        click.echo(json.dumps(compare_once(*once)))
        return
    if recorded:
        record({**BASELINES, **CASES}[recorded.stem], recorded)
        return
    with tempfile.TemporaryDirectory() as temporary:
        found = [_case(case, keep or Path(temporary), repeats) for case in only or CASES]
    Console(width=160).print(_table(found))
    if document:
        text = json.dumps([{**asdict(each), "growth_mib": each.growth_mib} for each in found], indent=2)
        document.write_text(text + "\n", encoding="utf-8")


def _case(case: str, folder: Path, repeats: int) -> Cost:
    folder.mkdir(parents=True, exist_ok=True)
    baseline = next(name for name, model in BASELINES.items() if model.task == CASES[case].task)
    a, b = (folder / f"{name}.h5" for name in (baseline, case))
    for path in (a, b):
        if not path.exists():
            _record_apart(path)
    return cost(case, a, b, repeats)


def _table(found: list[Cost]) -> Table:
    table = Table("case", "rows", "MiB a side", "CPU s", "range", "wall s", "imports MiB", "peak MiB", "growth MiB",
                  "read MiB", "equal", "verdict", "it adds")  # fmt: skip
    for each in found:
        low, high = each.cpu_range_s
        table.add_row(
            each.case, str(each.rows), f"{each.file_mib:,.0f}", f"{each.cpu_s:.2f}", f"{low:.2f}–{high:.2f}",
            f"{each.wall_s:.2f}", f"{each.rss_imports_mib:.0f}", f"{each.rss_peak_mib:.0f}", f"{each.growth_mib:.0f}",
            f"{each.read_mib:,.0f}", f"{each.equal:.0f} of {each.compared:.0f}", each.verdict,
            f"{each.verdict_adds:.0%}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
