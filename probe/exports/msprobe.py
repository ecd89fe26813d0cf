"""A recording as a dump of mindstudio-probe 26.2.0: dump.json, construct.json, stack.json and tensors."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probe.checkpoints.torch_pickle import write_tensor
from probe.checkpoints.writing import written_whole
from probe.dumps.msprobe import PREFIXES
from probe.errors import ConfigError
from probe.exports.named import counted, readers_of
from probe.records import ModuleInfo, Phase, Role
from probe.store.reading.reader import Reader

_KINDS = {"torch": ("pytorch", "Module"), "": ("pytorch", "Module"), "mindspore": ("mindspore", "Cell")}
_PARTS = {Role.INPUT: "input_args", Role.OUTPUT: "output", Role.GRAD_OUTPUT: "input", Role.GRAD_INPUT: "output"}
"""of a call, by role"""
_SAID = {"input_args": "input", "input_kwargs": "kwargs"}
_KEY = ["micro", "module", "call"]
_BACKWARD = re.compile(r"\.backward(\.\d+)?$")
_NUMBERS = ("Max", "Min", "Mean", "Norm")


def export_msprobe(source: str | Path, target: str | Path) -> tuple[int, list[str]]:
    """Write a recording of PyTorch or MindSpore as a dump folder; return how many tensors have values, and notes.

    What a dump has no place for is left out: states of optimizers, buffers, logged values, the last update.
    Raises ConfigError for another framework, ConversionError where the target is there already or cannot be written.
    """
    counts, left = Counter[str](), Counter[str]()
    with contextlib.ExitStack() as opened, written_whole(Path(target)) as folder:
        for reader in readers_of(source, opened):
            if (framework := reader.info.framework) not in _KINDS:
                raise ConfigError(
                    f"{source} is of {framework}, no framework of mindstudio-probe: export npy or safetensors"
                )
            rank = _Rank(reader, folder, counts, left)
            for step in reader.steps["step"].tolist():
                rank.write(step)
    without = Counter({f"of {counts['seen']:,}": counts["seen"] - counts["values"]})
    notes = counted("left out, for which a dump has no place", left)
    return counts["values"], notes + counted("tensors without values, min, max, mean and norm alone", without)


class _Rank:
    """One rank's recording on its way into a dump."""

    def __init__(self, reader: Reader, folder: Path, counts: Counter[str], left: Counter[str]) -> None:
        self._reader, self._folder, self._counts, self._left = reader, folder, counts, left
        self._framework, self._kind = _KINDS[reader.info.framework]
        self._weights: dict[int, dict[str, Any]] = defaultdict(dict)
        """rows of what each module's weights are when a step begins"""
        self._last = -1

    def write(self, step: int) -> None:
        """Write the folder of a step."""
        info, modules, self._files = self._reader.info, self._reader.modules, set[str]()
        self._place = self._folder / f"step{step}" / (f"rank{info.rank}" if info.world_size > 1 else "proc0")
        (self._place / "dump_tensor_data").mkdir(parents=True)
        if step != self._last + 1:  # a recording has them again
            self._weights.clear()
        self._last, calls = step, self._reader.of_step("calls", step)
        names = self._named(calls)
        told = self._told(step, calls, names)
        task = info.config.get("task")
        dump = {
            "task": task if task in ("tensor", "structure") else "statistics", "framework": self._framework,
            "level": "mix" if any(each.is_operation for each in modules) else "L0", "dump_data_dir": None,
            "data": {} if task == "structure" else told,
        }  # fmt: skip
        construct = self._construct(calls, names, step, told)
        for file, content in (("dump", dump), ("construct", construct), ("stack", self._stack(calls, names))):
            (self._place / f"{file}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")

    def _named(self, calls: np.ndarray) -> dict[int, str]:
        """Return the names of calls by their row; forwards without gradients only where there are no others."""
        names, numbers, trains = dict[int, str](), Counter[str](), bool((calls["micro"] >= 0).any())
        for at, call in enumerate(calls):
            if call["recomputed"] or (trains and call["micro"] < 0):
                self._left["calls that are recomputed or have no gradients"] += 1
                continue
            module = self._reader.modules[call["module"]]
            name = self._name(module)
            names[at] = f"{name}.{numbers[name]}.forward" if module.is_operation else f"{name}.forward.{numbers[name]}"
            numbers[name] += 1
        return names

    def _name(self, module: ModuleInfo) -> str:
        """Return how mindstudio-probe names a module, the whole model by its class alone, or a function."""
        if not module.is_operation:
            return f"{self._kind}.{module.path}.{module.class_name}".replace("..", ".")
        for kind, prefix in sorted(PREFIXES.items(), key=lambda each: -len(each[1])):
            if module.class_name.startswith(f"{prefix}."):
                return f"{kind}.{module.class_name.removeprefix(f'{prefix}.')}"
        first, _, rest = module.class_name.partition(".")
        return f"{first.capitalize()}.{rest or first}"

    def _told(self, step: int, calls: np.ndarray, names: Mapping[int, str]) -> dict[str, Any]:
        """Return what dump.json says of calls, as they ended, and of gradients; write their values."""
        modules, slots = self._reader.modules, self._reader.slots
        ended = sorted(names, key=lambda at: int(calls["end"][at]))
        told: dict[str, Any] = {names[at]: {"input_args": {}, "input_kwargs": {}, "output": {}} for at in ended}
        by_call = {calls[at][_KEY].item(): name for at, name in names.items()}
        gradients, after = defaultdict[int, dict[str, Any]](dict), defaultdict[int, dict[str, Any]](dict)
        for row in self._reader.of_step("records", step):
            role, phase, slot, module = Role(row["role"]), Phase(row["phase"]), slots[row["slot"]], int(row["module"])
            call = by_call.get(row[_KEY].item())
            if role is Role.PARAM:
                (after if phase is Phase.UPDATE else self._weights)[module][slot] = row
            elif role is Role.PARAM_GRAD and phase is Phase.GRADIENT:
                self._left["param_grad before the last micro-batch"] += slot in gradients[module]
                gradients[module][slot] = row
            elif role in _PARTS and call is not None:
                name = call if phase is Phase.FORWARD else _turned(call, "forward", "backward")
                part = "input_kwargs" if role is Role.INPUT and not slot[:1].isdigit() else _PARTS[role]
                entry = told.setdefault(name, {"input": {}, "output": {}})[part]
                entry[slot] = self._leaf(row, f"{name}.{_SAID.get(part, part)}.{slot}")
            else:
                self._left[f"{role.label} as the optimizer used it" if role is Role.PARAM_GRAD else role.label] += 1
        for each in told.values():
            each |= {part: _listed(each[part]) for part in ("input_args", "input", "output") if part in each}
        for at, name in names.items():
            weights = self._weights.get(int(calls["module"][at]), {}).items()
            told[name]["parameters"] = {slot: self._leaf(row, f"{name}.parameters.{slot}") for slot, row in weights}
            for slot, value in json.loads(modules[calls["module"][at]].arguments or "{}").items():
                plain = value if isinstance(value, (bool, int, float)) else str(value)
                told[name]["input_kwargs"].setdefault(slot, {"type": type(value).__name__, "value": plain})
        for module, rows in gradients.items():
            name = f"{self._name(modules[module])}.parameters_grad.0"
            told[name] = {slot: [self._leaf(row, f"{name}.{slot}")] for slot, row in rows.items()}
        for module, rows in after.items():
            self._weights[module] |= rows
        return told

    def _construct(self, calls: np.ndarray, names: Mapping[int, str], step: int, told: Any) -> dict[str, Any]:
        """Return which call lies in which; with the micro-batch, as in Megatron's dumps, where there are several."""
        before, micros = self._reader.calls_before(step), sorted({int(calls["micro"][at]) for at in names}, key=abs)
        parents = {name: names.get(int(calls["caller"][at]) - before) for at, name in names.items()}
        order = {name: micros.index(calls["micro"][at]) for at, name in names.items()}
        for name in filter(_BACKWARD.search, told):
            forward = _turned(name, "backward", "forward")
            around, order[name] = parents[forward], order[forward]
            parents[name] = around and _turned(around, "forward", "backward")
        several = {name: [parent, order[name]] for name, parent in parents.items()}
        return {**several, "megatron_micro_step_number": len(micros)} if len(micros) > 1 else dict(parents)

    def _stack(self, calls: np.ndarray, names: Mapping[int, str]) -> dict[str, Any]:
        """Return the lines that make calls, as far as they are recorded."""
        found: dict[str, list[str]] = defaultdict(list)
        for module, name in ((self._reader.modules[calls["module"][at]], name) for at, name in names.items()):
            place = f"{module.file}:{module.line}" if module.is_operation else module.called_from
            if place:
                found["File {0}, line {2}, in forward, \n ".format(*place.rpartition(":"))].append(name)
        return {str(at): [called, [frame]] for at, (frame, called) in enumerate(found.items())}

    def _leaf(self, row: Any, name: str) -> dict[str, Any]:
        """Return what dump.json says of a tensor; write its values where there are some."""
        dtype, is_torch = row["dtype"].decode(), self._framework == "pytorch"
        shown = f"torch.{dtype}" if is_torch else dtype.capitalize().replace("Bf", "BF").replace("Ui", "UI")
        told = {"type": "torch.Tensor" if is_torch else "mindspore.Tensor", "dtype": shown, **_numbers(row)}
        told |= {"shape": list(self._reader.shapes[row["shape"]]), "requires_grad": bool(row["requires_grad"])}
        self._counts["seen"] += 1
        if row["tensor"] >= 0:
            array, safe = self._reader.values(int(row["tensor"])), re.sub(r"[^\w.-]", "_", name)[-200:]
            safe = f"{safe}_{len(self._files)}" if safe in self._files else safe
            self._files.add(safe)
            self._counts["values"] += 1
            path = self._place / "dump_tensor_data" / f"{safe}.{'pt' if is_torch else 'npy'}"
            if is_torch:
                write_tensor(path, array)
            else:
                np.save(path, array if array.dtype.isbuiltin == 1 else array.astype(np.float32))
            told["data_name"] = path.name
        return told


def _turned(name: str, one: str, other: str) -> str:
    """Return the name of the other pass of a call."""
    return re.sub(rf"\.{one}(\.\d+)?$", rf".{other}\1", name)


def _numbers(row: Any) -> dict[str, float | None]:
    """Return statistics of all elements, as mindstudio-probe takes them: a recording has those of the finite ones."""
    high, low, mean, norm = (float(row[name.lower()]) for name in _NUMBERS)
    if row["nan"] or (math.isnan(high) and not row["posinf"] + row["neginf"]):
        return dict.fromkeys(_NUMBERS, math.nan if row["nan"] else None)
    high, low = math.inf if row["posinf"] else high, -math.inf if row["neginf"] else low
    high, low = low if math.isnan(high) else high, high if math.isnan(low) else low
    mean, norm = (high + low, math.inf) if row["posinf"] + row["neginf"] else (mean, norm)
    return dict(zip(_NUMBERS, (high, low, mean, norm), strict=True))


def _listed(found: Mapping[str, Any]) -> list[Any] | dict[str, Any]:
    """Return tensors as a list where their slots are 0, 1, 2 …, else by slot: both are read as the same names."""
    is_list = {*found} == {str(at) for at in range(len(found))}
    return [found[str(at)] for at in range(len(found))] if is_list else dict(found)
