"""`auto_diff`: two models in one call, with the same weights and inputs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

from probe.adapters.base import adapter_for
from probe.adapters.replaying import Replaying
from probe.answer.comparison import Comparison
from probe.comparing import compare
from probe.errors import ConfigError, warn
from probe.records import CompareModeName, PassesName
from probe.replaying.factories import function_of, model_of
from probe.replaying.keeping import kept
from probe.replaying.prepared import PairingOptions, in_folder, prepared, verbs_for
from probe.replaying.run import replay
from probe.replaying.two_models.training import Training, record, record_elsewhere
from probe.replaying.weights import put

_CALL = "probe.auto_diff()"
_MODES = {"strict": "allclose", "mean": "mean_abs"}
"""metrics of `probe.compare` by what compare_mode is called"""
_OF_PADIFF = {"loss_fn": "loss_fns", "optimizer": "optimizers", "diff_phase": "phases", "auto_weights": "auto_init"}
"""what PaDiff calls options"""
_LEFT_BY_PADIFF = {"use_loss", "use_opt", "opt_type"}
"""what it writes into the dict of options that it is given"""
_LOOSE = 0.1
"""a relative tolerance from which on two networks of random weights may pass"""


class PaDiffOptions(TypedDict, total=False):
    """Options as PaDiff has them."""

    loss_fn: Sequence[Any] | None
    optimizer: Sequence[Any] | None
    diff_phase: PassesName | Literal["backward"]
    auto_weights: bool
    options: Mapping[str, Any]
    """any of the options, PaDiff's own or those of `auto_diff`"""
    debug: bool
    cmd: bool


@dataclass(frozen=True)
class _Options:
    """The options of `auto_diff`."""

    loss_fns: Sequence[Any] | None = None
    optimizers: Sequence[Any] | None = None
    steps: int = 1
    phases: str = "both"
    single_step: bool = False
    layer_map: Any = None
    black_list: str | Iterable[str] = ()
    white_list: str | Iterable[str] = ()
    atol: float | None = None
    rtol: float | None = None
    auto_init: bool = True
    compare_mode: str = "strict"

    def with_padiff(self, given: Mapping[str, Any]) -> _Options:
        """Return the options with those that PaDiff names. Raises ConfigError."""
        found: dict[str, Any] = {}
        for name, value in {**given, **(given.get("options") or {})}.items():
            own = _OF_PADIFF.get(name, name)
            if name in ("debug", "cmd") and value:
                warn(f"{_CALL}: {name} has no effect: look into the answer, or give keep= and open its recordings")
            elif own not in _NAMES:
                _require_known(name)
            elif own in found or getattr(self, own) is not getattr(_Options, own):
                raise ConfigError(f"{_CALL}: {own} is given twice")
            else:
                found[own] = value
        return replace(self, **found)

    def usable(self) -> _Options:
        """Return the options without those that have no effect beside others, which is said. Raises ConfigError."""
        self._check()
        changes: dict[str, tuple[Any, str]] = {}
        if self.phases == "backward":
            changes["phases"] = "both", "the forward is judged too"
        if self.single_step and not (self.atol is None and self.rtol is None):
            changes["atol"] = changes["rtol"] = None, "single_step judges each module by its own rounding"
        if self.steps > 1 and (self.single_step or self.optimizers is None or self.phases == "forward"):
            changes["steps"] = (
                1,
                "every step is the same without optimizers, in the forward alone, and with single_step",
            )
        for name, (value, why) in changes.items():
            if getattr(self, name) is not None:
                taken = "not used" if value is None else f"taken as {value!r}"
                warn(f"{_CALL}: {name}={getattr(self, name)!r} is {taken}: {why}")
        return replace(self, **{name: value for name, (value, _) in changes.items()})

    def _check(self) -> None:
        """Refuse options that make no sense."""
        for name, known in (("phases", [*get_args(PassesName), "backward"]), ("compare_mode", _MODES)):
            if getattr(self, name) not in known:
                expected = " or ".join(map(repr, known))
                raise ConfigError(f"{name}={getattr(self, name)!r} is not known; expected {expected}")
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ConfigError(f"steps={self.steps!r} cannot be used; expected a number from 1")
        for name in ("loss_fns", "optimizers"):
            both = getattr(self, name)
            if both is not None and not (isinstance(both, (tuple, list)) and len(both) == 2):
                raise ConfigError(f"{name}={type(both).__name__} cannot be used; expected two, A's and B's")
        if self.single_step and (self.white_list or self.black_list):
            raise ConfigError("single_step replays one step of all modules: leave white_list and black_list out")
        if self.rtol is not None and self.rtol > _LOOSE:
            warn(f"{_CALL}: rtol={self.rtol:g} lets two models of different random weights pass")

    @property
    def of_compare(self) -> dict[str, Any]:
        """Options of `probe.compare`."""
        rules = [{"path": glob, "ignore": True} for glob in _listed(self.black_list)]
        fixed = self.atol is not None or self.rtol is not None
        return {
            "atol": self.atol, "rtol": self.rtol, "metric": _MODES[self.compare_mode] if fixed else None, "rules": rules or None,
        }  # fmt: skip


_NAMES = tuple(each.name for each in fields(_Options))


def auto_diff(
    model_a: Any,
    model_b: Any,
    inputs: Any = None,
    *,
    loss_fns: Sequence[Any] | None = None,
    optimizers: Sequence[Any] | None = None,
    steps: int = 1,
    phases: PassesName = "both",
    single_step: bool = False,
    layer_map: Any = None,
    black_list: str | Iterable[str] = (),
    white_list: str | Iterable[str] = (),
    atol: float | None = None,
    rtol: float | None = None,
    auto_init: bool = True,
    compare_mode: CompareModeName = "strict",
    keep: str | Path | None = None,
    **padiff: Unpack[PaDiffOptions],
) -> Comparison:
    """Run two models with the same weights and inputs, and name the first place where they diverge.

    Both are left as they were. In one process both frameworks must bear each other (import mindspore before paddle); a model that is
    named, ``"module:function"``, runs in a process of its own if it is A.

    Parameters
    ----------
    model_a, model_b
        the baseline and the other one: models, or names of functions that return the model, or the model and its arguments
    inputs
        two dicts of arguments, A's and B's, of tensors or numpy arrays; or one for both; or a list of these, whose gradients add up
        (a list of two dicts with other names or types is A's and B's)
    loss_fns
        two functions of what the models return (or their names); the mean of the first tensor when None. PaDiff's ``loss_fn``
    optimizers
        two optimizers, or functions that update and clear the gradients; of models that are named, names of functions of the model.
        PaDiff's ``optimizer``
    steps
        training steps; one without optimizers
    phases
        ``"both"``, or ``"forward"`` for no backward pass. PaDiff's ``diff_phase``
    single_step
        run each module of B alone with what A's was given, as `probe.replay` does: errors are not inherited
    layer_map
        a layer mapping as for `probe.compare`, or pairs of modules or paths, one of A and one of B: a list, a dict or PaDiff's LayerMap
    black_list
        paths or globs of modules that are not judged
    white_list
        paths, globs or classes of the only modules that are looked at
    atol, rtol, compare_mode
        a fixed tolerance, for every element (``"strict"``) or for the mean error of a tensor (``"mean"``); without one, what is
        known of rounding decides
    auto_init
        give B the weights of A. PaDiff's ``auto_weights``
    keep
        a folder for the two recordings, ``a.h5`` and ``b.h5``
    padiff
        options by their names in PaDiff, and its dict ``options``

    Returns
    -------
    Comparison
        true if the two are aligned: ``assert probe.auto_diff(...)``

    Raises
    ------
    ConfigError
        an option is unknown, or makes no sense
    RecordingError, ConversionError, MappingError
        a model cannot be recorded, a weight has no counterpart, the mapping cannot be used
    """
    given = {name: value for name, value in locals().items() if name in _NAMES}
    options = _Options(**given).with_padiff(padiff).usable()

    def answered(folder: Path) -> Comparison:
        folder.mkdir(parents=True, exist_ok=True)
        return _AutoDiff(folder, options).answered((model_a, model_b), inputs)

    return in_folder("probe-auto-diff-", answered) if keep is None else answered(Path(keep))


def _require_known(name: str) -> None:
    if name in _LEFT_BY_PADIFF or name in PaDiffOptions.__annotations__:
        return
    close = difflib.get_close_matches(name, [*_NAMES, *_OF_PADIFF], 1)
    meant = "layer_map" if "mapping" in name else close[0] if close else ""
    hint = f"did you mean {meant}? It has" if meant else "it has"
    raise ConfigError(f"{_CALL} has no option {name!r}; {hint} {', '.join(_NAMES)}, keep")


def _listed(globs: str | Iterable[str]) -> tuple[str, ...]:
    return (globs,) if isinstance(globs, str) else tuple(globs)


class _AutoDiff:
    """A comparison under way."""

    def __init__(self, folder: Path, options: _Options) -> None:
        self.a, self.b = folder / "a.h5", folder / "b.h5"
        self.folder, self.options = folder, options
        self.begun = folder / "a.begun.h5" if options.auto_init and _listed(options.white_list) else None
        """all weights of A, where the recording has those of some modules alone"""
        self.modules = list(_listed(options.white_list)) or None

    def answered(self, models: tuple[Any, Any], inputs: Any) -> Comparison:
        """Run both, and compare."""
        options, given = self.options, _micros(inputs)
        losses, updates = options.loss_fns or (None, None), options.optimizers or (None, None)
        if isinstance(models[0], str):
            named = self._training(models[0], given[0], losses[0], updates[0])
            record_elsewhere(named, self.a, self.modules, self.begun)
        else:
            loss, update = _resolved(losses[0], None), _resolved(updates[0], models[0])
            self._record(self._training(models[0], given[0] or [{}], loss, update), is_a=True)
        model, own = model_of(models[1]) if isinstance(models[1], str) else (models[1], {})
        mapping = _mapping_of(options.layer_map, models[0], model)
        if options.single_step:
            micro = {**own, **(given[1][0] if given[1] else {})}
            return replay(model, self.a, mapping, inputs=micro, weights="a" if options.auto_init else "b")
        loss, update = _resolved(losses[1], None), _resolved(updates[1], model)
        micros = [{**own, **micro} for micro in given[1]] or [own]
        self._record(self._training(model, micros, loss, update), mapping, is_a=False)
        return compare(self.a, self.b, mapping, **options.of_compare)

    def _training(self, model: Any, micros: Any, loss: Any, update: Any) -> Training:
        return Training(model, micros, loss, update, self.options.steps, self.options.phases != "forward")

    def _record(self, training: Training, mapping: Any = None, *, is_a: bool) -> None:
        replaying = verbs_for(training.model, _CALL)
        with kept(replaying, training.model, training.update):
            if not is_a and self.options.auto_init:
                self._give_weights(mapping, replaying, training.model)
            record(training, replaying, self.a if is_a else self.b, self.modules, self.begun if is_a else None)

    def _give_weights(self, mapping: Any, replaying: Replaying, model: Any) -> None:
        """Give B the weights of A."""
        with prepared(replaying, model, self.begun or self.a, 0, self.folder, PairingOptions(mapping)) as ready:
            left = put(replaying.adapter, model, ready.recorded, ready.pairing.modules)
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            warn(f"{_CALL}: weights of B without a counterpart in A keep their own values: {', '.join(left[:5])}{more}")
        for begun in ("a.begun.h5", "b.begun.h5"):
            (self.folder / begun).unlink(missing_ok=True)


def _resolved(what: Any, model: Any) -> Any:
    """Return a function, or what a named function makes of a model."""
    if not isinstance(what, str):
        return what
    found = function_of(what)
    return found if model is None else found(model)


def _micros(inputs: Any) -> tuple[list[Any], list[Any]]:
    """Return the arguments of both models, by micro-batch."""
    if isinstance(inputs, list) and len(inputs) == 2 and all(isinstance(each, Mapping) for each in inputs):
        kinds = [{name: type(value) for name, value in each.items()} for each in inputs]
        inputs = inputs if kinds[0] == kinds[1] else tuple(inputs)
    found = inputs if isinstance(inputs, list) else [] if inputs is None else [inputs]
    pairs = [(each, each) if isinstance(each, Mapping) else each for each in found]
    for each in pairs:
        if not isinstance(each, (tuple, list)) or len(each) != 2 or not all(isinstance(one, Mapping) for one in each):
            raise ConfigError(
                f"inputs={type(inputs).__name__} cannot be used; expected a dict of arguments, two of them, or a list of these"
            )
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _mapping_of(given: Any, model_a: Any, model_b: Any) -> Any:
    """Return what `probe.compare` takes as a mapping.

    Parameters
    ----------
    given
        such a mapping, or pairs of modules or paths: a list of them, a dict, or an object whose ``map`` is one (PaDiff's LayerMap)

    Raises
    ------
    ConfigError
        a module is in neither model
    """
    if given is None or isinstance(given, (str, Path)):
        return given
    if isinstance(given, Mapping) and all(isinstance(name, str) for name in given):
        return given
    given = getattr(given, "map", given)
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given) if isinstance(given, Iterable) else None
    if pairs is None or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise ConfigError(
            f"layer_map={type(given).__name__} cannot be used; expected a layer mapping, or pairs of modules or paths"
        )
    return {"TopLayer": dict(_paths((model_a, model_b), *pair) for pair in pairs)}


def _paths(models: tuple[Any, Any], one: Any, other: Any) -> tuple[str, str]:
    """Return the paths of a pair in A and B, whichever of the two comes first. Raises ConfigError."""
    for pair in ((one, other), (other, one)):
        a, b = map(_path, models, pair)
        if a is not None and b is not None:
            return a, b
    raise ConfigError(
        f"layer_map pairs a {type(one).__name__} with a {type(other).__name__}, and they are not one of A and one of B"
    )


def _path(model: Any, module: Any) -> str | None:
    if isinstance(module, str) or isinstance(model, str):
        return module if isinstance(module, str) else None
    return next((each.path for each in adapter_for(model).modules(model) if each.module is module), None)
