"""`start`, `step`, `stop`, `log`, `capture`: the recording of this process."""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from probe import origins
from probe._version import __version__
from probe.adapters.base import Adapter, adapter_for
from probe.config import RecordConfig
from probe.errors import ConfigError, RecordingError, StoreError, warn
from probe.recorder import Recorder
from probe.records import RunInfo, StepState
from probe.store.writer import Writer, now

_current: Recorder | None = None
_excluded = False
_warned = False
_starts = 0
"""recordings that this process has begun: part of the default name, where ranks must agree on it"""


def start(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    level: str | None = None,
    task: str | None = None,
    steps: int | str | Iterable[int | str] | None = None,
    ranks: int | Iterable[int] | None = None,
    modules: str | Iterable[str] | None = None,
    phases: str | Iterable[str] | None = None,
    tensors: str | Iterable[str] | None = None,
    optimizer: object | None = None,
    on_nonfinite: bool | None = None,
    on_loss_jump: bool | float | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Path | None:
    """Begin to record a model; call it before the first forward.

    Parameters
    ----------
    model
        a module, or a list of modules (pipeline chunks), which get the prefixes ``0.``, ``1.`` …
    path
        the HDF5 file to create; under several ranks ``a.h5`` becomes ``a.rank00003.h5``. Without it the name
        is ``$PROBE_DUMP`` or ``probe-<date>-<time>.h5`` (``probe-<job>.rank00003.h5`` under several ranks, which
        must agree on it), and said once on stderr.
    level
        what is observed: ``"module"``
    task
        ``"statistics"`` (default), ``"tensor"`` (values too), ``"structure"`` (no numbers) or ``"norms"`` (for
        whole runs: gradient norms, and statistics without hash and sketch of the outputs of ``modules``, which
        are by default the root and its main blocks)
    steps
        which steps: ``3``, ``[0, 10]``, ``[0, "10-20"]``, ``"every 100"``, ``[0, "10-20", "every 1000"]``;
        default all
    ranks
        which ranks record; default all
    modules
        whose tensors: globs of module paths or class names, with ``!`` in front to leave out
    phases
        of ``init``, ``forward``, ``loss``, ``backward``, ``gradient``, ``update``
    tensors
        globs of module paths: these in full, statistics of the others
    optimizer
        the optimizer to watch; default every one that updates this model's parameters
    on_nonfinite
        after a step with NaN or Inf (in what `step` is given, in a gradient as the optimizer used it, in a
        recorded output), record the next step in full, whatever ``steps`` says
    on_loss_jump
        the same after a step whose loss exceeds 3 times (or this factor) the median of the last 32
    config
        a mapping, or a YAML or JSON file, with the same options

    Returns
    -------
    pathlib.Path or None
        the file, or None when this rank does not record

    Raises
    ------
    RecordingError
        a recording is under way, or the model is of no known framework
    ConfigError
        an option makes no sense
    ExistsError
        the file is already there
    """
    global _current, _excluded, _starts
    if _current is not None and _current.running:
        raise RecordingError(f"a recording to {_current.path} is under way; call probe.stop() first")
    options = {"level": level, "task": task, "steps": steps, "ranks": ranks, "modules": modules, "phases": phases,
               "tensors": tensors, "on_nonfinite": on_nonfinite, "on_loss_jump": on_loss_jump}  # fmt: skip
    settings = RecordConfig.from_options(config, **options)
    models = _named_models(model)
    adapter = _common_adapter(models)
    rank, world_size = _place_in_the_world()
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
    target = _target(path, rank, world_size)
    info = RunInfo(
        run_id=uuid.uuid4().hex,
        framework=adapter.framework,
        framework_version=adapter.version,
        probe_version=__version__,
        created=now(),
        rank=rank,
        world_size=world_size,
        tells_writes=adapter.counts_writes,
        config=settings.as_json(),
        model_config=adapter.model_config(models[0][1]),
    )
    environment = _environment(adapter)
    writer = _current = None
    try:
        writer = Writer(target, info)
        writer.set_attributes("environment", environment)
        _current = Recorder(adapter, models, writer, settings, optimizer)
        origins.follow(lambda facts: writer.set_attributes("environment", facts))
        return target
    except BaseException:
        recorder, _current = _current, None
        if recorder is not None:
            recorder.discard()
        if writer is not None:
            writer.abandon()
            target.unlink(missing_ok=True)
        raise


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

    Raises
    ------
    ConfigError
        a scalar is no number, or ``grads`` do not fit the parameters
    """
    global _warned
    if _current is None:
        if not _excluded and not _warned:
            _warned = True
            warn("probe.step() does nothing: no recording is under way")
        return
    if loss is not None:
        _current.look_at_loss(loss)
    named = {**({} if loss is None else {"loss": loss}), **scalars}
    _current.step({name: _number(name, value) for name, value in named.items()}, grads)


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
        _current.log_number(name, _number(name, value))


@contextlib.contextmanager
def capture(model: Any, path: str | os.PathLike[str] | None = None, **options: Any) -> Iterator[Path | None]:
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
    try:
        recorder.stop(state, one_step=one_step)
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


def _place_in_the_world() -> tuple[int, int]:
    """Return (rank, world size) from torch.distributed or the launcher's variables."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    for rank, size in (("RANK", "WORLD_SIZE"), ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"), ("RANK_ID", "RANK_SIZE")):
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def _target(path: str | os.PathLike[str] | None, rank: int, world_size: int) -> Path:
    default = time.strftime("probe-%Y%m%d-%H%M%S.h5") if world_size == 1 else _name_for_all_ranks()
    given = os.environ.get("PROBE_DUMP") if path is None else path
    target = Path(given or default)
    if target.is_dir():
        target = target / default
    if world_size > 1:
        target = target.with_name(f"{target.stem}.rank{rank:05d}{target.suffix or '.h5'}")
    if not given:
        print(f"probe: recording to {target}", file=sys.stderr)
    return target


def _name_for_all_ranks() -> str:
    """Return a default name from what all ranks know: the launcher's job, and how often recording has begun."""
    jobs = [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")]
    job = next((job for job in jobs if job not in ("", "none")), "")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    parts = ["probe", job, "" if restart == "0" else f"restart{restart}", "" if _starts == 1 else str(_starts)]
    return re.sub(r"[^\w.-]", "_", "-".join(part for part in parts if part)) + ".h5"


def _number(name: str, value: Any) -> float:
    item = getattr(value, "item", None)
    try:
        return float(item() if callable(item) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(value, Mapping):
            raise ConfigError(
                f"{name}: expected a number or a tensor with one element, got {type(value).__name__}; give each by its name: "
                f"probe.step(**{name})"
            ) from error
        raise ConfigError(
            f"{name}: expected a number or a tensor with one element, got {type(value).__name__} ({error}); "
            "tensors are recorded by probe.log(name, tensor)"
        ) from error


def _environment(adapter: Adapter) -> dict[str, object]:
    packages = {}
    for name in ("numpy", "torch", "transformers", "paddlepaddle", "mindspore", "accelerate", "deepspeed"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
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
