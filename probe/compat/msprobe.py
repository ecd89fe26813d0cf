"""`PrecisionDebugger` and `seed_all` of mindstudio-probe, done by probe: change the import, keep the script and its config.json.

::

    from probe.compat.msprobe import PrecisionDebugger, seed_all  # was: from msprobe.pytorch (or msprobe.mindspore) import …

docs/reference/other-tools.md says what becomes of each call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, ClassVar

from probe import session
from probe.adapters.base import adapter_for
from probe.config import RecordConfig, load_config
from probe.errors import ConfigError, RecordingError, warn
from probe.messages import say
from probe.numbers.slots import flatten
from probe.reproducibility import seeding

_DEFAULT = {"task": "statistics", "dump_path": "./dump_path"}
"""what mindstudio-probe takes without a configuration"""
_LACKING = {
    "TrainerMon": 'record gradient norms with probe.start(..., task="norms") and read them with probe curves',
    "random_save": "compare the inputs of two recordings",
    "compare": "probe.compare(a, b), or probe compare -i compare.json",
    "compare_distributed": "probe.compare(a, b) for the recordings of each rank",
    "AclGraphDumper": "probe records modules, not kernels",
    "MsprobeStep": "call start(), stop() and step() in a callback of your own",
    "MsprobeInitStep": "call PrecisionDebugger.set_init_step()",
    "acl_save": "probe records modules, not kernels",
    "set_fx_dump_config": "probe records modules, not kernels",
    "set_ge_dump_config": "probe records modules, not kernels",
}
"""other names of mindstudio-probe, and what to do"""

_said: set[str] = set()


class PrecisionDebugger:
    """Records with probe what mindstudio-probe's class of that name would dump; one for each process.

    Calls between `stop` and the next `start` are not recorded; the optimizer's step belongs to the step in which its
    gradients were made, also where it comes after `step`. The file is complete when the process ends, or after `probe.stop`.

    Parameters
    ----------
    config_path
        mindstudio-probe's config.json; without it statistics of all modules go to ``./dump_path``
    task, dump_path, level, step
        override the fields of that name
    model
        what to record, where `start` is given none

    Raises
    ------
    ConfigError
        the configuration asks for what probe cannot record; everything else that is done otherwise is said once
    """

    _instance: ClassVar[PrecisionDebugger | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> PrecisionDebugger:
        """Return the debugger of this process, or a new one if its recording has ended."""
        known = cls._instance
        if known is not None and (not known._has_started or session.is_under_way()):
            return known
        made = super().__new__(cls)
        made._is_new = True
        return made

    def __init__(
        self, config_path: str | None = None, task: str | None = None, dump_path: str | None = None,
        level: str | None = None, step: Any = None, model: Any = None,
    ) -> None:  # fmt: skip
        if not self._is_new:
            return
        if _is_model(step):  # in the order of older versions
            step, model = model, step
        given = {"task": task, "dump_path": dump_path, "level": level, "step": step}
        fields = load_config(config_path) if config_path is not None else _DEFAULT
        self._config: Mapping[str, Any] = {
            **fields,
            **{name: value for name, value in given.items() if value is not None},
        }
        RecordConfig.from_options(self._config)
        self._model = model
        self._has_started = self._is_paused = self._has_ended_step = self._is_new = False
        self._steps_before = 0
        type(self)._instance = self

    @classmethod
    def start(
        cls, model: Any = None, token_range: Any = None, rank_id: int | None = None, scheduled_tokens: Any = None
    ) -> None:
        """Record what runs from now on; ``model`` is a module, or a list of them.

        Without a model, the one that stands in a variable of the caller is taken, and said.
        """
        _name("token_range: all tokens are recorded", token_range)
        _name("rank_id: the rank is that of the launcher", rank_id)
        _name("scheduled_tokens: all requests are recorded", scheduled_tokens)
        cls._known()._start(model, sys._getframe(1))

    @classmethod
    def stop(cls) -> None:
        """Pass over what runs until the next `start`."""
        debugger = cls._known()
        debugger._is_paused = True
        session.pause()

    forward_backward_dump_end = stop

    @classmethod
    def step(cls, loss: Any = None, **scalars: Any) -> None:
        """End the step; a loss, and other numbers, may be given as `probe.step` takes them."""
        cls._known()._step(loss, scalars)

    @classmethod
    def save(cls, variable: Any, name: str, save_backward: bool = True) -> None:
        """Record the tensors in a variable under a name, and their gradients."""
        debugger = cls._known()
        if not debugger._has_started:
            debugger._start(None, sys._getframe(1))
        found = flatten(variable, session.is_tensor)
        for slot, tensor in found:
            session.log(name if tensor is variable else f"{name}.{slot}", tensor)
        if not found and isinstance(variable, (int, float)):
            session.log(name, variable)

    @classmethod
    def set_init_step(cls, step: int) -> None:
        """Count steps from this one; to be called before the first `start`."""
        cls._known()._steps_before = step

    @classmethod
    def register_custom_api(cls, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Do nothing: operations are not recorded."""
        _name("register_custom_api: operations are not recorded", api)

    @classmethod
    def restore_custom_api(cls, module: Any, api: str) -> None:
        """Do nothing: operations are not recorded."""

    @classmethod
    def _known(cls) -> PrecisionDebugger:
        if cls._instance is None:
            raise ConfigError(
                "no PrecisionDebugger was made: PrecisionDebugger(config_path=...) comes before its calls"
            )
        return cls._instance

    def _start(self, model: Any, caller: FrameType) -> None:
        if not self._has_started:
            if self._model is None:
                self._model = model if model is not None else _model_of(caller)
            session.start(self._model, config=self._config)
            self._has_started = True
            self._pass_over_steps_before()
        elif model is not None and not _is_same(model, self._model):
            _name(
                "start() was given another model, which is not recorded: give the first start() a list of both", model
            )
        if self._has_ended_step:
            self._has_ended_step = False
            session.step()
        self._is_paused = False
        session.pause(False)

    def _pass_over_steps_before(self) -> None:
        """Count the steps that ended before the recording began."""
        session.pause()
        for _ in range(self._steps_before):
            session.step()

    def _step(self, loss: Any, scalars: Mapping[str, Any]) -> None:
        """End the step, or once its optimizer may have run: at the next `start`, if there will be one."""
        if not self._has_started:
            self._steps_before += 1
            return
        if self._has_ended_step:
            session.step()
        self._has_ended_step = self._is_paused
        session.note_numbers(loss, **scalars)
        if not self._is_paused:
            session.step()


def seed_all(
    seed: int = 1234, mode: bool = False, rm_dropout: bool = False, is_enhanced: bool = False
) -> seeding.Seeding:
    """Seed everything, as mindstudio-probe's function of that name; what was done and what is left is said on stderr.

    Parameters
    ----------
    seed
        from 0 to 2**32 − 1
    mode
        deterministic operations
    rm_dropout
        set p of dropout to 0, for as long as the process lives
    is_enhanced
        not done: random numbers would repeat at every call, and no training is like that

    Raises
    ------
    ConfigError
        the seed is no such number
    """
    _name("seed_all: is_enhanced, the same random numbers at every call, is not done", is_enhanced)
    found = seeding.seed_all(seed, deterministic=mode)
    if rm_dropout:
        done, left = seeding.remove_dropout()
        head = f"probe: dropout off: {', '.join(done) or 'nothing'}"
        print("\n".join([head, *(f"  not off: {text}" for text in left)]), file=sys.stderr)
    return found


def module_dump(module: Any, dump_name: str) -> None:
    """Do nothing: the modules inside it are recorded too."""
    _name("module_dump: the modules inside it are recorded too", dump_name)


def module_dump_end() -> None:
    """Do nothing, as `module_dump`."""


def __getattr__(name: str) -> Any:
    if name in _LACKING:
        raise ImportError(f"probe.compat.msprobe has no {name}: {_LACKING[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _name(text: str, value: Any) -> None:
    """Say once of something that was asked for that it is done otherwise."""
    if value not in (None, False) and text not in _said:
        _said.add(text)
        warn(text)


def _is_same(model: Any, known: Any) -> bool:
    if isinstance(model, (list, tuple)) and isinstance(known, (list, tuple)):
        return len(model) == len(known) and all(a is b for a, b in zip(model, known, strict=True))
    return model is known


def _is_model(value: Any) -> bool:
    try:
        adapter_for(value)
    except RecordingError:
        return False
    return True


def _model_of(caller: FrameType) -> Any:
    """Return the model in the caller's variables, or those of its ``self``.

    It is the only one with parameters that is not inside another. Raises ConfigError where there is none, or there
    are several.
    """
    where = f"{caller.f_code.co_name}()" if caller.f_code.co_name != "<module>" else "the script"
    own = getattr(caller.f_locals.get("self"), "__dict__", {})  # of a trainer
    for variables in (caller.f_locals, own, caller.f_globals):
        models = _outermost({name: value for name, value in variables.items() if _is_model(value)})
        if len(models) > 1:
            raise ConfigError(
                f"start() was given no model, and {where} has {' and '.join(models)}: debugger.start(model=...) names one"
            )
        for name, model in models.items():
            say(f"{name} ({type(model).__name__}) is recorded: start() was given no model, and {where} has this one")
            return model
    raise ConfigError(f"start() was given no model, and {where} has none: debugger.start(model=...) names one")


def _outermost(models: Mapping[str, Any]) -> dict[str, Any]:
    """Return models with parameters that are not inside another, each under its first name."""
    found: dict[int, tuple[str, Any]] = {}
    inside: set[int] = set()
    for name, model in models.items():
        adapter = adapter_for(model)
        if any(True for _ in adapter.parameters(model)):
            found.setdefault(id(model), (name, model))
            inside |= {id(each.module) for each in adapter.modules(model) if each.path}
    return {name: model for key, (name, model) in found.items() if key not in inside}
