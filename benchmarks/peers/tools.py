"""What the tools themselves say of two dumps: mindstudio-probe's `compare`, PaDiff's checks of reports and parameters."""

from __future__ import annotations

import csv
import re
import subprocess
import tempfile
from pathlib import Path

from benchmarks.peers.truth import MSPROBE, Pair

_NAME = re.compile(r"(?:Module|Cell)\.(?P<path>.+)\.[^.]+\.(?P<pass>forward|backward|parameters_grad)(?:\..*)?")
_CHECK = """import sys, padiff
from padiff.checker import check_params, check_report
sides = [f"{each}/net/step_0/rank_0" for each in sys.argv[1:]]
cfg = {"atol": 1e-4}
print("PASSED", check_report(*sides, cfg=cfg), check_params(*sides, cfg=cfg))"""
"""with the tolerance that its README has"""
_ROUTE = re.compile(r"Route: net\.(\S+)")


def said(python: Path, pair: Pair, folder: Path) -> str:
    """Return what the tool of two dumps marks first in their first step, and how many tensors it marks."""
    sides = [folder / each.label for each in (pair.a, pair.b)]
    return _of_msprobe(python, pair, *sides) if pair.a.tool == MSPROBE else _of_padiff(python, *sides)


def _of_msprobe(python: Path, pair: Pair, a: Path, b: Path) -> str:
    golden, target = (next(each.glob("step0/*/dump.json")) for each in (a, b))
    with tempfile.TemporaryDirectory() as out:
        command = [python.parent / "msprobe", "compare", "-tp", target, "-gp", golden, "-o", out]
        command += ["-cm"] if pair.b.framework == "mindspore" else []
        done = subprocess.run(command, capture_output=True, text=True)
        found = sorted(Path(out).glob("compare_result*.csv"))
        if not found:
            return f"does not run: {(done.stdout + done.stderr).strip().splitlines()[-1][:80]}"
        rows = list(csv.DictReader(found[0].read_text(encoding="utf-8").splitlines()))
    for mark in ("error", "warning"):
        marked = [row for row in rows if row["Result"] == mark]
        for row in marked:
            name = _NAME.fullmatch(row["NPU Name"] if row["NPU Name"] != "N/A" else row["Bench Name"])
            where = f"{name['path']} ({name['pass']})" if name else row["NPU Name"]
            return f"{where}; {mark} for {len(marked)} of {len(rows)}"
    return f"passes, {len(rows)} tensors"


def _of_padiff(python: Path, a: Path, b: Path) -> str:
    done = subprocess.run([python, "-W", "ignore", "-c", _CHECK, a, b], capture_output=True, text=True, cwd=a.parent)
    last = re.search(r"^PASSED (\w+) (\w+)$", done.stdout, re.MULTILINE)
    if last is None:
        return f"does not run: {(done.stderr.strip().splitlines() or ['no answer'])[-1][:80]}"
    route = _ROUTE.search(done.stdout)
    if last[1] != "True":
        stage = "forward" if "Forward Stage" in done.stdout else "backward"
        return f"{route[1]} ({stage})" if route else f"the whole model ({stage})"
    differ = re.findall(r"Diff found when compare (\w+)", done.stdout)
    return f"{' and '.join(differ)} differ" if differ else "passes"
