"""`inject`: A's tensors in a live run of B, so that what lies behind a known fault can be looked at."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from probe.defaults import MIN_CONFIDENCE
from probe.errors import ConfigError, warn
from probe.records import DirectionName, Role
from probe.replaying.passing.tensors import Tensors
from probe.replaying.prepared import PairingOptions, Prepared, prepared, verbs_for
from probe.structure.tree import Tree
from probe.verdict.side import Call as RecordedCall


@dataclass
class Injected:
    """What was replaced."""

    outputs: dict[str, int] = field(default_factory=dict)
    """how often, by the path in B"""
    gradients: dict[str, int] = field(default_factory=dict)


@contextlib.contextmanager
def inject(
    model: Any,
    recording: str | os.PathLike[str],
    at: str | Iterable[str] = (),
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    gradients_at: str | Iterable[str] = (),
    step: int | None = None,
    direction: DirectionName | None = None,
    strict: bool = False,
    min_confidence: float = MIN_CONFIDENCE,
) -> Iterator[Injected]:
    """Let chosen modules of a model return what A's did, inside a ``with`` block in which one step of B runs.

    What is computed behind them is as if they were right, and can be compared as ever: enter this block first, then `probe.capture`.
    Gradients go on through the modules' own code.

    Parameters
    ----------
    model
        B
    recording
        of A, made with ``task="tensor"``
    at
        paths of modules, in B or in A, or globs: what they return becomes what A's returned
    gradients_at
        the same: the gradient of what they return becomes what A's was, before it goes back through them
    mapping, direction, strict, min_confidence
        as for `probe.compare`
    step
        which of A's steps B runs; the first that was recorded when None

    Raises
    ------
    ConfigError
        a path names no module that has a counterpart, or the step is not there
    RecordingError
        a recording is under way: enter this block before it
    MappingError, StoreError, FormatError
        the mapping or the file cannot be used
    """
    options = PairingOptions(mapping, direction, strict, min_confidence)
    replaying = verbs_for(model, "probe.inject()")
    with contextlib.ExitStack() as undone:
        folder = Path(undone.enter_context(tempfile.TemporaryDirectory(prefix="probe-inject-")))
        ready = undone.enter_context(prepared(replaying, model, recording, step, folder, options))
        run = _Injection(ready, _chosen(ready, at), _chosen(ready, gradients_at))
        undone.callback(run.say_what_is_left)
        for removal in run.removals():
            undone.callback(removal)
        yield run.injected


def _chosen(ready: Prepared, wanted: str | Iterable[str]) -> dict[int, str]:
    """Return the modules of B, with their paths, that globs of paths name."""
    globs = [wanted] if isinstance(wanted, str) else list(wanted)
    tree = Tree(ready.recorded.reader.modules)
    found: dict[int, str] = {}
    for glob in globs:
        fitting = {
            index: ready.paths[index]
            for index, partner in ready.partners.items()
            if any(glob == path or fnmatchcase(path, glob) for path in (ready.paths[index], tree.path(partner.module)))
        }
        if not fitting:
            raise ConfigError(
                f"{glob!r} names no module that both models have; probe map show, or answer.pairs, lists them"
            )
        found |= fitting
    return found


class _Injection:
    """An injection under way: it counts calls as the recorder of A did."""

    def __init__(self, ready: Prepared, outputs: dict[int, str], gradients: dict[int, str]) -> None:
        self.ready, self.outputs, self.gradients = ready, outputs, gradients
        self.replaying, self.recorded = ready.replaying, ready.recorded
        self.adapter = ready.replaying.adapter
        self.injected = Injected(dict.fromkeys(outputs.values(), 0), dict.fromkeys(gradients.values(), 0))
        self._tensors = Tensors(ready)
        self._modules = [each.module for each in self.adapter.modules(ready.model)]
        self._passes = {True: 0, False: 0}
        self._micro, self._depth = 0, 0
        self._made: dict[int, int] = {}

    def removals(self) -> Iterator[Callable[[], None]]:
        """Set everything up, the root last; yield what undoes it."""
        for index in {**self.outputs, **self.gradients}:
            yield self.replaying.around_forward(self._modules[index], lambda run, index=index: self._inside(index, run))
        yield self.replaying.around_forward(self._modules[0], self._pass)

    def _pass(self, run: Callable[[], Any]) -> Any:
        """Begin a pass through the whole model."""
        if self._depth:
            return run()
        has_gradients = self.adapter.context().grad_enabled
        number = self._passes[has_gradients]
        self._passes[has_gradients] += 1
        self._micro, self._made = number if has_gradients else -1 - number, {}
        self._depth += 1
        try:
            return run()
        finally:
            self._depth -= 1

    def _inside(self, index: int, run: Callable[[], Any]) -> Any:
        """Run a module, and return what A's returned."""
        output, partner = run(), self.ready.partners[index]
        number = self._made.get(index, 0)
        self._made[index] = number + 1
        calls = self.recorded.calls_of(self._micro, partner.module)
        if number >= len(calls) or self.adapter.context().recomputing:
            return output
        return self._replaced(index, calls[number], output)

    def _replaced(self, index: int, call: RecordedCall, output: Any) -> Any:
        partner, outputs = self.ready.partners[index], self._tensors.named(output)
        counterparts = self._tensors.counterparts(call, Role.OUTPUT, outputs, partner=partner)
        by: dict[str, Any] = {}
        for slot, tensor in outputs:
            mine = counterparts.get(slot)
            if mine is None:
                continue
            values = self._tensors.of(mine, tensor, partner=partner) if index in self.outputs else None
            back = self.recorded.gradient(call, Role.GRAD_OUTPUT, mine) if index in self.gradients else None
            gradient = self._tensors.of(back, tensor, partner=partner, forward=mine) if back is not None else None
            if values is not None or gradient is not None:
                by[slot] = self.replaying.through(tensor, values, gradient)
                for counts, chosen in ((self.injected.outputs, values), (self.injected.gradients, gradient)):
                    if chosen is not None:
                        counts[self.ready.paths[index]] += 1
        return self._tensors.put(output, by)

    def say_what_is_left(self) -> None:
        """Say what was to be replaced and never ran."""
        counts = *self.injected.outputs.items(), *self.injected.gradients.items()
        left = [path for path, count in counts if not count]
        if left:
            warn(
                f"probe.inject() replaced nothing of {', '.join(left[:5])}: it did not run, or A recorded no values of it"
            )
