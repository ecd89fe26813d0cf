"""Where the time of a recording goes: `python -m benchmarks.cost --profile`, in a process of its own for each row and size.

What hooks take is timed from their first line to their last. A signal comes every two milliseconds of CPU time; those that come inside a
hook are counted for the innermost function of probe that runs, and so for a part of it. What the garbage collector takes is measured
apart, and so is the thread that writes. A profiler that is told of every call would make Python's share look larger than it is.
"""

from __future__ import annotations

import functools
import gc
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import probe
from benchmarks.cost.model import SIZES, Trainee
from benchmarks.cost.recorders import TOOLS
from benchmarks.cost.rows import ROWS
from probe.adapters.shared import contributions
from probe.adapters.torch import hooks
from probe.adapters.torch.graph import Backwards
from probe.recorder.updates import Updates

_ROOT = str(Path(probe.__file__).parent) + "/"
_EVERY = 0.002
_WARM_UP = 2

PARTS = {
    "statistics, sketch and hash: the compiled loop": ("numbers/kernel",),
    "copies of parameters until they are updated": ("adapters/torch/adapter.py:snapshot",),
    "asking PyTorch about a tensor": (
        "adapters/torch/statistics.py", "adapters/torch/sharded.py", "adapters/torch/identity.py",
        *(f"adapters/torch/adapter.py:{verb}" for verb in (
            "is_tensor", "facts", "version_of", "measure", "measure_update", "identity", "requires_grad", "gradient", "is_leaf",
            "is_view", "sample_of", "summarize")),
    ),
    "the row of a record": ("recorder/measuring.py", "store/", "numbers/packed.py"),
    "locks and modes around every hook": ("adapters/torch/modes.py", "recorder/run.py"),
    "gradients: hooks on tensors, the walk of the graph": (
        "recorder/gradients.py", "adapters/torch/graph.py", "adapters/shared/contributions.py", "adapters/shared/hooking.py",
        "adapters/torch/adapter.py:on_", "adapters/torch/adapter.py:<", "adapters/torch/adapter.py:graph_edges",
        "adapters/torch/hooks.py:numbered_apart",
    ),
    "calls of modules: hooks, arguments, results": (
        "recorder/forward.py", "recorder/calls.py", "recorder/hooks.py", "numbers/slots.py", "adapters/torch/hooks.py",
        "adapters/torch/adapter.py:context", "adapters/torch/parallel.py",
    ),
    "optimizers: parameters, states": (
        "recorder/updates.py", "recorder/behind.py", "recorder/masters.py", "recorder/contents.py", "adapters/torch/adapter.py",
    ),
}  # fmt: skip
"""by their first fitting place: what belongs to a part, as the beginning of file:function"""
_OTHER, COLLECTOR, WRITER = "ends of steps, and the rest", "Python's garbage collector", "the thread that writes"


ENTRIES: tuple[tuple[Any, str], ...] = (
    (hooks._PreHook, "__call__"), (hooks._PostHook, "__call__"), (hooks.GradientHook, "__call__"),
    (contributions._Crossing, "__call__"), (Backwards, "_arrived"), (Backwards, "_finish"),
    (Updates, "before_update"), (Updates, "after_update"), (probe, "step"),
)  # fmt: skip
"""by which PyTorch, and the program, come into probe"""


class Sampler:
    """Times what the main thread spends in probe, and counts where it is."""

    def __init__(self) -> None:
        self.inside = self.collected = 0.0
        """seconds in hooks, and of these in the garbage collector"""
        self.counts: Counter[str] = Counter()
        self._depth = 0
        self._began = 0.0

    def bracketed(self, entry: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is timed. A signal that came before it is handled before it counts as inside."""

        @functools.wraps(entry)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return entry(*args, **kwargs)
            began, self._depth = time.thread_time(), 1
            try:
                return entry(*args, **kwargs)
            finally:
                self._depth = 0
                self.inside += time.thread_time() - began

        return timed

    def __enter__(self) -> None:
        self.inside = self.collected = 0.0
        self.counts.clear()
        gc.callbacks.append(self._collecting)
        self._before = signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)

    def __exit__(self, *exc: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)
        gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        elif self._depth:
            self.collected += time.thread_time() - self._began

    def _sample(self, number: int, frame: FrameType | None) -> None:
        if self._depth:
            self.counts[_part_of(frame)] += 1


def _part_of(frame: FrameType | None) -> str:
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_ROOT):
            place = f"{path[len(_ROOT) :]}:{frame.f_code.co_name}"
            return next((part for part, places in PARTS.items() if place.startswith(places)), _OTHER)
        frame = frame.f_back
    return _OTHER


def profile(row: str, size: str, steps: int) -> dict[str, Any]:
    """Return the milliseconds of CPU time that each part takes of a step, and what a step takes without probe."""
    trainee = Trainee(SIZES[size])
    tool = TOOLS["probe"](ROWS[row].options)
    for _ in range(_WARM_UP):
        trainee.step()
    plain = []
    for _ in range(steps):
        began = time.thread_time()
        trainee.step()
        plain.append(time.thread_time() - began)
    sampler = Sampler()
    for holder, name in ENTRIES:
        setattr(holder, name, sampler.bracketed(getattr(holder, name)))
    with tempfile.TemporaryDirectory() as folder:
        tool.open(trainee, Path(folder))
        for _ in range(_WARM_UP):
            tool.step(trainee.step)
        tool.wait()
        clock = time.pthread_getcpuclockid(probe.session._current.run.writer._thread.ident)
        written = time.clock_gettime(clock)
        with sampler:
            for _ in range(steps):
                tool.step(trainee.step)
        tool.wait()
        written = time.clock_gettime(clock) - written
        records = probe.session._current.run.writer.n_records // (steps + _WARM_UP)
        tool.close()
    own = 1e3 * (sampler.inside - sampler.collected) / steps / max(1, sampler.counts.total())
    parts = {part: own * sampler.counts[part] for part in (*PARTS, _OTHER)}
    parts[COLLECTOR] = 1e3 * sampler.collected / steps
    parts[WRITER] = 1e3 * written / steps
    return {
        "row": row,
        "size": size,
        "steps": steps,
        "records": records,
        "plain": 1e3 * sum(plain) / steps,
        "parts": parts,
    }


def as_markdown(results: list[dict[str, Any]]) -> str:
    """Return profiles as a table: shares of probe's own time, and milliseconds of a step."""
    heads = [f"hidden {SIZES[each['size']].hidden}: {ROWS[each['row']].title}" for each in results]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(results)]
    totals = [sum(each["parts"].values()) for each in results]
    for part in results[0]["parts"]:
        cells = [
            f"{100 * each['parts'][part] / total:.0f} % ({each['parts'][part]:.1f} ms)"
            for each, total in zip(results, totals, strict=True)
        ]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    sums = [f"**{total:.1f} ms**, {each['records']:,} records" for each, total in zip(results, totals, strict=True)]
    lines.append(f"| in all | {' | '.join(sums)} |")
    plain = [f"{each['plain']:.0f} ms" for each in results]
    lines.append(f"| a step without probe | {' | '.join(plain)} |")
    return "\n".join(lines)


def main(row: str, size: str, steps: str, folder: str, out: str) -> None:
    """Profile a row and write its JSON."""
    Path(out).write_text(json.dumps(profile(row, size, int(steps))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
