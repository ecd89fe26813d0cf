"""One row at one size, in a process of its own: `python -m benchmarks.cost.measure ROW SIZE PAIRS FOLDER OUT`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.cost.model import SIZES, Size, Trainee
from benchmarks.cost.pairs import Clock, forget_peak, peak_memory, ratios, spread, timed
from benchmarks.cost.recorders import TOOLS
from benchmarks.cost.rows import ROWS, Row

WARM_UP = 2


class Comparison:
    """Two equal models, one of which is recorded, and the times of their steps in turn."""

    def __init__(self, row: Row, size: Size, folder: Path) -> None:
        self._row, self._folder = row, folder / "dump"
        self._plain, self._watched = Trainee(size), Trainee(size)
        self._tool = TOOLS[self._row.tool](self._row.options)
        self._equal = True
        self._times: dict[str, list[tuple[float, float]]] = {"plain": [], "recorded": [], "written": []}
        self._bytes: list[float] = []
        self._files = 0
        self._peak = 0

    def run(self, pairs: int) -> dict[str, Any]:
        """Time pairs of steps; return what goes into the JSON."""
        for _ in range(WARM_UP):
            self._plain.step(), self._watched.step()
        forget_peak()
        alone = [(timed(self._plain.step), timed(self._watched.step)) for _ in range(max(2, pairs // 3))]
        before = peak_memory()
        forget_peak()
        while pairs > 0:
            self._one_file(min(pairs, self._row.pairs_per_file))
            pairs -= self._row.pairs_per_file
        return self._summary(alone, before)

    def _one_file(self, pairs: int) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        self._tool.open(self._watched, self._folder)
        self._pair(keep=False)
        already = self._on_disk()
        for _ in range(pairs):
            self._pair()
        added = [now - then for now, then in zip(self._on_disk(), already, strict=True)]
        self._bytes.append(added[0] / pairs)
        self._files = max(self._files, round(added[1] / pairs))
        self._peak = max(self._peak, peak_memory())
        self._tool.close()
        shutil.rmtree(self._folder)

    def _pair(self, keep: bool = True) -> None:
        losses = []
        plain = timed(lambda: losses.append(self._plain.step()))
        clock = Clock()
        losses.append(self._tool.step(self._watched.step))
        recorded = clock.read()
        self._tool.wait()
        written = clock.read()
        self._equal &= bool(torch.equal(*losses))
        if keep:
            for name, value in zip(self._times, (plain, recorded, written), strict=True):
                self._times[name].append(value)

    def _on_disk(self) -> tuple[int, int]:
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files), len(files)

    def _summary(self, alone: list[tuple[tuple[float, float], tuple[float, float]]], before: int) -> dict[str, Any]:
        wall = {name: [wall for wall, _ in times] for name, times in self._times.items()}
        cpu = {name: [cpu for _, cpu in times] for name, times in self._times.items()}
        return {
            "tool": self._row.tool,
            "version": self._tool.version,
            "options": self._row.options,
            "pairs": len(wall["plain"]),
            "wall_ratio": ratios(wall["plain"], wall["recorded"]),
            "written_ratio": ratios(wall["plain"], wall["written"]),
            "cpu_ratio": ratios(cpu["plain"], cpu["written"]),
            "plain_seconds": spread(wall["plain"]),
            "plain_seconds_before": spread([plain[0] for plain, _ in alone]),
            "unhooked_ratio": ratios([plain[0] for plain, _ in alone], [twin[0] for _, twin in alone]),
            "bytes_per_step": max(self._bytes),
            "new_files_per_step": self._files,
            "memory_growth": max(0, self._peak - before),
            "losses_equal": self._equal,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
        }


def main(row: str, size: str, pairs: str, folder: str, out: str) -> None:
    """Measure a row and write its JSON."""
    result = Comparison(ROWS[row], SIZES[size], Path(folder)).run(int(pairs))
    Path(out).write_text(json.dumps({"row": row, "size": size, **result}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
