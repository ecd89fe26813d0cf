"""`auto_diff`: two models in one call, with the same weights and inputs."""

from __future__ import annotations

import contextlib
import difflib
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

from probe.comparison.answer import Comparison
from probe.comparison.run import compare
from probe.errors import ConfigError, warn
from probe.mapping import load_mapping
from probe.records import CompareModeName, PassesName
from probe.replaying.factories import function_of, model_of
from probe.replaying.keeping import kept
from probe.replaying.prepared import PairingOptions, prepared, verbs_for
from probe.replaying.run import replay
from probe.replaying.two_models.elsewhere import record_elsewhere
from probe.replaying.two_models.layer_maps import mapping_of
from probe.replaying.two_models.training import Training, record
from probe.replaying.weights import put
from probe.store.reading.reader import Reader

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
    given = _Options(
        loss_fns,
        optimizers,
        steps,
        phases,
        single_step,
        layer_map,
        black_list,
        white_list,
        atol,
        rtol,
        auto_init,
        compare_mode,
    )
    options = given.with_padiff(padiff).usable()
    folder = Path(tempfile.mkdtemp(prefix="probe-auto-diff-")) if keep is None else Path(keep)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        answer = _AutoDiff(folder, options).answered((model_a, model_b), inputs)
    except BaseException:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if keep is None:
        weakref.finalize(answer, shutil.rmtree, folder, ignore_errors=True)
    return answer


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

    def answered(self, models: tuple[Any, Any], inputs: Any) -> Comparison:
        """Run both, and compare."""
        options, given = self.options, _micros(inputs)
        steps, backward = options.steps, options.phases != "forward"
        losses, updates = options.loss_fns or (None, None), options.optimizers or (None, None)
        modules = list(_listed(options.white_list)) or None
        if isinstance(models[0], str):
            record_elsewhere(models[0], given[0], losses[0], updates[0], steps, backward, self.a, modules, self.begun)
        else:
            self._record_a(models[0], given[0], losses[0], updates[0], modules)
        model, own = model_of(models[1]) if isinstance(models[1], str) else (models[1], {})
        mapping = mapping_of(options.layer_map, models[0], model)
        if options.single_step:
            micro = {**own, **(given[1][0] if given[1] else {})}
            return replay(model, self.a, mapping, inputs=micro, weights="a" if options.auto_init else "b")
        loss, update = _resolved(losses[1], None), _resolved(updates[1], model)
        micros = [{**own, **micro} for micro in given[1]] or [own]
        self._record_b(Training(model, micros, loss, update, steps, backward), mapping, modules)
        return compare(self.a, self.b, mapping, **options.of_compare)

    def _record_a(self, model: Any, micros: Sequence[Any], loss: Any, update: Any, modules: list[str] | None) -> None:
        replaying = verbs_for(model, _CALL)
        steps, backward = self.options.steps, self.options.phases != "forward"
        training = Training(model, micros or [{}], _resolved(loss, None), _resolved(update, model), steps, backward)
        with kept(replaying, model), _optimizer_kept(replaying.adapter, training.update):
            record(training, replaying, self.a, modules, self.begun)

    def _record_b(self, training: Training, mapping: Any, modules: list[str] | None) -> None:
        replaying = verbs_for(training.model, _CALL)
        with kept(replaying, training.model), _optimizer_kept(replaying.adapter, training.update):
            if self.options.auto_init:
                with Reader(self.begun or self.a) as a:
                    ready = prepared(
                        replaying, training.model, a, 0, self.folder, PairingOptions(load_mapping(mapping))
                    )
                    left = put(replaying.adapter, training.model, ready.recorded, ready.pairing.modules)
                if left:
                    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
                    warn(
                        f"{_CALL}: weights of B without a counterpart in A keep their own values: {', '.join(left[:5])}{more}"
                    )
                for begun in ("a.begun.h5", "b.begun.h5"):
                    (self.folder / begun).unlink(missing_ok=True)
            record(training, replaying, self.b, modules)


@contextlib.contextmanager
def _optimizer_kept(adapter: Any, update: Any) -> Any:
    """Put an optimizer back as it was."""
    undo = adapter.keep_optimizer(update) if adapter.is_optimizer(update) else None
    try:
        yield
    finally:
        if undo is not None:
            undo()


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
