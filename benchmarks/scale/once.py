"""One comparison in a process of its own, which prints what it cost: `python -m benchmarks.scale.once A B WHERE`."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

_AFTER = 3.0
"""seconds of a comparison after which a worker is killed"""


def main(a: str, b: str, where: str) -> None:
    """Compare in this process, which must be a fresh one, and print what it cost."""
    import probe.comparing

    cluster, scheduler = None, where or None
    if where.startswith("dask"):
        from distributed import LocalCluster

        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
        scheduler = cluster.scheduler_address
        if where.endswith("killed"):
            threading.Timer(_AFTER, lambda: os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)).start()
    before, start = _cpu(), time.perf_counter()
    found = probe.compare(a, b, scheduler=scheduler)
    wall = time.perf_counter() - start
    peak = _peak()
    if cluster is not None:
        cluster.close()
    first = found.first_divergence
    with probe.open(a) as one, probe.open(b) as other:
        records = one.observations + other.observations
    answer = hashlib.sha256(json.dumps(found.as_json(), sort_keys=True, default=str).encode()).hexdigest()
    print(json.dumps({
        "records": records, "wall": wall, "cpu": _cpu() - before, "peak": peak, "verdict": found.verdict.value,
        "path": "" if first is None else first.path, "answer": answer,
    }))  # fmt: skip


def _peak() -> float:
    """Return the largest resident memory in MiB (Linux); ``ru_maxrss`` would have that of the process that started this one."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


if __name__ == "__main__":
    main(*sys.argv[1:])
