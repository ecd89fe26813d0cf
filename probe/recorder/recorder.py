"""The run under way: what the hooks see becomes records.

Everything here runs inside somebody's training. No method that a hook calls returns a value or lets an
exception out; what goes wrong is said once, and noted in the file.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probe.adapters.base import Adapter, Group
from probe.config import RecordConfig
from probe.errors import ConfigError, ProbeWarning, warn
from probe.numbers import buffers
from probe.recorder.by_itself.stepping import Stepping
from probe.recorder.calls import Call, Calls
from probe.recorder.contents import Contents
from probe.recorder.forward import Forward
from probe.recorder.given import as_number, gradients_by_index, why_no_number
from probe.recorder.gradients import Gradients
from probe.recorder.hooks import Hooks
from probe.recorder.measuring import Measuring
from probe.recorder.models import add_models
from probe.recorder.operations import Operations
from probe.recorder.outcome import Outcome
from probe.recorder.points.recording import Points
from probe.recorder.routing.replay import Routing
from probe.recorder.run import Run, guarded, set_back
from probe.recorder.triggers import Triggers
from probe.recorder.updates import Updates
from probe.records import NEVER_STEPPED, Phase, Role, StepState
from probe.store.schema import CALLS
from probe.store.writing.growth import shortage
from probe.store.writing.writer import Writer

_SCALARS = 500_000
"""numbers logged in one step that are recorded"""


_UNSEEN = (
    "gradients came, and no module was seen to run: was the model compiled behind probe.start(), or are its weights used without "
    "calling it? A compiled model is recorded from outside if it is compiled first"
)
"""what is said of a step without calls"""


class Recorder:
    """Hooks on one or several models, and the file that they fill.

    ``models`` are (prefix, model); the prefix is ``""`` for a single model, ``"0"``, ``"1"`` … for a list. Without an
    ``optimizer`` to watch, it is all of the process, for the parameters of these models. ``functions`` are loss
    functions outside of the models, where the recorder is to end steps by itself; None where ``probe.step()`` ends
    them.
    """

    def __init__(
        self,
        adapter: Adapter,
        models: Sequence[tuple[str, Any]],
        writer: Writer,
        config: RecordConfig,
        optimizer: object | None = None,
        functions: Sequence[Any] | None = None,
    ) -> None:
        self.run = run = Run(adapter, writer, config)
        self._triggers = Triggers(config.on_nonfinite, config.on_loss_jump)
        self._calls = Calls(run)
        self._measuring = Measuring(run, self._triggers)
        self._gradients = Gradients(run, self._measuring, self._calls)
        contents = Contents(run)
        self._updates = Updates(run, self._measuring, self._gradients, contents)
        self._operations = operations = None
        if config.level != "module":
            self._operations = operations = Operations(run, self._measuring, self._calls, self._gradients)
        forward = Forward(run, self._measuring, self._calls, self._gradients, self._updates, operations)
        self._stepping = None
        if functions is not None:
            self._stepping = Stepping(run, self._calls, self._updates, self.step, self.look_at_loss)
        self._hooks = Hooks(run, forward, self._gradients, self._updates, self._stepping)
        self._points = Points(run, self._calls, self.log)
        self._routing = Routing(run, self._calls, self._measuring)
        self._scalars: list[tuple[int, str, float]] = []
        self._has_looked_at_loss = False
        self._room_is_known = False
        self._n_steps = 0
        self._ran: set[int] = set()
        """modules that were called in recorded steps"""
        self._has_gradients = False
        run.notes += [(0, -1, text) for text in adapter.limits]
        if operations is not None and not operations.is_possible:
            run.note(f"level={config.level!r}: {adapter.framework} shows no operations; modules are recorded", -1)
        try:
            with adapter.unseen():
                hookable = add_models(run, models)
                contents.add(models)
                self._points.put(hookable)
                self._routing.put(models, hookable)
                self._hooks.set(hookable, optimizer)
                self._hooks.set_on_functions(functions or ())
                self._begin_step()
                run.running = True
        except BaseException:
            adapter.interrupted()
            self._end()
            raise

    @property
    def path(self) -> Path:
        """The file that is written."""
        return self.run.writer.path

    @property
    def running(self) -> bool:
        """Whether hooks record."""
        return self.run.running

    @property
    def steps_by_itself(self) -> bool:
        """Whether the recorder ends steps, so that the program need not call ``probe.step()``."""
        return self._stepping is not None and self._stepping.on

    def follow(self, stepped: Callable[[], None], forwarded: Callable[[], None]) -> None:
        """Call back where the recorder has ended a step by itself, and where a model has returned."""
        if self._stepping is not None:
            self._stepping.stepped, self._stepping.forwarded = stepped, forwarded

    def enter(self, model: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call of a model that had begun when the recording did."""
        self._hooks.enter(model, args, kwargs)

    def leave_steps_to_the_program(self) -> None:
        """End no step any more: the program calls ``probe.step()``."""
        if self._stepping is not None:
            self._stepping.on = False
            self._stepping.forget()

    def update_began(self, groups: list[Group], why_not: str) -> None:
        """Take note of an optimizer's step that had begun before the hooks were set."""
        if self._stepping is not None:
            self._stepping.before_update(groups, why_not)
        self._updates.before_update(groups, why_not)

    def outcome(self) -> Outcome:
        """Return what the recording holds; complete once it has stopped."""
        run = self.run
        return Outcome(
            path=self.path,
            model=" and ".join(dict.fromkeys(run.modules[root].class_name for root in sorted(run.roots))),
            steps_taken=run.step,
            steps=self._n_steps,
            modules=len(self._ran),
            tensors=run.writer.n_records,
            has_forwards=bool(self._calls.forwards),
            has_gradients=self._has_gradients,
            is_trainable=any(parameter.requires_grad for parameter in run.parameters),
            other_updates=0 if self._updates.has_own else self._updates.others,
        )

    @property
    def inside_a_call(self) -> bool:
        """Whether a module is running, or was left by an interrupt since which the model has not run again."""
        return any(call.end < 0 for call in self._calls.all)

    @set_back
    def is_tensor(self, value: object) -> bool:
        """Return True if a value is a tensor of the models' framework."""
        with self.run.adapter.unseen():
            return self.run.adapter.is_tensor(value)

    @set_back
    def numbers(self, given: Mapping[str, object], call: str) -> dict[str, float]:
        """Return what was given to ``call`` as numbers; what is none is said, and left out."""
        found = {}
        if given:
            self.run.adapter.surface()
        for name, value in given.items():
            try:
                with self.run.adapter.unseen():
                    found[name] = as_number(value)
            except Exception as error:  # noqa: BLE001  whatever the user has there, the training goes on
                self.note(f"{call}: {name} is not recorded: {why_no_number(name, value, error)}")
        return found

    # The user's calls

    @guarded
    def log(self, name: str, tensor: Any) -> None:
        """Record a tensor of the user's, and its gradient, at the module that is running."""
        run, calls = self.run, self._calls
        if not run.active:
            return
        phase = Phase.FORWARD
        if calls.stack:
            call = calls.stack[-1]
        else:
            call, phase = Call(run.step, max(calls.micro, 0), run.seq, 0, 0, grad_enabled=True), Phase.LOSS
        if calls.original_of(call) is call:
            self._measuring.observe(phase, Role.VALUE, name, tensor, call, always=True)
        if not run.norms and (calls.in_graph(call) or not call.recomputed):
            self._gradients.watch_logged(call, name, tensor)

    @guarded
    def record_weights(self) -> None:
        """Record what the step begins with now, where no call of the models will do so: before an update alone."""
        if self.run.active:
            self._updates.record_initial()

    @guarded
    def look_at_loss(self, loss: Any) -> None:
        """Record by which functions a loss was made, once: how they round is their own."""
        if not self._has_looked_at_loss and self.run.adapter.is_tensor(loss):
            self._has_looked_at_loss = True
            found = self.run.adapter.losses_behind(loss)
            if found:
                self.run.writer.set_attributes("environment", {"loss_functions": found})

    def log_number(self, name: str, value: float) -> None:
        """Record a number."""
        run = self.run
        if run.running and run.active and not run.too_many(len(self._scalars), _SCALARS, "logged numbers"):
            self._scalars.append((run.step, name, value))

    @guarded
    def note(self, text: str) -> None:
        """Say once that something which the user gave is not recorded."""
        self.run.note(text, -1)

    @set_back
    def step(self, scalars: dict[str, float], grads: object = None) -> None:
        """Close the step and begin the next one; ``grads`` that are not those of the models' parameters are said, and left out."""
        run = self.run
        if run.running and run.active:
            run.adapter.surface()
        with run.lock:
            if not run.running:
                return
            run.closing = True
            try:
                with run.adapter.unseen():
                    if grads is not None:
                        self._gradients.record_given(self._by_index(grads))
                    texts = self._next_step(scalars)
            except Exception as error:  # noqa: BLE001  the training must go on
                return self._give_up(f"recording to {self.path} failed in probe.step() ({error!r})")
            except BaseException as error:
                with contextlib.suppress(ProbeWarning):
                    self._give_up(f"recording to {self.path} was interrupted in probe.step() ({error!r})")
                raise
            run.closing = False
        run.writer.wait_for_room()
        for text in texts:
            run.say(text)

    def _by_index(self, grads: object) -> dict[int, Any]:
        """Return gradients by the indices of their parameters; none where they do not fit."""
        try:
            return gradients_by_index(self.run, grads)
        except ConfigError as error:
            self.note(f"probe.step() was given no gradients that can be recorded: {error}")
            return {}

    @set_back
    def stop(self, state: StepState = StepState.CLOSED, *, one_step: bool = False) -> None:
        """Take every hook off, close the open step and the file; ``one_step`` when all may be meant as a single step."""
        run, path = self.run, self.path
        failure: Exception | None = None
        try:
            run.adapter.surface()
        except Exception as error:  # noqa: BLE001  an operation of the program has failed: it is raised once the hooks are off
            failure = error
        interrupted = f"{path} is still being written: it will be complete when the process has ended"
        try:
            with run.lock:
                if not run.running:
                    return
                run.closing = True
                try:
                    with run.adapter.unseen():
                        text = self._last_step(state, one_step)
                except Exception as error:  # noqa: BLE001  the training must go on
                    text = f"the last step is not in {path}: probe.stop() failed ({error!r})"
                except BaseException as error:
                    interrupted = f"the last step is not in {path}: probe.stop() was interrupted ({error!r})"
                    raise
                finally:
                    with run.adapter.unseen():
                        self._end()
            run.writer.close()
        except BaseException as error:
            if not isinstance(error, Exception) and not run.running:
                with contextlib.suppress(ProbeWarning):
                    warn(interrupted)
            raise
        run.say(text or (self.outcome().mistake() if state is StepState.CLOSED else ""))
        if failure is not None:
            raise failure

    def discard(self) -> None:
        """End the recording as if it had never begun."""
        self._end()

    def abandon(self) -> None:
        """Record nothing more, and leave everything as it is: in a forked process."""
        self.run.running = False

    def pause(self, is_paused: bool) -> None:
        """Pass over the calls that begin from now on, or record them again; what is under way is recorded to its end."""
        with self.run.lock:
            self.run.paused = is_paused

    # Steps

    def _pass_over_empty(self) -> None:
        """Leave a step out of the file in which nothing was recorded because of a pause."""
        if self.run.paused and not self.run.seq:
            self.run.active = self.run.recorded = False

    def _begin_step(self, because: str = "") -> None:
        self.run.begin_step(because)
        self.run.adapter.forget_gradients()
        for part in (self._hooks, self._calls, self._measuring, self._gradients, self._updates):
            part.begin_step()
        self._scalars = []
        self._began = time.time()

    def _next_step(self, scalars: dict[str, float]) -> list[str]:
        """Close the step and begin the next one; return what is to be said."""
        run = self.run
        self._calls.abandon(self._calls.stack)
        self._pass_over_empty()
        if run.recorded:
            self._updates.record_left()
            self._measuring.settle()
        because = self._triggers.ended(run.step, scalars)
        too_large = ""
        if run.recorded:
            self._scalars += [(run.step, name, value) for name, value in scalars.items()]
            self._end_step(StepState.CLOSED)
            too_large = self._shortage()
        run.step += 1
        self._begin_step(f"step {run.step} is recorded in full: {because}" if because else "")
        if run.writer.error is not None:
            self._give_up(f"writing {self.path} failed ({run.writer.error})")
            return []
        no_loss = ""
        if self._triggers.needs_loss and "loss" not in scalars:
            no_loss = "on_loss_jump looks at the loss, but probe.step() was given none: probe.step(loss=...)"
        return [no_loss, too_large, run.because]

    def _last_step(self, state: StepState, one_step: bool) -> str:
        """Close the open step; return what is to be said."""
        run = self.run
        self._pass_over_empty()
        if run.recorded:
            self._updates.record_left()
            self._measuring.settle()
            if self._stepping is not None:
                self._scalars += [(run.step, name, value) for name, value in self._stepping.take_numbers().items()]
        never_stepped = self._never_stepped(one_step) if state is StepState.CLOSED else ""
        if never_stepped:
            run.notes.append((0, -1, never_stepped))
        is_open = run.recorded and bool(self._calls.all or run.seq or self._scalars or run.notes)
        if is_open:
            self._end_step(state)
        run.writer.set_attributes("environment", {"steps_made": run.step + is_open})
        self._updates.end()
        return never_stepped

    def _end_step(self, state: StepState) -> None:
        run = self.run
        self._updates.end_step()
        self._gradients.end_step()
        self._note_silence()
        self._points.note_unreached()
        if self._operations is not None:
            self._operations.write()
        now = run.next_seq()
        for call in self._calls.all:
            if call.end < 0:
                call.end = now
        run.writer.end_step(
            run.step,
            calls=[call.as_row() for call in self._calls.all],
            scalars=self._scalars,
            notes=run.notes_of_step(),
            groups=self._updates.groups,
            wall_time=time.time() - self._began,
            state=state,
        )
        self._n_steps += 1
        self._ran |= {call.module for call in self._calls.all}
        self._has_gradients |= bool(self._gradients.found)

    def _note_silence(self) -> None:
        """Say that nothing was seen to run inside the models, where a framework may have run it without hooks."""
        run = self.run
        inside = {index for index, info in enumerate(run.modules) if info.parent >= 0} - run.roots
        if run.adapter.silent and inside and inside.isdisjoint(call.module for call in self._calls.all):
            run.note(f"no module inside the model was seen to run: {run.adapter.silent}", -1)
        is_complete = run.wants[Phase.FORWARD] and not run.norms and all(run.keep)
        if is_complete and not run.adapter.silent and self._gradients.found and not self._calls.all:
            run.note(_UNSEEN, -1)

    def _shortage(self) -> str:
        """Say, when the first step has been recorded, if those to come will not fit on the disk."""
        if self._room_is_known:
            return ""
        self._room_is_known = True
        run = self.run
        follows = run.config.wants_step(run.step + 1)  # then it has no initial parameters
        initial = self._updates.init_bytes if follows else 0
        per_step = run.nbytes + len(self._calls.all) * CALLS.itemsize - initial
        folder = self.path.parent
        try:
            free = shutil.disk_usage(folder).free
        except OSError:
            return ""
        is_compressed = run.config.compression is not None
        return shortage(per_step, run.config.steps_from(run.step + 1), free, str(folder), is_compressed)

    def _never_stepped(self, one_step: bool) -> str:
        """Say that steps were not told apart, unless what ran may well have been a single one."""
        count, updates = max(self._calls.forwards.values(), default=0), self._updates.count
        if self._stepping is not None or self.run.step or count < 2 or updates < (2 if one_step else 0) or updates == 1:
            return ""
        return f"{NEVER_STEPPED}: all {count} forwards are in step 0; call it at the end of each step"

    # The end

    def _end(self) -> None:
        """End the recording: take every hook off, hold nothing of the model, let the file be finished.

        All of it a second time, should the first be interrupted.
        """
        try:
            self._end_once()
        finally:
            self._end_once()

    def _end_once(self) -> None:
        self.run.end()
        self._hooks.take_off()
        self._points.take_out()
        self._routing.take_out()
        if self._operations is not None:
            self._operations.close()
            self._operations.write()
        buffers.release()
        self.run.adapter.release()
        for part in (self._calls, self._measuring, self._gradients, *([self._stepping] if self._stepping else [])):
            part.forget()
        self.run.writer.finish()

    def _give_up(self, why: str) -> None:
        """End the recording because of a fault; the training goes on."""
        self._end()
        warn(f"{why}; the recording has stopped, your training goes on, and the complete steps in the file can be read")
