"""Environments, of this process and of recordings: variables, frameworks, devices, switches."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.ranks.opening import open_reader
from probe.settings.reading.recordings import source_of_reader
from probe.settings.source import Source
from probe.settings.table import TABLE
from probe.settings.table.determinism import FAMILIES, STEPS, TRAPS

_ASCEND = ("ascend", "npu")
_PACKAGES = {
    "torch": "torch", "paddlepaddle": "paddle", "paddlepaddle-gpu": "paddle", "mindspore": "mindspore",
}  # fmt: skip
_FAMILIES = ("CUBLAS_", "CUDNN_", "HCCL_", "LCCL_", "MS_", "NCCL_", "NVTE_", *FAMILIES)
_NO_NUMBERS = ("_PATH", "_DIR", "_HOME", "_FILE", "_TOKEN", "_KEY", "_SECRET", "_PASSWORD", "_TIMEOUT")
_ASK_NVIDIA = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
_ASK_ASCEND = ["npu-smi", "info", "-l"]
_SECONDS = 10
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Environment:
    """What is known of an environment: this process's, or that of a recording."""

    title: str
    frameworks: Mapping[str, str]
    """versions, by framework: torch, paddle, mindspore"""
    variables: Mapping[str, str]
    devices: tuple[str, ...] = ()
    """names of accelerators, with their compute capability where that is known"""
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """switches that were recorded; empty where the program is not known"""
    dtypes: tuple[str, ...] = ()
    """that were computed in"""

    @property
    def kind(self) -> str:
        """The kind of its devices: gpu, npu, or nothing."""
        names = " ".join(self.devices).lower()
        return "" if not names else "npu" if any(word in names for word in _ASCEND) else "gpu"


def environment_of(path: str | Path) -> tuple[Source, Environment]:
    """Return the settings that a recording holds, and its environment with the dtypes that were computed in.

    Raises StoreError or FormatError where it cannot be read.
    """
    with open_reader(path) as reader:
        source = source_of_reader(reader)
        autocast = {name.decode() for name in set(reader.calls["autocast"].tolist())}
        dtypes = {each.dtype for each in reader.parameters} | autocast
        title = str(reader.path)
    framework, _, version = str(source.recorded.get("framework_version", "")).partition(" ")
    found = source.recorded.get("devices") or source.recorded.get("device_target") or ()
    devices = map(str, found if isinstance(found, (list, tuple)) else [found])
    used = tuple(name for name in devices if name.upper() not in ("CPU", ""))
    return source, Environment(
        title, {framework: version}, source.variables, used, source.recorded, tuple(sorted(dtypes - {""}))
    )


def this_process() -> Environment:
    """Return what programs that are started from here find. No framework is imported."""
    frameworks = {}
    for package, framework in _PACKAGES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            frameworks[framework] = importlib.metadata.version(package)
    return Environment("this process", frameworks, _variables(), tuple(_devices()))


def _variables() -> dict[str, str]:
    known = {name for row in TABLE for name in row.variables.split()}
    known |= {each.variable for each in (*STEPS, *TRAPS)}
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
