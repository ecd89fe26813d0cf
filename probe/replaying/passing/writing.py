"""What a replay computed, as a recording of B: so all that is made of recordings can be made of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe._version import __version__
from probe.adapters.base import Adapter
from probe.config import RecordConfig
from probe.recorder.calls import Call
from probe.recorder.measuring import Measuring
from probe.recorder.models import add_models
from probe.recorder.run import Run
from probe.recorder.triggers import Triggers
from probe.records import Phase, Role, RunInfo, StepState, Task
from probe.store.writing.writer import Writer, now


def run_info(adapter: Adapter, model: Any, config: RecordConfig, *, tells_writes: bool = False) -> RunInfo:
    """Return what a recording of a replay says of its run."""
    return RunInfo(
        run_id=uuid.uuid4().hex, framework=adapter.framework, framework_version=adapter.version,
        probe_version=__version__, created=now(), rank=0, world_size=1, tells_writes=tells_writes,
        config=config.as_json(), model_config=adapter.model_config(model),
    )  # fmt: skip


class Written:
    """A recording that is written by hand: its calls and tensors are those of a replay.

    Parameters
    ----------
    adapter, model
        B
    path
        the file, which does not exist yet
    step
        the step that it has, A's
    task
        whether values are kept
    """

    def __init__(self, adapter: Adapter, model: Any, path: Path, step: int, task: Task = Task.TENSOR) -> None:
        config = RecordConfig.from_options(None, task=task)
        self.path = path
        self._model = model
        self._run = run = Run(adapter, Writer(path, run_info(adapter, model, config)), config)
        try:
            with adapter.unseen():
                self.modules = {id(each.module()): each.index for each in add_models(run, [("", model)])}
                """index of each module by its id"""
            run.step = step
            run.begin_step("")
            run.running = True
            self._measuring = Measuring(run, Triggers(False, False))
            self._calls: list[Call] = []
        except BaseException:
            self.abandon()
            raise

    def weights(self, phase: Phase, *, buffers_only: bool = False) -> None:
        """Write parameters and buffers as they are now, also those that have taken the place of others."""
        now = {named.names[0]: named.tensor for named in self._run.adapter.parameters(self._model)}
        for index, named in enumerate(self._run.tensors):
            if named.is_buffer or not buffers_only:
                role = Role.BUFFER if named.is_buffer else Role.PARAM
                self._measuring.observe_parameter(phase, role, index, now.get(named.names[0], named.tensor))

    def gradients(self, found: Mapping[int, Any]) -> None:
        """Write gradients of parameters, by the parameters' ids."""
        for index, named in enumerate(self._run.tensors):
            if id(named.tensor) in found:
                self._measuring.observe_parameter(Phase.GRADIENT, Role.PARAM_GRAD, index, found[id(named.tensor)])

    def begin(
        self, module: int, micro: int, number: int, caller: Call | None, training: bool, grad: bool, autocast: str
    ) -> Call:
        """Begin a call, with the number of the one of A that it is held against."""
        run = self._run
        call = Call(run.step, micro, run.next_seq(), module, number, -1 if caller is None else caller.row, training, grad,
                    False, autocast, len(self._calls))  # fmt: skip
        self._calls.append(call)
        return call

    def end(self, call: Call, raised: bool = False) -> None:
        """End a call."""
        call.end, call.raised = self._run.next_seq(), raised

    def tensor(self, role: Role, call: Call, slot: str, tensor: Any) -> None:
        """Write what a call was given, or returned, or a gradient of that."""
        is_forward = role in (Role.INPUT, Role.OUTPUT)
        order = None if is_forward else -(call.end if role is Role.GRAD_OUTPUT else call.seq)
        phase = Phase.FORWARD if is_forward else Phase.BACKWARD
        self._measuring.observe(phase, role, slot, tensor, call, order)

    def forget(self) -> None:
        """Take no tensor for one that was written before: memory is used again."""
        self._measuring.forget()

    def close(self) -> None:
        """Complete the file.

        Raises
        ------
        StoreError
            it could not be written
        """
        run = self._run
        self._measuring.settle()
        run.running = False
        run.writer.end_step(run.step, calls=[call.as_row() for call in self._calls], scalars=[], notes=run.notes_of_step(),
                            groups=[], wall_time=0.0, state=StepState.CLOSED)  # fmt: skip
        run.writer.close()
        run.end()
        self._model = None

    def abandon(self) -> None:
        """Let go of the file as it is."""
        self._run.end()
        self._run.writer.abandon()
