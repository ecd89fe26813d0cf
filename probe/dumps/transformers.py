"""Dumps of transformers' ``model_addition_debugger_context(model, use_repr=False)``: a tree of calls in JSON, and safetensors."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probe.dumps.arrays import dtype_named, load
from probe.dumps.files import inside, json_of, leaves
from probe.dumps.seen import Call, Dump, Seen, Step, summary_of
from probe.errors import FormatError
from probe.records import Role

_TREE = "_debug_tree_FULL_TENSORS.json"
_SUFFIX = ".safetensors"
_Files = dict[str, tuple[Call, Seen]]  # by name: the call that wrote a file last, and its tensor


def is_transformers(source: Path, files: list[str]) -> bool:
    """Return True for a folder with a tree of calls, or the tree itself."""
    return any(name.endswith(_TREE) for name in files)


def read_transformers(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump, which has one step. Raises FormatError where there are several models."""
    trees = [source / name if source.is_dir() else source for name in files if name.endswith(_TREE)]
    if len(trees) > 1:
        raise FormatError(f"{source} has dumps of several models: {', '.join(map(str, trees[:4]))}; import one")
    lacks = "classes of modules", "what modules with modules inside returned"
    yield Dump("torch", [0], functools.partial(_step, trees[0]), lacks=lacks)


def _step(path: Path, number: int) -> Step:
    step, top, files = Step(number), json_of(path), _Files()
    model, lost = str(top["module_path"]), Counter[str]()
    step.calls = [_call(path, top, model, Counter(), files, lost)]
    for call, seen in files.values():
        call.seen.append(seen)
    if not files:
        said = "as text of four digits, which tell no error from rounding" if lost["text"] else "of no tensor"
        raise FormatError(f"{path} holds values {said}: dump with use_repr=False")
    written = {each.name for each in path.parent.iterdir() if each.name.endswith(_SUFFIX) and each.is_file()}
    for name in sorted(each for each in written if each.startswith(f"{model}_outputs")):  # the tree leaves them out
        slot = name.removeprefix(f"{model}_outputs").removesuffix(_SUFFIX).strip("_") or "0"
        step.calls[0].seen.append(Seen(Role.OUTPUT, slot, functools.partial(load, inside(path.parent, name))))
    pruned = len({name for name in written if name.startswith(f"{model}.")} - {*files})
    for count, text in (
        (lost["overwritten"], "tensors are left out: a later call of the same module wrote its own over them"),
        (pruned, "files are left out, which the tree does not name: do_prune_layers=False keeps all layers"),
    ):
        step.notes += [f"{count} {text}"] if count else []
    return step


def _call(path: Path, said: Any, model: str, counts: Counter[str], files: _Files, lost: Counter[str]) -> Call:
    """Return a call with those inside it; its tensors go to the files that hold them, where the last one stays."""
    own = "" if said["module_path"] == model else str(said["module_path"]).removeprefix(f"{model}.")
    call = Call(own, counts[own], class_name=model if not own else "")
    counts[own] += 1
    for key, role in (("inputs", Role.INPUT), ("outputs", Role.OUTPUT)):
        for slot, each in leaves(said.get(key), lambda io: isinstance(io, dict) and {"dtype", "shape"} <= {*io}):
            file = each.get("value")
            if not isinstance(file, str):
                lost["text"] += 1
                continue
            shape = [int(size) for size in re.findall(r"\d{1,18}", str(each["shape"]))]
            summary = summary_of(f"{path}: {own}", dtype_named(str(each["dtype"])), shape, None, None, None, None)
            stored = inside(path.parent, file.removeprefix("./"))
            lost["overwritten"] += stored.name in files
            slot = slot.removeprefix("args.").removeprefix("kwargs.")
            files[stored.name] = call, Seen(role, slot, functools.partial(load, stored), summary)
    call.inner = [_call(path, each, model, counts, files, lost) for each in said.get("children") or ()]
    return call
