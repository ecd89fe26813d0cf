"""Dumps of mindstudio-probe 26.2.0: ``step0/rank0`` or ``step0/proc123`` with dump.json, construct.json, stack.json and tensors.

Levels L0, L1, mix and debug; tasks tensor, statistics and structure. A module's call is ``Module.layers.0.mlp.MLP.forward.0``,
that of an operation ``Functional.softmax.3.forward``; construct.json says which call lies in which.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.dumps.arrays import dtype_named, load
from probe.dumps.files import inside, json_of, leaves
from probe.dumps.seen import Call, Dump, Seen, Step, nested, summary_of
from probe.errors import FormatError
from probe.records import Role

_PLACE = re.compile(
    r"(?:(?:.*/)?step(?P<step>\d{1,9})/)?(?:(?:rank(?P<rank>\d{0,9})|proc\d{1,9})/)?(?:dump|debug)\.json"
)
_MODULE = re.compile(
    r"(?:Module|Cell)\.(?:(?P<path>.+)\.)?(?P<name>[^.]+)\.(?P<pass>forward|backward|parameters_grad)(?:\.(?P<number>\d{1,9}))?"
)
_OPERATION = re.compile(r"(?P<kind>\w+)\.(?P<name>.+)\.(?P<number>\d{1,9})\.(?P<pass>forward|backward)")
PREFIXES = {
    "Functional": "torch.nn.functional", "Tensor": "torch.Tensor", "Torch": "torch", "VF": "torch", "Aten": "torch.ops.aten",
    "NPU": "torch_npu", "Distributed": "torch.distributed",
}  # fmt: skip
"""where the functions of PyTorch stand, by the first part of their names"""
_FRAME = re.compile(r"File (.+), line (\d{1,9}), in ")
_FRAMEWORKS = {"pytorch": "torch", "mindspore": "mindspore", "mindtorch": "mindspore"}
_ROLES = {
    "forward": {"input_args": Role.INPUT, "input_kwargs": Role.INPUT, "output": Role.OUTPUT},
    "backward": {"input": Role.GRAD_OUTPUT, "output": Role.GRAD_INPUT},
}
"""by pass: what a backward pass is given is the gradient of what the module returned"""
_UNNAMED = "gradients that operations hand on are left out: the dump does not tell which input each belongs to"


def is_msprobe(source: Path, files: list[str]) -> bool:
    """Return True for the folder of ``dump_path``, one of a step or rank in it, or a dump.json."""
    return any(_PLACE.fullmatch(name) for name in files)


def by_place(source: Path, files: list[str], form: re.Pattern[str]) -> list[tuple[int, dict[int, list[Path]]]]:
    """Return ranks with their files by step, as the folders around them say."""
    found: dict[int, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for path in [source / name if source.is_dir() else source for name in files if form.fullmatch(name)]:
        place = form.fullmatch("/".join(path.absolute().parts[-3:])) or form.fullmatch(path.name)
        assert place is not None
        found[int(place["rank"] or 0)][int(place["step"] or 0)].append(path)
    return sorted(found.items())


def read_msprobe(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump of each rank; its steps raise FormatError where several processes without ranks dumped them."""
    for rank, steps in by_place(source, files, _PLACE):
        said = json_of(first := next(iter(steps.values()))[0])
        framework = _FRAMEWORKS.get(str(said.get("framework")), "torch")
        lacks = () if (first.parent / "construct.json").is_file() else ("which call lies in which",)
        is_whole = any(name and not name["path"] for name in map(_MODULE.fullmatch, said["data"]))  # of `probe export`
        lacks = lacks if is_whole else ("inputs and outputs of the whole model", *lacks)
        yield Dump(framework, sorted(steps), functools.partial(_step, steps, framework), rank, lacks)


def _step(steps: Mapping[int, list[Path]], framework: str, number: int) -> Step:
    step, folders = Step(number), sorted({str(path.parent) for path in steps[number]})
    if len(folders) > 1:
        raise FormatError(f"step {number} was dumped by several processes: import one of {', '.join(folders[:4])}")
    for path in steps[number]:
        data = json_of(path)["data"]
        if path.name == "debug.json":
            values = [seen for name, said in data.items() for seen in _tensors(path, name, said, Role.VALUE, name)]
            step.calls = [Call("", inner=step.calls, seen=values)]
        else:
            beside = [path.with_name(name) for name in ("construct.json", "stack.json")]
            read_calls(step, path, data, framework, *(json_of(each) if each.is_file() else {} for each in beside))
    return step


def read_calls(
    step: Step, path: Path, data: Mapping[str, Any], framework: str, construct: Mapping[str, Any],
    stack: Mapping[str, Any],
) -> None:  # fmt: skip
    """Read what dump.json, construct.json and stack.json hold into a step."""
    around = {name: _parent(said) for name, said in construct.items()}
    told = {
        name: found for name in [*around, *data] if (found := _MODULE.fullmatch(name) or _OPERATION.fullmatch(name))
    }
    begun = {name: found for name, found in told.items() if found["pass"] == "forward"}
    alone = {name: found for name, found in told.items() if found["pass"] == "backward" and _forward(name) not in begun}
    begun = {
        **{_forward(name): alone[name] for name in reversed(alone)},
        **begun,
    }  # of dumps of the backward pass alone
    calls = _modules(begun, around)
    calls |= _operations(begun, around, calls, data, _places(stack), framework)
    parents = {name: around.get(name, ("", 0))[0] for name in begun}
    for name, parent in parents.items():
        if parent in calls and parent != name:
            calls[parent].inner.append(calls[name])
    owners: set[str] = set()
    for name, said in data.items():
        _read_one(step, path, name, said, told.get(name), calls.get(_forward(name)), owners)
    outermost = [calls[name] for name, parent in parents.items() if parent not in calls or parent == name]
    step.calls += outermost if around else nested(outermost)
    if any("kind" in found.groupdict() and found["pass"] == "backward" for found in told.values()):
        step.notes.append(_UNNAMED)


def _forward(name: str) -> str:
    """Return the name of the forward pass of a backward pass; of a forward pass itself."""
    return re.sub(r"\.backward(\.\d+)?$", r".forward\1", name)


def _parent(said: object) -> tuple[str, int]:
    """Return the name of the call around a call, and its micro-batch, which only Megatron's dumps tell."""
    name, micro = said if isinstance(said, list) and len(said) == 2 else (said, 0)
    return name if isinstance(name, str) else "", micro if type(micro) is int and micro >= 0 else 0


def _modules(begun: Mapping[str, re.Match[str]], around: Mapping[str, tuple[str, int]]) -> dict[str, Call]:
    """Return the calls of modules by their names; they are numbered inside their micro-batch."""
    found, first = dict[str, Call](), dict[tuple[str, int], int]()
    for name, said in begun.items():
        if "path" in said.groupdict():
            micro, path, number = around.get(name, ("", 0))[1], said["path"] or "", int(said["number"] or 0)
            found[name] = Call(path, number - first.setdefault((path, micro), number), micro, said["name"])
    return found


def _operations(
    begun: Mapping[str, re.Match[str]], around: Mapping[str, tuple[str, int]], modules: Mapping[str, Call],
    data: Mapping[str, Any], places: Mapping[str, tuple[str, int]], framework: str,
) -> dict[str, Call]:  # fmt: skip
    """Return the calls of operations by their names, numbered inside the call that makes them."""
    found, counts = dict[str, Call](), Counter[tuple[str, str]]()
    for name, said in begun.items():
        if name not in modules:
            parent, operation, kind = around.get(name, ("", 0))[0], said["name"].rpartition(".")[2], said["kind"]
            caller, prefix = modules.get(parent, Call("")), PREFIXES.get(kind) if framework == "torch" else None
            path = f"{caller.path}/{operation}.{counts[parent, operation]}"
            full = f"{prefix or kind.lower()}.{said['name']}"
            counts[parent, operation] += 1
            given = _arguments(data.get(name) or {})
            found[name] = Call(path, caller.number, caller.micro, full, given, places.get(name, ("", 0)))
    return found


def _arguments(said: Mapping[str, Any]) -> str:
    """Return what an operation was given beside tensors, as JSON by place or name."""
    found = dict(leaves(said.get("input_args"), _is_leaf)) | dict(leaves(said.get("input_kwargs"), _is_leaf))
    values = {slot: each.get("value") for slot, each in found.items() if "shape" not in each}
    return json.dumps({slot: value for slot, value in values.items() if isinstance(value, (bool, int, float, str))})


def _places(stack: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Return file and line of each call's innermost frame outside of the framework."""
    found: dict[str, tuple[str, int]] = {}
    for names, frames in stack.values():
        own = next((each for each in map(_FRAME.match, frames) if each and "site-packages" not in each[1]), None)
        found |= {name: (own[1], int(own[2])) for name in names} if own is not None else {}
    return found


def _is_leaf(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("type"), str)


def _read_one(
    step: Step, path: Path, name: str, said: Mapping[str, Any], told: re.Match[str] | None, call: Call | None,
    owners: set[str],
) -> None:  # fmt: skip
    """Read what was dumped under one name; ``owners`` are the modules whose weights were read."""
    if told is not None and told["pass"] == "parameters_grad":
        named = {slot: each[0] if isinstance(each, list) and len(each) == 1 else each for slot, each in said.items()}
        found = _tensors(path, name, named, Role.PARAM_GRAD)
        step.weights += [(told["path"] or "", seen) for seen in found]
    elif told is None or call is None:
        step.notes.append(f"{name} is left out: it is no call of a module or an operation")
    else:
        for key, role in _ROLES[told["pass"]].items():
            if not (call.arguments and role is Role.GRAD_INPUT):
                call.seen += _tensors(path, name, said.get(key), role)
        if call.path not in owners:
            owners.update({call.path} if "parameters" in said else ())
            step.weights += [(call.path, seen) for seen in _tensors(path, name, said.get("parameters"), Role.PARAM)]


def _tensors(path: Path, name: str, said: object, role: Role, slot: str = "") -> Iterator[Seen]:
    """Yield the tensors of nested lists and objects, with their files where there are some."""
    for place, each in leaves(said, _is_leaf, slot):
        if "shape" in each and "dtype" in each:
            numbers = [each.get(key) for key in ("Min", "Max", "Mean", "Norm")]
            summary = summary_of(f"{path}: {name}", dtype_named(str(each["dtype"])), each["shape"], *numbers)
            file = each.get("data_name")
            stored = inside(path.parent, str(Path("dump_tensor_data", file))) if isinstance(file, str) else None
            values = functools.partial(load, stored) if stored is not None and stored.is_file() else None
            yield Seen(role, place, values, summary, bool(each.get("requires_grad")))
