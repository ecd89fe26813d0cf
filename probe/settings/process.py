"""The environment of this process, from which programs are started: variables, installed frameworks, devices."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess

from probe.settings.advising import Environment
from probe.settings.table import TABLE
from probe.settings.table.determinism import FAMILIES, STEPS, TRAPS

_PACKAGES = {
    "torch": "torch", "paddlepaddle": "paddle", "paddlepaddle-gpu": "paddle", "mindspore": "mindspore",
}  # fmt: skip
_FAMILIES = ("CUBLAS_", "CUDNN_", "HCCL_", "LCCL_", "MS_", "NCCL_", "NVTE_", *FAMILIES)
_NO_NUMBERS = ("_PATH", "_DIR", "_HOME", "_FILE", "_TOKEN", "_KEY", "_SECRET", "_PASSWORD", "_TIMEOUT")
_ASK_NVIDIA = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
_ASK_ASCEND = ["npu-smi", "info", "-l"]
_SECONDS = 10
_LONGEST = 200


def this_process() -> Environment:
    """Return what programs that are started from here find. No framework is imported."""
    frameworks = {}
    for package, framework in _PACKAGES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            frameworks[framework] = importlib.metadata.version(package)
    return Environment("this process", frameworks, _variables(), tuple(_devices()))


def _variables() -> dict[str, str]:
    known = (
        {name for row in TABLE for name in row.variables.split()}
        | {step.variable for step in STEPS}
        | {trap.variable for trap in TRAPS}
    )
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in known or name.upper().startswith(_FAMILIES))
        and not name.endswith(_NO_NUMBERS)
        and len(value) <= _LONGEST
    }


def _devices() -> list[str]:
    """Return the accelerators that the system's own tools list."""
    lines = [line.rpartition(",") for line in _answer(_ASK_NVIDIA)]
    found = [f"{name.strip()} (compute capability {capability.strip()})" for name, _, capability in lines if name]
    return found or [
        f"Ascend {line.strip()}" for line in _answer(_ASK_ASCEND) if "Chip Name" in line or "NPU ID" in line
    ]


def _answer(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []
