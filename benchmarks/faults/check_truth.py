"""Confirm the truth table without probe: `python -m benchmarks.faults.check_truth`.

Every faulty side B is held against the same side without its fault (both eager, one process), where all that
the fault does not touch is bitwise equal. So the first place that differs needs no tolerance. Its size is
then set against the noise that the pair sdpa/eager has at the same place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.faults.models import BASE, EAGER, A, B, Run, Setup, batch
from benchmarks.faults.truth import FAULTS, Truth

Values = dict[str, Tensor]


@dataclass
class Traced:
    """All that one run did in its last step, by module path or parameter name."""

    parameters: Values
    ids: Tensor
    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    outputs: dict[str, list[Tensor]] = field(default_factory=dict)
    """In the order in which the modules returned."""
    vjps: dict[str, list[Tensor]] = field(default_factory=dict)
    """What a Linear, norm or activation makes of its recorded input and a fixed output gradient."""
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    gradients: Values = field(default_factory=dict)
    updates: Values = field(default_factory=dict)
    states: Values = field(default_factory=dict)


def trace(setup: Setup, given: Traced | None = None) -> Traced:
    """Run the first step of `setup`; `given` supplies the inputs of the local backward check."""
    run = Run(replace(setup, steps=1))
    traced = Traced({name: p.detach().clone() for name, p in run.model.named_parameters()}, batch(setup, 0))
    hooks = [
        module.register_forward_hook(_keep(traced, name), with_kwargs=True)
        for name, module in run.model.named_modules()
    ]
    traced.loss = run.backward(0)
    for hook in hooks:
        hook.remove()
    for name, module in run.model.named_modules():
        inputs = (given or traced).inputs.get(name)
        if inputs and not list(module.children()) and inputs[0].is_floating_point() and "rotary" not in name:
            traced.vjps[name] = _vjp(module, inputs[0])
    traced.gradients = {n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None}
    run.optimizer.step()
    traced.updates = {n: p.detach() - traced.parameters[n] for n, p in run.model.named_parameters()}
    for name, p in run.model.named_parameters():
        traced.states |= {f"{name}:{key}": value for key, value in run.optimizer.state[p].items()}
    return traced


def _keep(traced: Traced, path: str) -> Any:
    def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        given = tree_leaves((args, {key: kwargs[key] for key in kwargs if key != "attention_mask"}))
        traced.inputs[path] = [x.detach().clone() for x in given if isinstance(x, Tensor)]
        leaves = [output.logits] if path == "" else tree_leaves(getattr(output, "last_hidden_state", output))
        if path.endswith("self_attn"):
            leaves = leaves[:1]  # the attention weights exist under eager only
        traced.outputs[path] = [x.detach().clone() for x in leaves if isinstance(x, Tensor)]

    return hook


def _vjp(module: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    output = module(x)
    seed = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    return list(torch.autograd.grad(output, x, seed.to(output.dtype)))


def places(a: Traced, b: Traced, noise: Traced) -> Iterator[tuple[str, str, str, float]]:
    """Every place where B is really wrong, in causal order: path, phase, kind, size over noise.

    A module without a counterpart comes first: that its parameters are missing too only follows from it.
    """
    yield from _missing_modules(a, b)
    for name, value in a.parameters.items():
        if name not in b.parameters:
            yield _module(name), "init", "missing", torch.inf
        elif not torch.equal(value, b.parameters[name]):
            yield _module(name), "init", "init", _ratio(value, b.parameters[name], value)
    if not torch.equal(a.ids, b.ids):
        yield "", "forward", "inputs", torch.inf
    for path, output in a.outputs.items():
        if _same(a.inputs[path], b.inputs.get(path)) and not _same(output, b.outputs.get(path)):
            yield path, "forward", "introduced", _ratio(output[0], b.outputs[path][0], noise.outputs[path][0])
    if _same(a.outputs[""], b.outputs[""]) and not torch.equal(a.loss, b.loss):
        yield "", "loss", "introduced", _ratio(a.loss, b.loss, noise.loss)
    for path, grads in a.vjps.items():
        if path in b.vjps and not _same(grads, b.vjps[path]):
            yield path, "backward", "introduced", _ratio(grads[0], b.vjps[path][0], noise.vjps[path][0])
    for name in a.gradients.keys() - b.gradients.keys():
        yield _module(name), "gradient", "missing", torch.inf
    yield from _updates(a, b, noise)


def _missing_modules(a: Traced, b: Traced) -> Iterator[tuple[str, str, str, float]]:
    """Decoder layers of A whose weights no layer of B has."""
    layers = [{_layer(n): None for n in t.parameters if ".layers." in n} for t in (a, b)]
    if len(layers[0]) > len(layers[1]):
        there = [b.parameters[f"{path}.mlp.up_proj.weight"] for path in layers[1]]
        for path in layers[0]:
            if not any(torch.equal(a.parameters[f"{path}.mlp.up_proj.weight"], value) for value in there):
                yield path, "forward", "missing", torch.inf


def _updates(a: Traced, b: Traced, noise: Traced) -> Iterator[tuple[str, str, str, float]]:
    """Parameters whose gradients agree and whose update or state does not; "" if all of them."""
    names = [n for n, g in a.gradients.items() if n in b.gradients and torch.equal(g, b.gradients[n])]
    wrong = {
        n: _ratio(a.updates[n], b.updates[n], noise.updates[n])
        for n in names
        if not torch.equal(a.updates[n], b.updates[n])
    }
    wrong |= {
        n: _ratio(a.states[n + key], b.states[n + key], noise.states[n + key])
        for n in names
        for key in (":exp_avg", ":exp_avg_sq")
        if not torch.equal(a.states[n + key], b.states[n + key])
    }
    if wrong and len(wrong) == len(names):
        yield "", "update", "update", min(wrong.values())
    elif wrong:  # of equals, the module that comes first in the model
        for name in names:
            if name in wrong:
                yield _module(name), "update", "update", wrong[name]


def _same(a: list[Tensor], b: list[Tensor] | None) -> bool:
    return b is not None and len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def _ratio(a: Tensor, b: Tensor, noisy: Tensor) -> float:
    """The error of B over that of the noisy run, both relative to A (the noise at least one rounding)."""
    scale = max(float(a.double().norm()), 1e-300)
    error, noise = (float((a.double() - x.double()).norm()) / scale for x in (b, noisy))
    return error / max(noise, 2.0**-24)


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _layer(name: str) -> str:
    return ".".join(name.split(".")[:3])


def check(truth: Truth, clean: Traced, noise: Traced) -> tuple[list[tuple[str, str, str, float]], bool]:
    """The places of one fault, and whether the truth table names the first of them."""
    setup = B[truth.name]
    found = list(places(clean, trace(setup, given=clean), noise))
    return found, bool(found) and truth.names(found[0][0]) and found[0][1:3] == (truth.phase, truth.kind)


def main() -> int:
    """Print the check of every row; the exit status is 1 if one does not hold."""
    clean, noise = trace(EAGER), trace(BASE)
    table = Table("row", "first place", "phase", "kind", "error / noise", "other places", "holds")
    right = []
    for truth in FAULTS:
        assert A[truth.baseline].steps == truth.steps_run
        found, holds = check(truth, clean, noise)
        path, phase, kind, ratio = found[0] if found else ("-", "-", "-", 0.0)
        others = dict.fromkeys(f"{p or 'root'} {ph} {k}" for p, ph, k, _ in found[1:])
        shown = ", ".join(list(others)[:2]) + (f" +{len(others) - 2}" if len(others) > 2 else "")
        table.add_row(truth.name, path or '""', phase, kind, f"{ratio:.3g}", shown, "yes" if holds else "NO")
        right.append(holds)
    Console(width=None if sys.stdout.isatty() else 180).print(table)
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
