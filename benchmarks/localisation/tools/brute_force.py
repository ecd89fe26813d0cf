"""Confirm the truth of the faulty pairs without probe: `python -m benchmarks.localisation.tools.brute_force`.

Side B runs with its fault and without, in one process, where all that the fault does not touch is equal bit by bit:
so no tolerance is needed. Every call of a module in the run without is made again in both models with the same
arguments and the same gradient of its output: the module whose outputs differ, though those of no module in it do,
is where a forward fault is, whatever its inputs were in the faulty run. The same for what is passed back to the
arguments (backward) and to the parameters (gradient). The optimizer is held against the other one step by step.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.grading import expected
from benchmarks.localisation.models.building import DTYPES
from benchmarks.localisation.models.ports.counterparts import COUNTERPARTS, counterparts
from benchmarks.localisation.pairs.pair import Pair, Setup
from benchmarks.localisation.pairs.registry import PARTS
from benchmarks.localisation.tools.noise_ladder import reference
from benchmarks.localisation.tools.port_noise import of_port
from benchmarks.localisation.tools.run import Run
from benchmarks.localisation.tools.suite import chosen
from benchmarks.localisation.tools.training import run_of

Place = tuple[str, str]
"""path and phase"""
MOST = 0.6
"""the share of all modules from which on a fault concerns the whole"""
ROUNDING = 1e-5
"""by which a second model of the same step may differ, once the first has been updated"""


@dataclass
class Call:
    """One call of a module, as it was given its arguments."""

    path: str
    args: Any
    kwargs: Any


@dataclass
class Traced:
    """What one run did in one step."""

    start: dict[str, Tensor]
    given: dict[str, Tensor]
    calls: list[Call]
    """in the order in which they returned: children before their parents"""
    outputs: dict[str, list[Tensor]]
    """of each module's last call"""
    loss: Tensor
    arrived: list[Tensor]
    """the gradients that came back to the model's outputs"""
    gradients: dict[str, Tensor | None]
    used: dict[str, Tensor | None]
    end: dict[str, Tensor]
    buffers: list[str]
    states: dict[str, Tensor]


def trace(run: Run, index: int) -> Traced:
    """Train one step and keep what it did."""
    run.begin(index)
    start, given = _state(run.model), run.batch(index)
    calls: list[Call] = []
    outputs: dict[str, list[Tensor]] = {}
    arrived: list[Tensor] = []
    used: dict[str, Tensor | None] = {}
    handles = [
        handle
        for path, module in run.model.named_modules()
        for handle in _watch(module, path, calls, outputs, arrived, path in _roots(run))
    ]
    for optimizer in run.optimizers:
        handles.append(optimizer.register_step_pre_hook(lambda *_: used.update(_gradients(run))))
    loss = run.backward(index)
    gradients = _gradients(run)
    run.update(index)
    for handle in handles:
        handle.remove()
    states = {
        f"{run.names[parameter]}:{key}": value.clone()
        for optimizer in run.optimizers
        for parameter, kept in optimizer.state.items()
        for key, value in kept.items()
        if isinstance(value, Tensor) and parameter in run.names
    }
    buffers = [name for name, _ in run.model.named_buffers()]
    return Traced(start, given, calls, outputs, loss, arrived, gradients, used, _state(run.model), buffers, states)


def places(pair: Pair) -> tuple[int, list[Place]]:
    """Return the first step in which B's faults are real, and the places in the order of cause."""
    right, faulty = run_of(replace(pair.b, planted=())), run_of(pair.b)
    for index in range(pair.b.steps):
        a, b = trace(right, index), trace(faulty, index)
        found = list(_of_step(right, faulty, a, b))
        if found:
            return index, found
    return -1, []


def _of_step(right: Run, faulty: Run, a: Traced, b: Traced) -> Iterator[Place]:
    wrong = [name for name in a.start if name not in b.start or not torch.equal(a.start[name], b.start[name])]
    yield from _modules(right, wrong, "init")
    yield from [("", "forward") for key in a.given if key != "target" and not torch.equal(a.given[key], b.given[key])]
    local = list(_of_calls(right, faulty, a, b))
    yield from local
    is_game = len(right.parts) > 1
    if not local and not wrong and not is_game:
        if not torch.equal(a.loss, b.loss) or not _same(a.arrived, b.arrived):
            yield "", "loss"
            return
    if not local:
        rounding = ROUNDING if is_game else 0.0
        yield from _modules(right, _differing(a.gradients, b.gradients, rounding), "gradient")
        yield from _modules(right, _differing(a.used, b.used, rounding), "update")
        wrong = _differing(a.states, b.states, rounding) + _differing(a.end, b.end, 0.0)
        parameters = {*right.names.values()}
        wrong = [name.partition(":")[0] for name in wrong]
        yield from _modules(right, [name for name in wrong if name in parameters], "update")


def _of_calls(right: Run, faulty: Run, a: Traced, b: Traced) -> Iterator[Place]:
    """Make every call again in both models: where do outputs, passed back gradients, parameter gradients differ?"""
    ends = a.end, b.end
    right.model.load_state_dict(a.start, strict=False)
    faulty.model.load_state_dict(a.start, strict=False)
    found: dict[str, list[str]] = {"forward": [], "backward": [], "gradient": []}
    for call in a.calls:
        pair = [run.model.get_submodule(call.path) for run in (right, faulty)]
        results = [_replay(run, module, call) for run, module in zip((right, faulty), pair, strict=True)]
        for phase, x, y in zip(found, *results, strict=True):
            if not _same(x, y):
                if not any(_is_below(path, call.path) for paths in found.values() for path in paths):
                    found[phase].append(call.path)
                break
    right.model.load_state_dict(ends[0], strict=False)
    faulty.model.load_state_dict(ends[1], strict=False)
    for phase, paths in found.items():
        yield from ((path, phase) for path in dict.fromkeys(paths))


def _replay(run: Run, module: nn.Module, call: Call) -> tuple[list, list, list]:
    """Return outputs and buffers, gradients of the arguments, gradients of the parameters."""
    buffers = [buffer.clone() for buffer in module.buffers()]
    leaves: list[Tensor] = []

    def fresh(x: Tensor) -> Tensor:
        if not x.requires_grad:
            return x.clone()
        leaves.append(x.detach().clone().requires_grad_())
        return leaves[-1].clone()

    args, kwargs = tree_map_only(Tensor, fresh, (call.args, call.kwargs))
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=run.setup.dtype == "autocast"):
        outputs = [x for x in tree_leaves(_plain(module(*args, **kwargs))) if isinstance(x, Tensor)]
    after = [buffer.clone() for buffer in module.buffers()]
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in outputs]
    pairs = [(x, seed) for x, seed in zip(outputs, seeds, strict=True) if x.requires_grad]
    parameters = list(module.parameters())
    wanted = leaves + [parameter for parameter in parameters if parameter.requires_grad]
    gradients: tuple[Tensor | None, ...] = (None,) * len(wanted)
    if pairs and wanted:
        ends, seeds = [x for x, _ in pairs], [seed for _, seed in pairs]
        gradients = torch.autograd.grad(ends, wanted, seeds, allow_unused=True)
    with torch.no_grad():
        for buffer, before in zip(module.buffers(), buffers, strict=True):
            buffer.copy_(before)
    of_parameters = iter(gradients[len(leaves) :])
    return (
        [x.detach() for x in outputs] + after,
        list(gradients[: len(leaves)]),
        [next(of_parameters) if parameter.requires_grad else None for parameter in parameters],
    )


def _watch(
    module: nn.Module,
    path: str,
    calls: list[Call],
    outputs: dict[str, list[Tensor]],
    arrived: list[Tensor],
    is_root: bool,
) -> Iterator[Any]:
    waiting: list[Call] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        waiting.append(Call(path, *tree_map_only(Tensor, _copied, (args, kwargs))))

    def after(module: nn.Module, args: Any, output: Any) -> None:
        calls.append(waiting.pop())
        found = [x for x in tree_leaves(_plain(output)) if isinstance(x, Tensor)]
        outputs[path] = [x.detach().clone() for x in found]
        for x in found if is_root else ():
            if x.requires_grad:
                x.register_hook(lambda gradient: arrived.append(gradient.clone()))

    yield module.register_forward_pre_hook(before, with_kwargs=True)
    yield module.register_forward_hook(after)


def _copied(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _plain(output: Any) -> Any:
    return dict(output) if hasattr(output, "items") else output


def _roots(run: Run) -> list[str]:
    return [path for path, module in run.model.named_modules() if module in run.parts]


def _state(model: nn.Module) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def _gradients(run: Run) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for p, name in run.names.items()}


def _differing(a: dict[str, Any], b: dict[str, Any], rounding: float) -> list[str]:
    largest = max((float(x.double().norm()) for x in a.values() if x is not None), default=0.0)
    return [name for name in a if not _alike(a[name], b.get(name), rounding * largest)]


def _alike(a: Tensor | None, b: Tensor | None, most: float) -> bool:
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    return torch.equal(a, b) or float((a.double() - b.double()).norm()) <= most


def _same(a: list[Tensor | None], b: list[Tensor | None]) -> bool:
    return len(a) == len(b) and all(_alike(x, y, 0.0) for x, y in zip(a, b, strict=True))


def _modules(run: Run, names: list[str], phase: str) -> Iterator[Place]:
    """Return the modules of parameters; "" for most of all."""
    paths = dict.fromkeys(name.rpartition(".")[0] for name in names)
    everywhere = {name.rpartition(".")[0] for name in run.names.values()}
    if len(paths) > max(2, MOST * len(everywhere)):
        paths = {"": None}
    yield from ((path, phase) for path in paths)


def _is_below(path: str, other: str) -> bool:
    return path != other and (not other or path.startswith(f"{other}."))


def holds(pair: Pair, step: int, found: list[Place]) -> bool:
    """Tell whether the truth of a pair names the first place that was found, and no other phase comes before."""
    truth = pair.truth
    assert truth is not None
    if not found or step != truth.step:
        return False
    phase = found[0][1]
    paths = {path for path, each in found if each == phase}
    port = pair.b.architecture
    if port in COUNTERPARTS:
        return phase in truth.phases and all(truth.names(each) for path in paths for each in counterparts(port, path))
    wanted = _on_side_b(truth.path, pair.mapping) if pair.mapping else truth.path
    names = {path for path in paths if path == wanted or any(fnmatchcase(path, glob) for glob in truth.also)}
    return phase in truth.phases and names == paths


def _on_side_b(path: str, mapping: Mapping[str, Any]) -> str:
    """Translate A's path by a mapping of two levels: the root's section, and that of the layers in its list."""
    of_root, *of_layers = mapping.values()
    parts = _renamed(path, of_root).split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts))
    head, rest = parts[: number + 1], ".".join(parts[number + 1 :])
    for section in of_layers:
        rest = _renamed(rest, section)
    return ".".join([*head, rest] if rest else head)


def _renamed(path: str, section: Mapping[str, str]) -> str:
    keys = sorted((key for key in section if f"{path}.".startswith(f"{key}.")), key=len)
    return section[keys[-1]] + path[len(keys[-1]) :] if keys else path


def times_noise(pair: Pair) -> float:
    """Return how many times larger than the pair's own noise the fault is where it is.

    NaN for another structure, unless it is one whose counterparts are known element by element (`port_noise`).

    That is the relative error of B with the fault to B without, over that of A to B without; the largest quotient of
    the tensors at the place (of all parameters, from backward on).
    """
    is_port = pair.b.architecture in COUNTERPARTS
    if pair.truth is None or (pair.mapping is not None and not is_port):
        return math.nan
    sides = pair.a, replace(pair.b, planted=()), pair.b
    traces = _traces(sides, pair.truth.step)
    if is_port:
        wide = _traces([reference(replace(pair, a=side)) or side for side in sides[:2]], pair.truth.step)
        places = list(of_port(pair, traces, wide))
    else:
        places = [_at(traced, pair) for traced in traces]
    least = torch.finfo(DTYPES[pair.a.dtype]).eps / 2
    return max((_error(y, z) / max(_error(y, x), least) for x, y, z in zip(*places, strict=False)), default=math.nan)


def _traces(sides: Sequence[Setup], step: int) -> list[Traced]:
    """Return what each side does in a step, once it has been trained up to there."""
    runs = [run_of(side) for side in sides]
    for index in range(step + 1):
        traces = [trace(run, index) for run in runs]
    return traces


def _at(traced: Traced, pair: Pair) -> list[Tensor]:
    assert pair.truth is not None
    path, phase = pair.truth.path, pair.phase
    if phase == "init":
        return [tensor for name, tensor in traced.start.items() if name.rpartition(".")[0] == path]
    if phase == "forward" and path:
        return traced.outputs[path] + [traced.end[name] for name in traced.buffers if name.rpartition(".")[0] == path]
    if phase == "forward":
        return [x for planted in pair.b.planted for x in _whole(traced, planted.path)]
    if phase == "loss":
        return [traced.loss, *traced.arrived]
    if phase == "update":
        return [*(traced.end[name] - traced.start[name] for name in traced.gradients), *traced.states.values()]
    zero = torch.zeros(())
    return [zero if gradient is None else gradient for gradient in traced.gradients.values()]


def _whole(traced: Traced, name: str) -> list[Tensor]:
    """Return the input of that name, or the model's outputs where the fault is in its own code."""
    return [traced.given[name]] if name else traced.outputs[""]


def _error(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return 1.0
    norm = max(float(a.double().norm()), float(b.double().norm()))
    return float((a.double() - b.double()).norm()) / norm if norm else 0.0


@click.command()
@click.option("--share", type=click.FloatRange(0, 1), default=1.0, show_default=True)
@click.option("--part", type=click.Choice([*PARTS]), default="all", show_default=True)
@click.option("--only", multiple=True, help="Pairs whose names match this glob; may be repeated.")
def main(share: float, part: str, only: tuple[str, ...]) -> None:
    """Print every faulty pair, the place that brute force finds, and whether it is the one that the table says."""
    warnings.simplefilter("ignore")
    table = Table("pair", "truth", "found", "× noise", "holds")
    right = []
    for pair in (pair for pair in chosen(share, part) if pair.b.framework == "torch"):
        if pair.truth is None or (only and not any(fnmatchcase(pair.name, glob) for glob in only)):
            continue
        step, found = places(pair)
        right.append(holds(pair, step, found))
        said = ", ".join(f"{phase} {path or 'as a whole'}" for path, phase in found[:3])
        holding = "yes" if right[-1] else "NO"
        table.add_row(pair.name, expected(pair.truth), f"step {step} · {said}", f"{times_noise(pair):.2g}", holding)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    Console().print(f"{sum(right)} of {len(right)} hold")
    raise SystemExit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
