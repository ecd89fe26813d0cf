"""Dumps of SGLang's dumper: ``step=0___rank=0___dump_index=1___name=hidden_states___layer_id=3.pt``, a value with its tags each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from probe.dumps.arrays import tensors_in
from probe.dumps.named import dumps_of
from probe.dumps.naming import Named
from probe.dumps.seen import Dump, Seen
from probe.errors import FormatError
from probe.records import Role

_NAME = re.compile(r"(?:.*/)?(?:step|forward_pass_id)=\d{1,18}___rank=\d{1,9}___dump_index=\d{1,18}___name=.*\.pt")
_POINT = re.compile(r"non_intrusive__(?:(?P<module>.+)\.)?(?P<part>inputs|output)(?:\.(?P<slot>[^=]+))?")
"""what its hooks call a tensor, in the mode "all"; other names were given by hand, but for those of the batch"""
_BATCH = ("input_ids", "positions", "position_ids", "seq_lens", "req_pool_indices", "cu_seqlens_q", "cu_seqlens_kv")
_GRADIENTS = {Role.INPUT: Role.GRAD_INPUT, Role.OUTPUT: Role.GRAD_OUTPUT, Role.PARAM: Role.PARAM_GRAD}


def is_sglang(source: Path, files: list[str]) -> bool:
    """Return True for a folder of SGLang's dumper, or one of its files."""
    return any(_NAME.fullmatch(name) for name in files)


def read_sglang(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump of each rank. Raises FormatError where there are several runs."""
    paths = [source / name if source.is_dir() else source for name in files if _NAME.fullmatch(name)]
    runs = sorted({path.parent for path in paths})
    if len(runs) > 1:
        raise FormatError(f"{source} has dumps of several runs: {', '.join(run.name for run in runs[:4])}; import one")
    yield from dumps_of(source, "torch", _tensors(paths), "classes of modules")


def _tensors(paths: list[Path]) -> Iterator[tuple[str, Named | None, Seen]]:
    """Yield the tensors by name; of what was computed again for the backward pass, None."""
    counts = Counter[tuple[object, ...]]()
    tagged = [(path, dict(tag.partition("=")[::2] for tag in path.stem.split("___"))) for path in paths]
    for path, tags in sorted(tagged, key=lambda each: int(each[1]["dump_index"])):
        step, rank, order = (int(tags.get(key) or tags["forward_pass_id"]) for key in ("step", "rank", "dump_index"))
        module, role, slot = _said(tags)
        for inner, load in tensors_in(path):
            full = ".".join(filter(None, (slot, inner.removeprefix("value").strip(".")))) or "0"
            number = counts[step, rank, module, role, full]
            counts[step, rank, module, role, full] += 1
            if number and slot.partition(".")[0] in _BATCH:
                number, full = 0, f"{full}.{number}"
            said = Named(module, step, rank, call=number, order=order, role=role, slot=full)
            yield path.name, None if tags.get("recompute_status") == "recompute" else said, Seen(role, full, load)


def _said(tags: dict[str, str]) -> tuple[str, Role, str]:
    """Return which module, role and slot the tags of a file say; a name that was given by hand is a module in its layer."""
    name = tags["name"].removeprefix("grad__")
    if name.startswith("param__"):
        (module, _, slot), role = name.removeprefix("param__").rpartition("."), Role.PARAM
    elif point := _POINT.fullmatch(name):
        module, slot = point["module"] or "", point["slot"] or ""
        role = Role.INPUT if point["part"] == "inputs" else Role.OUTPUT
    elif name in _BATCH:
        module, role, slot = "", Role.INPUT, name
    else:
        layer = tags.get("layer_id", "")
        module, role, slot = f"layers.{layer}.{name}" if layer else name, Role.OUTPUT, ""
    return module, _GRADIENTS[role] if name != tags["name"] else role, slot
