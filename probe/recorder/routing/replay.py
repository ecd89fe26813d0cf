"""Routing replay: routers of the model that is recorded take another recording's choices, weighed by their own scores.

A router computes scores, takes the k largest (``topk``), and makes weights of them. While it runs, its ``topk`` returns
the other run's indices, and this model's scores there: gradients flow. What it would have chosen is recorded too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.adapters.base import Operation
from probe.adapters.replaying import Run as Forward
from probe.adapters.replaying import replaying_for
from probe.errors import ConfigError
from probe.numbers.choices import OWN_CHOICES, OWN_SCORES
from probe.recorder.calls import Call, Calls
from probe.recorder.measuring import Measuring
from probe.recorder.models import Hookable
from probe.recorder.routing.choices import Choices, Router
from probe.recorder.run import Run, guarded
from probe.records import Phase, Role, Task


class Routing:
    """Gives routers the choices of another recording."""

    def __init__(self, run: Run, calls: Calls, measuring: Measuring) -> None:
        self.run, self._calls, self._measuring = run, calls, measuring
        self._path = run.config.routing
        self._removals: list[Callable[[], None]] = []
        self._here = threading.local()

    def put(self, models: Sequence[tuple[str, Any]], modules: Sequence[Hookable]) -> None:
        """Let every router of the models take what its counterpart chose.

        Raises ConfigError where the recording lacks the choices, a router has no counterpart, or the framework does
        not show its functions; StoreError or FormatError where the recording cannot be read.
        """
        if not self._path:
            return
        adapter, task = self.run.adapter, self.run.config.task
        if task not in (Task.STATISTICS, Task.TENSOR):
            raise ConfigError(f"routing={self._path!r} needs task='statistics' or 'tensor', not {task.value!r}")
        watch = type(adapter)().on_operations(self._before, self._after)  # that of operations has its own
        if watch is None:
            raise ConfigError(
                f"routing={self._path!r}: {adapter.framework} does not show what its routers call; torch and paddle do"
            )
        self._watch, self._replaying, self._model = watch, replaying_for(models[0][1]), models[0][1]
        self._choices = choices = Choices(_of_rank(self._path, self.run.writer.path))
        self._removals.append(choices.reader.close)
        live = {each.index: each.module() for each in modules}
        for mine, router in choices.paired(self.run).items():
            self.run.routed.add(mine)
            forward = lambda run, mine=mine, router=router: self._routed(mine, router, run)  # noqa: E731
            self._removals.insert(0, self._replaying.around_forward(live[mine], forward))

    def take_out(self) -> None:
        """Let routers choose by themselves again."""
        while self._removals:
            self._removals.pop(0)()

    def _routed(self, mine: int, router: Router, forward: Forward) -> Any:
        """Run a router of the model."""
        here = self._here
        here.call = here.given = here.scores = here.own = here.chosen = None
        self._look_up(mine, router)
        if here.given is None:
            return forward()
        try:
            self._watch.enter(None)
            try:
                output = forward()
            finally:
                self._watch.leave()
            self._note_own(mine)
            return output
        finally:
            here.call = here.given = here.scores = here.own = here.chosen = None

    @guarded
    def _look_up(self, mine: int, router: Router) -> None:
        """Find what the counterpart of a router that begins to run chose."""
        run, stack = self.run, self._calls.stack
        call = stack[-1] if run.active and stack else None
        if call is None or call.module != mine or call.step != run.step:
            return
        self._here.given = self._choices.of(call.step, call.micro, call.number, router)
        self._here.call = call
        if self._here.given is None:
            run.note(f"{run.name_of(mine)} routed by itself: {self._path} has no choices of step {call.step}", mine)

    def _before(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if operation.name == "topk" and kwargs.get("out") is None:  # the router reads what it passed as out
            self._here.scores = args[0] if args else kwargs.get("input", kwargs.get("x"))

    def _after(self, output: Any, raised: bool) -> Any:
        """Return what a router's ``topk`` is to return; None: as it is."""
        here = self._here
        scores, here.scores, here.chosen = here.scores, None, None
        if not raised and scores is not None and here.given is not None:
            self._choose(scores, output)
        return here.chosen

    @guarded
    def _choose(self, scores: Any, output: Any) -> None:
        """Put the other run's choices in the place of the model's own, if these are choices among as many experts."""
        here, adapter, own = self._here, self.run.adapter, output[1]
        (*rows, width), given = adapter.facts(scores).shape, here.given
        shape = adapter.facts(own).shape
        if (
            shape[:-1] != tuple(rows)
            or np.prod(shape, dtype=int) != given.size
            or shape[-1] != given.shape[-1]
            or given.max(initial=0) >= width
            or given.min(initial=0) < 0
        ):
            return
        chosen = self._replaying.tensor(given.reshape(shape).astype(np.int64), own, self._model)
        make = getattr(type(output), "_make", type(output))  # not all that a topk returns are named tuples
        here.chosen, here.own = make((adapter.picked(scores, chosen), chosen)), (own, scores)

    @guarded
    def _note_own(self, mine: int) -> None:
        """Record what a router would have chosen by itself; say it if it did."""
        here = self._here
        call: Call | None = here.call
        if call is None:
            return
        if here.own is None:
            shape = tuple(here.given.shape)
            known = f"its {shape[-1]} experts for each of {shape[0]} tokens are no choice that was seen inside it"
            self.run.note(
                f"{self.run.name_of(mine)} routed by itself: {known} (other shapes, padding, a fused or compiled kernel?)",
                mine,
            )
        elif not call.recomputed:
            for name, tensor in zip((OWN_CHOICES, OWN_SCORES), here.own, strict=True):
                self._measuring.observe(Phase.FORWARD, Role.VALUE, name, tensor, call, always=True)


def _of_rank(path: str, target: Path) -> Path:
    """Return the file of this rank, if the recording has one for each."""
    _, dot, rank = target.stem.rpartition(".rank")
    own = Path(path).with_name(f"{Path(path).stem}.rank{rank}{Path(path).suffix}")
    return own if dot and not os.path.exists(path) else Path(path)
