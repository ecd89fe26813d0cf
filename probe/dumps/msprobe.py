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

_NAMES = ("dump.json", "debug.json")
_PLACE = re.compile(
    r"(?:(?:.*/)?step(?P<step>\d{1,9})/)?(?:(?:rank(?P<rank>\d{0,9})|proc(?P<proc>\d{1,9}))/)?(?:dump|debug)\.json"
)
_MODULE = re.compile(
    r"(?:Module|Cell)\.(?:(?P<path>.+)\.)?(?P<name>[^.]+)\.(?P<pass>forward|backward|parameters_grad)(?:\.(?P<number>\d{1,9}))?"
)
_OPERATION = re.compile(r"(?P<kind>\w+)\.(?P<name>.+)\.(?P<number>\d{1,9})\.(?P<pass>forward|backward)")
_PREFIXES = {
    "Functional": "torch.nn.functional", "Tensor": "torch.Tensor", "Torch": "torch", "VF": "torch", "Aten": "torch.ops.aten",
    "NPU": "torch_npu", "Distributed": "torch.distributed",
}  # fmt: skip
"""where the functions of PyTorch stand, by the first part of their names"""
_FRAME = re.compile(r"File (.+), line (\d{1,9}), in ")
_FRAMEWORKS = {"pytorch": "torch", "mindspore": "mindspore", "mindtorch": "mindspore"}
_ROLES = {
    "input_args": Role.INPUT, "input_kwargs": Role.INPUT, "output": Role.OUTPUT,
}  # fmt: skip
_GRADIENTS = {"input": Role.GRAD_OUTPUT, "output": Role.GRAD_INPUT}
"""of a backward pass: what it was given is the gradient of what the module returned"""
_UNNAMED = "gradients that operations hand on are left out: the dump does not tell which input each belongs to"


def is_msprobe(source: Path, files: list[str]) -> bool:
    """Return True for the folder of ``dump_path``, one of a step or rank in it, or a dump.json."""
    return any(name.rpartition("/")[2] in _NAMES and _PLACE.fullmatch(name) for name in files)


def read_msprobe(source: Path, files: list[str], pattern: str | None) -> Iterator[Dump]:
    """Yield the dump of each rank.

    Raises
    ------
    FormatError
        a step was dumped by several processes without ranks
    """
    found: dict[int, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for name in files:
        place = _PLACE.fullmatch(name)
        if place is None or name.rpartition("/")[2] not in _NAMES:
            continue
        path = source / name if source.is_dir() else source
        above = _PLACE.fullmatch("/".join(path.absolute().parts[-4:]))
        step, rank = ((place[key] or (above[key] if above else None) or "0") for key in ("step", "rank"))
        found[int(rank)][int(step)].append(path)
    for rank, steps in sorted(found.items()):
        for paths in steps.values():
            folders = sorted({path.parent.name for path in paths})
            if len(folders) > 1:
                raise FormatError(
                    f"{source} has dumps of several processes in one step: {', '.join(folders[:4])}; import one"
                )
        top = json_of(next(iter(steps.values()))[0])
        framework = _FRAMEWORKS.get(str(top.get("framework")), "torch")
        lacks = () if (next(iter(steps.values()))[0].parent / "construct.json").is_file() else ("the calls of modules",)
        read = functools.partial(_step, steps, framework)
        yield Dump(framework, sorted(steps), read, rank, lacks=("inputs and outputs of the whole model", *lacks))


def _step(steps: Mapping[int, list[Path]], framework: str, number: int) -> Step:
    step = Step(number)
    for path in steps[number]:
        data = json_of(path).get("data")
        if not isinstance(data, dict):
            raise FormatError(f'{path} is no dump of mindstudio-probe: it has no "data"')
        if path.name == "debug.json":
            values = [seen for name, said in data.items() for seen in _tensors(path, name, said, Role.VALUE, name)]
            step.calls = [Call("", inner=step.calls, seen=values)]
        else:
            _read(step, path, data, framework)
    return step


def _read(step: Step, path: Path, data: Mapping[str, Any], framework: str) -> None:
    """Read dump.json, and construct.json and stack.json beside it, into a step."""
    construct = {name: _parent(said) for name, said in _beside(path, "construct.json").items()}
    names = [name for name in dict.fromkeys([*construct, *data]) if _pass_of(name) == "forward"]
    calls = _modules(names, construct)
    calls |= _operations(names, construct, calls, data, _places(_beside(path, "stack.json")), framework)
    inner: set[str] = set()
    for name in names:
        parent = construct.get(name, (None, 0))[0]
        if parent in calls and parent != name:
            calls[parent].inner.append(calls[name])
            inner.add(name)
    owners: set[str] = set()
    for name, said in data.items():
        if not isinstance(said, dict):
            raise FormatError(f"{path}: {name} is a {type(said).__name__}, expected an object")
        _read_one(step, path, name, said, calls, owners)
    outermost = [calls[name] for name in calls if name not in inner]
    order = {id(calls[name]): place for place, name in enumerate(names)}
    outermost.sort(key=lambda call: order.get(id(call), -1))
    step.calls += outermost if construct else nested(outermost)
    if any(_OPERATION.fullmatch(name) and _pass_of(name) == "backward" for name in data):
        step.notes.append(_UNNAMED)


def _beside(path: Path, name: str) -> dict[str, Any]:
    other = path.parent / name
    return json_of(other) if other.is_file() else {}


def _parent(said: object) -> tuple[str | None, int]:
    """Return the name of the call around a call, and its micro-batch, which only Megatron's dumps tell."""
    name, micro = said if isinstance(said, list) and len(said) == 2 else (said, 0)
    return name if isinstance(name, str) else None, micro if type(micro) is int and micro >= 0 else 0


def _pass_of(name: str) -> str:
    found = _MODULE.fullmatch(name) or _OPERATION.fullmatch(name)
    return found["pass"] if found is not None else ""


def _modules(names: list[str], construct: Mapping[str, tuple[str | None, int]]) -> dict[str, Call]:
    """Return the calls of modules by their names; they are numbered inside their micro-batch."""
    found: dict[str, Call] = {}
    before: Counter[tuple[str, int]] = Counter()
    for name in names:
        said = _MODULE.fullmatch(name)
        if said is not None:
            micro, path = construct.get(name, (None, 0))[1], said["path"] or said["name"]
            first = before.setdefault((path, micro), int(said["number"] or 0))
            found[name] = Call(path, int(said["number"] or 0) - first, micro, said["name"])
    return found


def _operations(
    names: list[str], construct: Mapping[str, tuple[str | None, int]], modules: Mapping[str, Call],
    data: Mapping[str, Any], places: Mapping[str, tuple[str, int]], framework: str,
) -> dict[str, Call]:  # fmt: skip
    """Return the calls of operations by their names, numbered inside the call that makes them."""
    found: dict[str, Call] = {}
    counts: Counter[tuple[str | None, str]] = Counter()
    for name in names:
        said = _OPERATION.fullmatch(name)
        if said is None or name in modules:
            continue
        parent = construct.get(name, (None, 0))[0]
        around = modules.get(parent or "") or Call("")
        operation = said["name"].rpartition(".")[2]
        path = f"{around.path}/{operation}.{counts[parent, operation]}"
        counts[parent, operation] += 1
        prefix = _PREFIXES.get(said["kind"], said["kind"].lower()) if framework == "torch" else said["kind"].lower()
        arguments = _arguments(name, data.get(name))
        found[name] = Call(
            path, around.number, around.micro, f"{prefix}.{said['name']}", arguments, places.get(name, ("", 0))
        )
    return found


def _arguments(name: str, said: object) -> str:
    """Return what an operation was given beside tensors, as JSON by place or name."""
    parts = [said.get(key) for key in ("input_args", "input_kwargs")] if isinstance(said, dict) else []
    found = {
        slot: each.get("value")
        for part in parts
        for slot, each in leaves(part, _is_leaf, name)
        if "shape" not in each and isinstance(each.get("value"), (bool, int, float, str))
    }
    return json.dumps(found)


def _places(stack: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Return file and line of each call's innermost frame outside of the framework."""
    found: dict[str, tuple[str, int]] = {}
    for said in stack.values():
        if not (isinstance(said, list) and len(said) == 2 and all(isinstance(each, list) for each in said)):
            continue
        frames = [_FRAME.match(frame) for frame in said[1] if isinstance(frame, str)]
        own = next((each for each in frames if each and "site-packages" not in each[1]), None)
        if own is not None:
            found |= {name: (own[1], int(own[2])) for name in said[0] if isinstance(name, str)}
    return found


def _is_leaf(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("type"), str)


def _read_one(
    step: Step, path: Path, name: str, said: Mapping[str, Any], calls: dict[str, Call], owners: set[str]
) -> None:
    """Read what was dumped under one name; ``owners`` are the modules whose weights were read."""
    module = _MODULE.fullmatch(name)
    part = _pass_of(name)
    if part == "parameters_grad":
        assert module is not None
        owner = module["path"] or module["name"]
        named = {slot: each[0] if isinstance(each, list) and len(each) == 1 else each for slot, each in said.items()}
        step.weights += [(owner, seen) for seen in _tensors(path, name, named, Role.PARAM_GRAD)]
        return
    call = calls.get(name.replace(".backward", ".forward") if part == "backward" else name)
    if call is None and module is not None and part == "backward":
        call = calls[name] = Call(module["path"] or module["name"], int(module["number"] or 0), 0, module["name"])
    if call is None:
        step.notes.append(f"{name} is left out: it is no call of a module or an operation")
        return
    for key, role in (_ROLES if part == "forward" else _GRADIENTS).items():
        if not (call.arguments and role is Role.GRAD_INPUT):
            call.seen += _tensors(path, name, said.get(key), role)
    if part == "forward" and call.path not in owners:
        owners.add(call.path)
        step.weights += [(call.path, seen) for seen in _tensors(path, name, said.get("parameters"), Role.PARAM)]


def _tensors(path: Path, name: str, said: object, role: Role, slot: str = "") -> Iterator[Seen]:
    """Yield the tensors of nested lists and objects, with their files where there are some."""
    for place, each in leaves(said, _is_leaf, f"{path}: {name}", slot):
        if "shape" not in each or "dtype" not in each:
            continue
        numbers = [each.get(key) for key in ("Min", "Max", "Mean", "Norm")]
        summary = summary_of(f"{path}: {name}", dtype_named(str(each["dtype"])), each["shape"], *numbers)
        file = each.get("data_name")
        stored = inside(path.parent / "dump_tensor_data", file) if isinstance(file, str) else None
        has_values = stored is not None and stored.is_file()
        values = functools.partial(load, stored) if has_values else None
        yield Seen(role, place, values, summary, bool(each.get("requires_grad")))
