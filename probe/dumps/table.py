"""Whose dumps are read, how each is told, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from probe.dumps.arrays import SUFFIXES
from probe.dumps.files import files_in
from probe.dumps.msprobe import is_msprobe, read_msprobe
from probe.dumps.named import is_mindspore, is_named, is_reprod_log, read_named
from probe.dumps.padiff import is_padiff, read_padiff
from probe.dumps.ptdbg import is_ptdbg, read_ptdbg
from probe.dumps.seen import Dump
from probe.dumps.sglang import is_sglang, read_sglang
from probe.dumps.transformers import is_transformers, read_transformers
from probe.errors import ConfigError, FormatError


@dataclass(frozen=True)
class Kind:
    """The dumps of one tool."""

    tool: str
    is_it: Callable[[Path, list[str]], bool]
    read: Callable[[Path, list[str], str | None], Iterator[Dump]]
    told_by: str
    values: str
    statistics: str
    backward: str
    parameters: str
    order: str
    tree: str


KINDS = (
    Kind("mindstudio-probe", is_msprobe, read_msprobe, "dump.json, debug.json", "task `tensor`", "task `statistics`",
         "yes", "levels `L0`, `mix`", "yes", "construct.json, else by names"),
    Kind("ptdbg_ascend", is_ptdbg, read_ptdbg, "api_stack_dump.pkl, dump.pkl", "`.npy`", "yes", "yes", "as inputs of operations",
         "yes", "no"),
    Kind("PaDiff", is_padiff, read_padiff, "report.json, params.json, weights.json, grads.json", "yes", "no",
         "gradients of inputs", "params.json, weights.json", "yes", "yes"),
    Kind("reprod_log", is_reprod_log, read_named, "a `.npy` file of a dict", "yes", "no", "by `{role}`", "by `{role}`",
         "as they were added", "by names"),
    Kind("transformers", is_transformers, read_transformers, "_debug_tree_FULL_TENSORS.json", "`use_repr=False`", "no", "no", "no",
         "yes", "yes"),
    Kind("SGLang", is_sglang, read_sglang, "the names of its `.pt` files: `step=…___rank=…___dump_index=…`", "yes", "no",
         "`enable_grad`, `enable_model_grad`", "`enable_model_value`", "yes", "by names"),
    Kind("MindSpore Dump", is_mindspore, read_named, "statistic.csv, the names of its `.npy` files", "`.npy`", "statistic.csv", "as operations",
         "as inputs of operations", "timestamps", "no"),
    Kind("named tensors", is_named, read_named, ", ".join(f"`{each}`" for each in SUFFIXES), "yes", "no", "by `{role}`",
         "by `{role}`", "by `{order:int}`, else the times of files", "by names"),
)  # fmt: skip
"""in the order in which they are asked"""


def kind_of(source: Path, pattern: str | None = None) -> tuple[Kind, list[str]]:
    """Return which tool wrote a dump, and its files by their relative paths.

    Raises FormatError where it is no dump that probe reads, ConfigError where a pattern is given and there are no named tensors.
    """
    files = files_in(source)
    kinds = KINDS if pattern is None else KINDS[-1:]
    found = next((kind for kind in kinds if kind.is_it(source, files)), None)
    if found is not None:
        return found, files
    if pattern is not None:
        raise ConfigError(f"--pattern is for named tensors, and {source} holds none: expected {', '.join(SUFFIXES)}")
    tools = ", ".join(f"{kind.tool} ({kind.told_by})" for kind in KINDS)
    raise FormatError(f"{source} is no dump that probe reads: expected one of {tools}")
