"""`start`, `step`, `stop`, `log`, `capture`: the recording of this process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.metadata
import itertools
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from probe import origins
from probe._version import __version__
from probe.adapters.base import Adapter, Group, adapter_for
from probe.config import RecordConfig, RecordOptions
from probe.errors import ExistsError, RecordingError, StoreError, warn
from probe.messages import say
from probe.numbers import kernel
from probe.ranks.layout.seen import parallel_of
from probe.recorder import Recorder
from probe.records import BatchName, CompressionName, LevelName, PhaseName, RunInfo, StepState, Task, TaskName
from probe.store.writing.creation import discard
from probe.store.writing.replacing import replaced
from probe.store.writing.writer import Writer, now
from probe.targets import overwrites, place_in_the_world, target_of

_current: Recorder | None = None
_excluded = False
_warned = False
_tells = True
"""whether this process says what it has recorded: rank 0, unless it was to be quiet"""
_told_of_kernel = False
_at_steps: list[Callable[[], None]] = []
"""what is called behind each `step`"""
_starts = 0
"""recordings that this process has begun: part of the default name, where ranks must agree on it"""


def start(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    level: LevelName | None = None,
    task: TaskName | None = None,
    steps: int | str | Iterable[int | str] | None = None,
    ranks: int | Iterable[int] | None = None,
    modules: str | Iterable[str] | None = None,
    phases: PhaseName | Iterable[PhaseName] | None = None,
    tensors: str | Iterable[str] | None = None,
    tokens: str | None = None,
    optimizer: object | None = None,
    on_nonfinite: bool | None = None,
    on_loss_jump: bool | float | None = None,
    batch: BatchName | None = None,
    compression: CompressionName | None = None,
    points: str | os.PathLike[str] | Iterable[Mapping[str, Any]] | None = None,
    routing: str | os.PathLike[str] | None = None,
    parallel: Mapping[str, Any] | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overwrite: bool | None = None,
    quiet: bool = False,
) -> Path | None:
    """Begin to record a model; call it before the first forward.

    Parameters
    ----------
    model
        a module, or a list of modules (pipeline chunks), which get the prefixes ``0.``, ``1.`` …
    path
        the HDF5 file to create; under several ranks ``a.h5`` becomes ``a.rank00003.h5``. Without it, the name
        is ``$PROBE_DUMP`` or ``probe-<date>-<time>.h5`` (``probe-<job>.rank00003.h5`` under several ranks, which
        must agree on it), and said once on stderr. A folder, made if it ends in ``/``, gets a file of such a name.
        A name made of the time gets a number if another run has it.
    level
        what is observed: ``"module"`` (default); ``"mix"``: also every operation inside the chosen modules, with its arguments and
        the line of code that calls it; ``"op"``: operations, and of modules only what the models themselves are given and return.
        mindstudio-probe's ``"L0"``, ``"mix"``, ``"L1"``. PyTorch and PaddlePaddle
    task
        ``"statistics"`` (default), ``"tensor"`` (values too), ``"structure"`` (no numbers) or ``"norms"`` (for
        whole runs: gradient norms, and statistics without hash and sketch of the outputs of ``modules``, which
        are by default the root and its main blocks)
    steps
        which steps: ``3``, ``[0, 10]``, ``[0, "10-20"]``, ``"every 100"``, ``[0, "10-20", "every 1000"]``, ``"0|5-8|100-120"``;
        default all
    ranks
        which ranks record; default all
    modules
        whose tensors: globs of module paths or class names, or ``~text`` for those with such a text in either; with ``!``
        in front to leave out
    phases
        of ``init``, ``forward``, ``loss``, ``backward``, ``gradient``, ``update``
    tensors
        globs of module paths: these in full, statistics of the others
    tokens
        a range such as ``"128:160"``: of inputs, outputs and their gradients these tokens alone, along the first axis
        that is as long as the integers that the model itself is given (``input_ids``); weights are whole
    optimizer
        the optimizer to watch; default every one that updates this model's parameters
    on_nonfinite
        after a step with NaN or Inf (in what `step` is given, in a gradient as the optimizer used it, in a
        recorded output), record the next step in full, whatever ``steps`` says
    on_loss_jump
        the same after a step whose loss exceeds 3 times (or this factor) the median of the last 32
    batch
        what ``task="norms"`` keeps of what the model is given: ``"hash"`` (default) of integers, such as ids; ``"all"``, hashes of
        images and the like too; ``"ids"``, the integers in full, also with ``task="statistics"``
    compression
        how stored values are compressed: ``"lz4"`` (faster) or ``"zstd"`` (smaller); default not at all. Writing and reading them needs
        ``pip install 'probe-align[compression]'``
    points
        values inside the code of modules, recorded as `log` records them: a list, or a YAML or JSON file with one, of
        ``module`` (path or class), ``after`` (a line of its forward), ``value`` (an expression, evaluated behind it)
        and ``name``; also ``line``, its number in the file, if several lines read the same
    routing
        a recording with values, of a mixture of experts: in the steps that are recorded, routers of this model take its choices,
        and weigh them by their own scores. PyTorch and PaddlePaddle
    parallel
        how the ranks divide the work, where probe cannot see it (groups of PyTorch's device meshes, Megatron and fleet are recorded
        without it): sizes by name, the group whose ranks lie closest first, as in ``{"tp": 2, "dp": 4}``, or the ranks of each group,
        ``{"tp": [[0, 1], [2, 3]]}``
    config
        a mapping, or a YAML or JSON file, with the same options; also mindstudio-probe's config.json and the JSON of MindSpore's
        Dump as they are: what is not done as they say is said once
    overwrite
        replace a recording of that name; default: only where ``$PROBE_OVERWRITE`` is 1
    quiet
        do not print what was recorded when the recording ends (``$PROBE_QUIET=1`` does the same)

    Returns
    -------
    pathlib.Path or None
        the file, or None when this rank does not record

    Raises
    ------
    RecordingError
        a recording is under way, or the model is of no known framework
    ConfigError
        an option makes no sense, or what it needs is not installed
    ExistsError
        the file is already there, and ``overwrite`` is off or the file is no recording
    """
    if _current is not None and _current.steps_by_itself:
        say("the program calls probe.start() itself: the recording that was made without it ends here")
        stop()
    options = {"level": level, "task": task, "steps": steps, "ranks": ranks, "modules": modules, "phases": phases,
               "tensors": tensors, "tokens": tokens, "on_nonfinite": on_nonfinite, "on_loss_jump": on_loss_jump,
               "batch": batch, "compression": compression, "points": points, "routing": routing}  # fmt: skip
    settings = RecordConfig.from_options(config, **options)
    return _started(model, path, settings, optimizer, overwrite, quiet, parallel=parallel)


def start_by_itself(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    functions: Sequence[Any] = (),
    optimizer: object | None = None,
    parallel: Mapping[str, Any] | None = None,
    overwrite: bool | None = None,
    quiet: bool = False,
    is_numbered: bool = False,
    **options: Any,
) -> Path | None:
    """Begin a recording that ends its steps itself, as `probe.recorder.by_itself.stepping` says; for programs without calls of probe.

    Parameters
    ----------
    model, path, optimizer, parallel, overwrite, quiet, options
        as `start` takes them
    functions
        loss functions that are modules outside of the models: what they return is the step's loss
    is_numbered
        if the file is there, ``a-2.h5`` is written, or the next that is not; nothing is overwritten

    Raises
    ------
    RecordingError, ConfigError, ExistsError
        as `start` does
    """
    settings = RecordConfig.from_options(**options)
    return _started(model, path, settings, optimizer, overwrite, quiet, functions, parallel, is_numbered)


def is_recording() -> bool:
    """Return True if a recording is under way."""
    return _current is not None and _current.running


def recorder() -> Recorder | None:
    """Return what records, if a recording is under way."""
    return _current if is_recording() else None


def on_step(stepped: Callable[[], None]) -> Callable[[], None]:
    """Call back behind each `step`, also while nothing is recorded; return what ends that."""
    _at_steps.append(stepped)
    return lambda: _at_steps.remove(stepped)


def steps_by_itself() -> bool:
    """Return True if the recording under way is one that `start_by_itself` began, and that the program has left to itself."""
    return is_recording() and _current.steps_by_itself


def look_at_loss(loss: Any) -> None:
    """Record by which functions a loss was made, whose value `step` is given as a number."""
    if _current is not None:
        _current.look_at_loss(loss)


def recordings_begun() -> int:
    """Return how many recordings this process has begun, those included that left its rank out."""
    return _starts


def tell(text: str) -> None:
    """Say something of the recording under way, where it says anything: on rank 0, unless it is to be quiet."""
    if _tells:
        say(text)


def update_began(groups: list[Group], why_not: str) -> None:
    """Tell the recording that an optimizer was in the middle of its step when the recording began."""
    if _current is not None:
        _current.update_began(groups, why_not)


def _started(
    model: Any,
    path: str | os.PathLike[str] | None,
    settings: RecordConfig,
    optimizer: object | None,
    overwrite: bool | None,
    quiet: bool,
    functions: Sequence[Any] | None = None,
    parallel: Mapping[str, Any] | None = None,
    is_numbered: bool = False,
) -> Path | None:
    global _excluded, _starts, _tells
    if is_recording():
        raise RecordingError(f"a recording to {_current.path} is under way; call probe.stop() first")
    models = _named_models(model)
    adapter = _common_adapter(models)
    rank, world_size = place_in_the_world()
    _excluded = not settings.wants_rank(rank)
    _starts += 1
    if _excluded:
        return None
    refusal = next(filter(None, (adapter.refusal(each) for _, each in models)), "")
    if refusal:
        raise RecordingError(f"probe.start(): {refusal}")
    if optimizer is not None and not adapter.is_optimizer(optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise RecordingError(
            f"probe.start() was given optimizer={kind}; expected an optimizer of {adapter.framework}: leave it out for one of another "
            "class, or for updates by hand; what the weights become is recorded all the same"
        )
    for text in settings.unmatched(_names(adapter, models)):
        warn(text)
    if settings.said:
        warn(settings.said)
    target, is_of_the_time, is_news = target_of(path, rank, world_size, _starts, settings.folder)
    info = RunInfo(
        run_id=uuid.uuid4().hex,
        framework=adapter.framework,
        framework_version=adapter.version,
        probe_version=__version__,
        created=now(),
        rank=rank,
        world_size=world_size,
        tells_writes=adapter.counts_writes,
        parallel=parallel_of(adapter, models, parallel, rank, world_size),
        config=settings.as_json(),
        model_config=adapter.model_config(models[0][1]),
    )
    environment = _environment(adapter)
    _tells = not quiet and rank == 0
    _tell_of_kernel(settings)
    is_of_the_time |= is_numbered
    stem, dot, of_rank = target.stem.partition(".rank")
    for number in itertools.count(2):
        try:
            with replaced(target) if overwrites(overwrite) and not is_of_the_time else contextlib.nullcontext():
                _begin(
                    target,
                    functools.partial(Writer, target, info, compression=settings.compression),
                    environment,
                    lambda writer: Recorder(adapter, models, writer, settings, optimizer, functions),
                )
            break
        except ExistsError:
            if not is_of_the_time:
                raise
            target = target.with_stem(f"{stem}-{number}{dot}{of_rank}")  # another run has begun in this second
    if is_news:
        say(f"recording to {target}")
    return target


def _begin(
    target: Path, create: Callable[[], Writer], environment: dict[str, object], record: Callable[[Writer], Recorder]
) -> None:
    """Create the file and set the hooks; leave neither where one of them fails."""
    global _current
    writer = _current = None
    try:
        writer = create()
        writer.set_attributes("environment", environment)
        _current = record(writer)
        origins.follow(lambda facts: writer.set_attributes("environment", facts))
    except BaseException as error:
        recorder, _current = _current, None
        if recorder is not None:
            recorder.discard()
        if writer is not None:
            writer.abandon()
            discard(target, error)
        raise


def _tell_of_kernel(settings: RecordConfig) -> None:
    """Say once in a process that recording is slow for want of the compiled loop."""
    global _told_of_kernel
    if _tells and not _told_of_kernel and not kernel.AVAILABLE and settings.task is not Task.STRUCTURE:
        _told_of_kernel = True
        say(kernel.WITHOUT)


def step(loss: Any = None, *, grads: Any = None, **scalars: Any) -> None:
    """End a training step; call it once per optimizer step, after it.

    Parameters
    ----------
    loss
        the step's loss: a number, or a tensor with one element
    grads
        the gradients of the parameters that are trained: a list or tuple in the model's order (that of
        ``trainable_params()``), or a dict by name. Only MindSpore needs them, and only where probe cannot see them
        itself, as in a function compiled by ``mindspore.jit``; what probe saw is not recorded twice.
    scalars
        whatever else is to be followed over the steps: lr, grad_norm, loss_scale …

    Notes
    -----
    It raises nothing: what is no number, and ``grads`` that do not fit the parameters, are said once and left out.
    """
    global _warned
    if _current is not None:
        if _current.steps_by_itself:
            _current.leave_steps_to_the_program()
        _current.step(_numbers(_current, loss, scalars), grads)
    elif not _excluded and not _warned and not _at_steps:
        _warned = True
        warn("probe.step() does nothing: no recording is under way")
    for stepped in tuple(_at_steps):
        stepped()


def note_numbers(loss: Any = None, **scalars: Any) -> None:
    """Record numbers of the step under way, as `step` takes them."""
    if _current is not None:
        for name, number in _numbers(_current, loss, scalars).items():
            _current.log_number(name, number)


def _numbers(recorder: Recorder, loss: Any, scalars: Mapping[str, Any]) -> dict[str, float]:
    if loss is not None:
        recorder.look_at_loss(loss)
    return recorder.numbers({**({} if loss is None else {"loss": loss}), **scalars}, "probe.step()")


def pause(is_paused: bool = True) -> None:
    """Pass over the module calls that begin from now on, or with False record them again.

    A step in which no call was recorded is left out of the file; it counts all the same.
    """
    if _current is not None:
        _current.pause(is_paused)


def is_under_way() -> bool:
    """Return True if a recording was begun and not ended, also where this rank does not record."""
    return _excluded or (_current is not None and _current.running)


def is_tensor(value: object) -> bool:
    """Return True if a value is a tensor of the model that is recorded."""
    return _current is not None and _current.is_tensor(value)


def stop() -> None:
    """End the recording: hooks are taken off, the open step is closed, the file is complete."""
    _stop(StepState.CLOSED)


def log(name: str, value: Any) -> None:
    """Record any tensor (and its gradient) or number under a name; does nothing when no recording is under way."""
    if _current is None:
        return
    if _current.is_tensor(value):
        _current.log(name, value)
    else:
        for each, number in _current.numbers({name: value}, "probe.log()").items():
            _current.log_number(each, number)


@contextlib.contextmanager
def capture(
    model: Any, path: str | os.PathLike[str] | None = None, **options: Unpack[RecordOptions]
) -> Iterator[Path | None]:
    """Record what runs inside a ``with`` block; takes the options of `start`.

    The open step is closed at the end of the block, or kept and marked aborted when an exception leaves it.
    """
    target = start(model, path, **options)
    try:
        yield target
    except BaseException:
        _stop(StepState.ABORTED)
        raise
    _stop(StepState.CLOSED, one_step=True)


def _stop(state: StepState, *, one_step: bool = False) -> None:
    global _current, _excluded, _warned
    _excluded, _warned = False, True
    recorder = _current
    if recorder is None:
        return
    is_whole = recorder.running
    try:
        recorder.stop(state, one_step=one_step)
        if is_whole and _tells:
            say(str(recorder.outcome()))
    except StoreError as error:
        warn(str(error))
    finally:
        if not recorder.running:
            _current = None
            origins.follow(None)


def _stop_at_exit() -> None:
    """Complete a recording that the program never stopped; its step is aborted if an exception ended it."""
    failed = getattr(sys, "last_value", None) is not None or (_current is not None and _current.inside_a_call)
    _stop(StepState.ABORTED if failed else StepState.CLOSED)


def _forget_in_child() -> None:
    """A forked process goes on without recording: the file and its writer stay with the parent."""
    global _current, _excluded
    origins.follow(None)
    if _current is not None:
        _current.abandon()
        _current, _excluded = None, True


atexit.register(_stop_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _named_models(model: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(model, (list, tuple)):
        if not model:
            raise RecordingError("probe.start() was given an empty list; expected a module, or a list of modules")
        return [(str(i), part) for i, part in enumerate(model)]
    return [("", model)]


def _common_adapter(models: Sequence[tuple[str, Any]]) -> Adapter:
    adapters = {adapter.framework: adapter for adapter in [adapter_for(model) for _, model in models]}
    if len(adapters) > 1:
        raise RecordingError(f"probe.start() was given models of {' and '.join(adapters)}; expected one framework")
    return adapters.popitem()[1]


def _names(adapter: Adapter, models: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Return path and class name of every module, as the recording will have them."""
    return [
        (".".join(part for part in (prefix, named.path) if part), type(named.module).__name__)
        for prefix, model in models
        for named in adapter.modules(model)
    ]


_version = functools.cache(importlib.metadata.version)  # parses a file of some 100 KB each time


def _environment(adapter: Adapter) -> dict[str, object]:
    packages = {}
    for name in ("numpy", "torch", "transformers", "paddlepaddle", "mindspore", "accelerate", "deepspeed"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = _version(name)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "git_commit": _git_commit(),
        **adapter.environment(),
        **origins.facts(),
    }


def _git_commit() -> str:
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
