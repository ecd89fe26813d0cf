"""Dumps of a small model in the forms of other tools, made with numpy: no tool is needed. Faults are planted in one module.

The model is ``up → block(norm → proj, plus its input) → head``, trained on the mean of the squares of its output.
"""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probe.checkpoints import Stored, safetensors

CLASSES = {"up": "Linear", "block": "Block", "block.norm": "LayerNorm", "block.proj": "Linear", "head": "Linear"}
INSIDE = {"block.norm": "block", "block.proj": "block"}
PARTS = {"": ["up", "block", "head"], "block": ["block.norm", "block.proj"]}
FAULTS = {
    "up": {"bias": 0.01}, "block.norm": {"eps": 1e-2}, "block.proj": {"factor": 1.02}, "head": {"bias": 0.02},
    "block": {"factor": 1.01},
}  # fmt: skip
"""what is wrong in a module: its output is multiplied, or shifted; the norm has another eps"""


@dataclass
class Run:
    """One training step: what each module was given and returned, and the gradients of both."""

    given: dict[str, np.ndarray] = field(default_factory=dict)
    returned: dict[str, np.ndarray] = field(default_factory=dict)
    back: dict[str, np.ndarray] = field(default_factory=dict)
    """gradients of what modules returned"""
    on: dict[str, np.ndarray] = field(default_factory=dict)
    """gradients of what they were given"""
    weights: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    grads: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def calls(self) -> Iterator[str]:
        """Yield the modules in the order in which they begin."""
        for name in PARTS[""]:
            yield name
            yield from PARTS.get(name, [])


def trained(faults: dict[str, dict[str, float]] | None = None, steps: int = 1, lr: float = 0.1) -> list[Run]:
    """Return the steps of a training, in which some modules are wrong."""
    rng, faults = np.random.default_rng(0), faults or {}
    sizes = {"up": (4, 6), "block.proj": (6, 6), "head": (6, 3)}
    weights = {
        name: {"weight": (rng.normal(size=(n, m)) / 2).astype("f4"), "bias": rng.normal(size=n).astype("f4")}
        for name, (m, n) in sizes.items()
    }
    weights["block.norm"] = {"weight": np.ones(6, "f4"), "bias": np.zeros(6, "f4")}
    found = []
    for _ in range(steps):
        found.append(_step(rng.normal(size=(5, 4)).astype("f4"), weights, faults))
        weights = {
            name: {slot: value - np.float32(lr) * found[-1].grads[name][slot] for slot, value in own.items()}
            for name, own in weights.items()
        }
    return found


def _step(x: np.ndarray, weights: dict[str, dict[str, np.ndarray]], faults: dict[str, dict[str, float]]) -> Run:
    run = Run(weights=weights)
    scale = {}

    def called(name: str, x: np.ndarray) -> np.ndarray:
        run.given[name] = x
        fault, own = faults.get(name, {}), weights.get(name, {})
        if name == "block":
            y = x + called("block.proj", called("block.norm", x))
        elif name == "block.norm":
            centred = x - x.mean(-1, keepdims=True)
            scale[name] = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(fault.get("eps", 1e-5)))
            y = centred * scale[name] * own["weight"] + own["bias"]
        else:
            y = x @ own["weight"].T + own["bias"]
        run.returned[name] = (y * np.float32(fault.get("factor", 1)) + np.float32(fault.get("bias", 0))).astype("f4")
        return run.returned[name]

    def back(name: str, grad: np.ndarray) -> np.ndarray:
        run.back[name] = grad = grad.astype("f4")
        own = weights.get(name, {})
        if name == "block":
            run.on[name] = grad + back("block.norm", back("block.proj", grad))
        elif name == "block.norm":
            normed = (run.returned[name] - own["bias"]) / own["weight"]
            run.grads[name] = {"weight": (grad * normed).sum(0), "bias": grad.sum(0)}
            inner = grad * own["weight"]
            means = inner.mean(-1, keepdims=True), (inner * normed).mean(-1, keepdims=True)
            run.on[name] = scale[name] * (inner - means[0] - normed * means[1])
        else:
            run.grads[name] = {"weight": grad.T @ run.given[name], "bias": grad.sum(0)}
            run.on[name] = grad @ own["weight"]
        return run.on[name]

    y = called("head", called("block", called("up", x)))
    back("up", back("block", back("head", 2 * y / y.size)))
    return run


# ---- In the forms of tools


def as_named(folder: Path, runs: list[Run], pattern: str = "step{step}/{module}.npy") -> Path:
    """Write what modules returned as ``.npy`` files."""
    for step, run in enumerate(runs):
        for name in run.calls():
            path = folder / pattern.format(step=step, module=name)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, run.returned[name])
    return folder


def as_msprobe(folder: Path, runs: list[Run], task: str = "tensor", framework: str = "pytorch", rank: str = "proc1", *,
               backward: bool = True, operations: bool = False) -> Path:  # fmt: skip
    """Write a dump of mindstudio-probe at level L0, or mix with the function that each Linear calls."""
    for step, run in enumerate(runs):
        place = folder / f"step{step}" / rank
        (place / "dump_tensor_data").mkdir(parents=True)
        told: dict[str, Any] = {}
        construct: dict[str, str | None] = {}
        for name in run.calls():
            full = _full(name, framework, "forward")
            construct[full] = _full(INSIDE[name], framework, "forward") if name in INSIDE else None
            if operations and CLASSES[name] == "Linear":
                call = f"Functional.linear.{sum('Functional' in each for each in told)}.forward"
                construct[call] = full
                values = [run.given[name], *run.weights[name].values()]
                args = [_told(place, f"{call}.input.{n}", each, task, framework) for n, each in enumerate(values)]
                told[call] = {
                    "input_args": [*args, {"type": "int", "value": 1}], "input_kwargs": {},
                    "output": [_told(place, f"{call}.output.0", run.returned[name], task, framework)],
                }  # fmt: skip
            own = {
                slot: _told(place, f"{full}.parameters.{slot}", value, task, framework)
                for slot, value in run.weights.get(name, {}).items()
            }
            told[full] = {
                "input_args": [_told(place, f"{full}.input.0", run.given[name], task, framework)], "input_kwargs": {},
                "output": [_told(place, f"{full}.output.0", run.returned[name], task, framework)], "parameters": own,
            }  # fmt: skip
        for name in reversed(list(run.calls())) if backward else ():
            full = _full(name, framework, "backward")
            told[full] = {
                "input": [_told(place, f"{full}.input.0", run.back[name], task, framework)],
                "output": [_told(place, f"{full}.output.0", run.on[name], task, framework)],
            }
            grads = _full(name, framework, "parameters_grad")
            told[grads] = {
                slot: [_told(place, f"{grads}.{slot}", value, task, framework)]
                for slot, value in run.grads.get(name, {}).items()
            }
        top = {"task": task, "level": "mix" if operations else "L0", "framework": framework, "dump_data_dir": None}
        (place / "dump.json").write_text(json.dumps({**top, "data": {} if task == "structure" else told}))
        (place / "construct.json").write_text(json.dumps(construct))
        (place / "stack.json").write_text(
            json.dumps({"0": [list(construct), ["File /home/user/model.py, line 7, in forward, \n y = f(x)"]]})
        )
    return folder


def _full(name: str, framework: str, part: str) -> str:
    return f"{'Module' if framework == 'pytorch' else 'Cell'}.{name}.{CLASSES[name]}.{part}.0"


def _told(folder: Path, name: str, array: np.ndarray, task: str, framework: str) -> dict[str, Any]:
    """Return what dump.json has of a tensor; write its values with the task ``tensor``."""
    is_torch = framework == "pytorch"
    numbers = (array.max(), array.min(), array.mean(), np.linalg.norm(array))
    kind = ("torch.Tensor", f"torch.{array.dtype}") if is_torch else ("mindspore.Tensor", str(array.dtype).capitalize())
    found = {"type": kind[0], "dtype": kind[1], "shape": list(array.shape)}
    found |= dict(zip(("Max", "Min", "Mean", "Norm"), map(float, numbers), strict=True))
    if task == "tensor":
        found["data_name"] = f"{name}.{'pt' if is_torch else 'npy'}"
        path = folder / "dump_tensor_data" / str(found["data_name"])
        path.write_bytes(torch_file(array)) if is_torch else np.save(path, array)
    return found


def as_padiff(folder: Path, runs: list[Run], framework: str = "paddle") -> Path:
    """Write a dump folder of PaDiff; Linear of Paddle has its weights as [in, out]."""
    for step, run in enumerate(runs):
        place, count = folder / "net" / f"step_{step}" / "rank_0", iter(range(1000))
        for name in ("tensors", "weights", "grads"):
            (place / name).mkdir(parents=True)

        def saved(kind: str, array: np.ndarray, place: Path = place, count: Iterator[int] = count) -> str:
            path = place / kind / f"{kind}_{next(count)}.npy"
            np.save(path, array)
            return f"/home/user/padiff_dump/net/{'/'.join(path.parts[-4:])}"

        def node(name: str, run: Run = run, saved: Any = saved) -> dict[str, Any]:
            def told(array: np.ndarray) -> dict[str, str]:
                return {
                    "path": saved("tensors", array),
                    "dtype": f"{framework}.float32",
                    "shape": str(list(array.shape)),
                }

            return {
                "name": CLASSES.get(name, "Net"), "route": f"net.{name}".rstrip("."), "type": "net",
                "fwd_outputs": [told(run.returned[name or "head"])], "bwd_grads": [told(run.on[name])] if name else [],
                "children": [node(each) for each in PARTS.get(name, [])],
            }  # fmt: skip

        def owner(name: str, run: Run = run, saved: Any = saved) -> dict[str, Any]:
            def named(kind: str, values: dict[str, np.ndarray]) -> dict[str, str]:
                turns = framework == "paddle" and CLASSES.get(name) == "Linear"
                return {slot: saved(kind, value.T if turns else value) for slot, value in values.items()}

            return {
                "name": CLASSES.get(name, "Net"), "route": f"net.{name}".rstrip("."),
                "weights": named("weights", run.weights.get(name, {})), "grads": named("grads", run.grads.get(name, {})),
                "children": [owner(each) for each in PARTS.get(name, [])],
            }  # fmt: skip

        top = {"model_name": "net", "framework": framework}
        (place / "report.json").write_text(json.dumps({**top, "tree": [node("")]}))
        (place / "params.json").write_text(json.dumps({**top, "tree": owner("")}))
    return folder


def as_graph_mode(folder: Path, runs: list[Run]) -> Path:
    """Write a statistic.csv of MindSpore's Dump as graph mode has it: kernels by their scopes, two of a Dense."""
    columns = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Avg Value,L2Norm Value"
    for step, run in enumerate(runs):
        lines = [columns]

        def told(kind: str, name: str, array: np.ndarray, lines: list[str] = lines) -> None:
            shape, time = ",".join(map(str, array.shape)), 1795895165825300 + len(lines)
            numbers = array.max(), array.min(), array.mean(), np.linalg.norm(array)
            head = (
                f'{kind},Default_network-Net_{name}_{kind}-op0,0,0,{time},output,0,{array.nbytes},Float32,"({shape})"'
            )
            lines.append(",".join([head, *(repr(float(each)) for each in numbers)]))

        for name in ("up", "block.norm", "block.proj", "block", "head"):  # as they end
            scope = f"block-Block_{name[6:]}-{CLASSES[name]}" if "." in name else f"{name}-{CLASSES[name]}"
            if CLASSES[name] == "Linear":
                told("MatMul", scope, run.given[name] @ run.weights[name]["weight"].T)
            told({"Linear": "BiasAdd", "Block": "Add"}.get(CLASSES[name], CLASSES[name]), scope, run.returned[name])
        place = folder / "rank_0" / "Net" / "0" / str(step)
        place.mkdir(parents=True)
        (place / "statistic.csv").write_text("\n".join(lines) + "\n")
    return folder


def as_ptdbg(folder: Path, runs: list[Run], functions: bool = False) -> Path:
    """Write a dump of ptdbg_ascend: of modules that ``module_dump`` was given, or also of the function that each Linear calls."""
    for step, run in enumerate(runs):
        place, lines, count = folder / "ptdbg_dump_v4.0" / f"step{step}" / "rank4711", list[Any](), iter(range(9))
        (place / "api_stack_dump").mkdir(parents=True)

        def told(name: str, array: np.ndarray, place: Path = place, lines: list[Any] = lines) -> None:
            np.save(place / "api_stack_dump" / f"{name}.npy", array)
            numbers = [float(array.max()), float(array.min()), float(array.mean())]
            lines.append([name, 0, [], f"torch.{array.dtype}", list(array.shape), numbers])

        for name in ["up", "block.norm", "block.proj", "block", "head"]:  # as they end
            if functions and CLASSES[name] == "Linear":
                call = f"Functional_linear_{next(count)}_forward"
                for slot, value in enumerate((run.given[name], *run.weights[name].values())):
                    told(f"{call}_input.{slot}", value)
                lines.append([f"{call}_input.3", 0, [], "<class 'int'>", "[]", [1, 1, 1]])
                told(f"{call}_output", run.returned[name])
                lines.append([f"{call}_stack_info", [["/home/user/model.py", "7", "forward", "y = f(x)"]]])
            told(f"{name}_0_forward_input.0", run.given[name])
            told(f"{name}_0_forward_output", run.returned[name])
        for name in ["head", "block", "block.proj", "block.norm", "up"]:
            told(f"{name}_0_backward_input", run.back[name])
            told(f"{name}_0_backward_output.0", run.on[name])
        (place / "api_stack_dump.pkl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


def as_sglang(folder: Path, runs: list[Run], rank: int = 0) -> Path:
    """Write a folder of SGLang's dumper with its hooks, gradients and parameters."""
    (folder / "dump_1").mkdir(parents=True, exist_ok=True)
    count = iter(range(1, 1000))
    for step, run in enumerate(runs):

        def told(name: str, array: np.ndarray, step: int = step, **tags: object) -> None:
            tags = {"step": step, "rank": rank, "dump_index": next(count), "name": name, **tags}
            name = "___".join(f"{key}={value}" for key, value in tags.items())
            (folder / "dump_1" / f"{name}.pt").write_bytes(torch_file(array, is_value=True))

        told("input_ids", np.arange(3, dtype="f4"), recompute_status="disabled")
        calls = [("up", ()), ("block", ("block.norm", "block.proj")), ("head", ())]
        for name, inner in calls:
            for at in (name, *inner):
                told(f"non_intrusive__{at}.inputs.0", run.given[at], recompute_status="disabled", layer_id=1)
                if at != "block":
                    told(f"non_intrusive__{at}.output", run.returned[at], recompute_status="disabled", layer_id=1)
            if inner:
                told(f"non_intrusive__{name}.output", run.returned[name], recompute_status="disabled")
        told("non_intrusive__up.output", -run.returned["up"], recompute_status="recompute")
        for name in CLASSES:
            told(f"grad__non_intrusive__{name}.output", run.back[name])
        for name, own in run.weights.items():
            for slot, value in own.items():
                told(f"param__{name}.{slot}", value, recompute_status="disabled")
                told(f"grad__param__{name}.{slot}", run.grads[name][slot], recompute_status="disabled")
    return folder


def as_transformers(folder: Path, runs: list[Run]) -> Path:
    """Write what ``model_addition_debugger_context(use_repr=False)`` does: modules with modules inside have no output."""
    folder.mkdir(parents=True)
    run = runs[0]

    def told(name: str, array: np.ndarray) -> dict[str, str]:
        stored = Stored("data", array.dtype, array.shape)
        safetensors.write(folder / f"{name}.safetensors", [stored], [array], "torch")
        return {"shape": f"torch.Size({list(array.shape)})", "dtype": "torch.float32", "value": f"./{name}.safetensors"}

    def node(name: str) -> dict[str, Any]:
        full, inner = f"Net.{name}", PARTS.get(name, [])
        found: dict[str, Any] = {
            "module_path": full,
            "inputs": {"args": [told(f"{full}_inputs_args_0", run.given[name])]},
        }
        found |= {"children": [node(each) for each in inner]} if inner else {}
        return found | ({} if inner else {"outputs": told(f"{full}_outputs", run.returned[name])})

    tree = {"module_path": "Net", "inputs": {"args": [], "kwargs": {"x": told("Net_inputs_kwargs_x", run.given["up"])}}}
    told("Net_outputs_logits", run.returned["head"])
    tree |= {"children": [node(name) for name in PARTS[""]]}
    (folder / "Net_debug_tree_FULL_TENSORS.json").write_text(json.dumps(tree))
    return folder


def torch_file(array: np.ndarray, is_value: bool = False) -> bytes:
    """Return what torch.save writes of one tensor, or of it as a value with its tags, without torch."""
    import io

    strides = [each // array.itemsize for each in np.ascontiguousarray(array).strides]
    number, text = (lambda n: b"J" + struct.pack("<i", n)), (lambda s: b"X" + struct.pack("<I", len(s)) + s)
    sizes = [b"(" + b"".join(map(number, each)) + b"t" for each in (array.shape, strides)]
    storage = (
        b"(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + number(array.size) + b"tQ"
    )
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + number(0)
        + b"".join(sizes)
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        whole = b"}(" + text(b"value") + tensor + text(b"meta") + b"}u" if is_value else tensor
        archive.writestr("archive/data.pkl", b"\x80\x02" + whole + b".")
        archive.writestr("archive/data/0", np.ascontiguousarray(array, "<f4").tobytes())
    return file.getvalue()


class Runs:
    """An object whose pickle would run a program."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch hacked",)


def hostile_torch() -> bytes:
    """Return a file of torch.save whose pickle would run a program."""
    import io

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Runs(), 2))
    return file.getvalue()
