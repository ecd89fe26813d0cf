"""`auto_diff`: two models in one call, with the same weights and inputs."""

from __future__ import annotations

import contextlib
import difflib
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never, get_args

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
_OTHER_NAMES = {
    "loss_fn": "loss_fns", "optimizer": "optimizers", "diff_phase": "phases", "auto_weights": "auto_init", "options": "atol=, rtol=, …",
    "layer_mapping": "layer_map", "mapping": "layer_map",
}  # fmt: skip
"""what options are called elsewhere"""
_NAMES = (
    "loss_fns", "optimizers", "steps", "phases", "single_step", "layer_map", "black_list", "white_list", "atol", "rtol", "auto_init",
    "compare_mode", "keep",
)  # fmt: skip
_LOOSE = 0.1
"""a relative tolerance from which on two networks of random weights may pass"""


@dataclass(frozen=True)
class _Judging:
    """How the two runs are compared."""

    atol: float | None
    rtol: float | None
    compare_mode: str
    black_list: tuple[str, ...]
    white_list: tuple[str, ...]

    @property
    def options(self) -> dict[str, Any]:
        """Options of `probe.compare`."""
        rules = [{"path": glob, "ignore": True} for glob in self.black_list]
        fixed = self.atol is not None or self.rtol is not None
        return {
            "atol": self.atol, "rtol": self.rtol, "metric": _MODES[self.compare_mode] if fixed else None, "rules": rules or None,
        }  # fmt: skip


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
    **unknown: Never,
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
    loss_fns
        two functions of what the models return (or their names); the mean of the first tensor when None
    optimizers
        two optimizers, or functions that update and clear the gradients; of models that are named, names of functions of the model
    steps
        training steps; more than one needs optimizers
    phases
        ``"both"``, or ``"forward"`` for no backward pass
    single_step
        run each module of B alone with what A's was given, as `probe.replay` does: errors are not inherited
    layer_map
        a layer mapping as for `probe.compare`, or pairs of modules or paths: those of A, each with that of B
    black_list
        paths or globs of modules that are not judged
    white_list
        paths, globs or classes of the only modules that are looked at
    atol, rtol, compare_mode
        a fixed tolerance, for every element (``"strict"``) or for the mean error of a tensor (``"mean"``); without one, what is
        known of rounding decides
    auto_init
        give B the weights of A
    keep
        a folder for the two recordings, ``a.h5`` and ``b.h5``

    Raises
    ------
    ConfigError
        an option is unknown, or makes no sense
    RecordingError, ConversionError, MappingError
        a model cannot be recorded, a weight has no counterpart, the mapping cannot be used
    """
    _refuse(unknown)
    judging = _Judging(atol, rtol, compare_mode, _listed(black_list), _listed(white_list))
    _check(judging, steps, phases, optimizers, single_step)
    folder = Path(tempfile.mkdtemp(prefix="probe-auto-diff-")) if keep is None else Path(keep)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        run = _AutoDiff(folder, steps, phases == "both", auto_init, judging)
        answer = run.answered(
            (model_a, model_b), inputs, loss_fns or (None, None), optimizers or (None, None), layer_map, single_step
        )
    except BaseException:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if keep is None:
        weakref.finalize(answer, shutil.rmtree, folder, ignore_errors=True)
    return answer


def _refuse(unknown: Mapping[str, Any]) -> None:
    for name in unknown:
        meant = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, _NAMES, 1)), "")
        hint = f"; did you mean {meant}?" if meant else ""
        raise ConfigError(f"{_CALL} has no option {name!r}{hint} It has {', '.join(_NAMES)}")


def _listed(globs: str | Iterable[str]) -> tuple[str, ...]:
    return (globs,) if isinstance(globs, str) else tuple(globs)


def _check(judging: _Judging, steps: int, phases: str, optimizers: Any, single_step: bool) -> None:
    """Refuse options that make no sense."""
    if phases not in get_args(PassesName):
        raise ConfigError(f"phases={phases!r} is not known; expected {' or '.join(map(repr, get_args(PassesName)))}")
    if judging.compare_mode not in _MODES:
        raise ConfigError(
            f"compare_mode={judging.compare_mode!r} is not known; expected {' or '.join(map(repr, _MODES))}"
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps={steps!r} cannot be used; expected a number from 1")
    if steps > 1 and (optimizers is None or phases != "both"):
        raise ConfigError(
            f"steps={steps} needs optimizers=(optimizer_a, optimizer_b) and phases='both': else every step is the same"
        )
    if single_step and (judging.atol is not None or judging.rtol is not None):
        raise ConfigError("single_step judges each module by its own rounding: leave atol and rtol out")
    if single_step and (steps > 1 or judging.white_list or judging.black_list):
        raise ConfigError("single_step replays one step of all modules: leave steps, white_list and black_list out")
    if judging.rtol is not None and judging.rtol > _LOOSE:
        warn(f"{_CALL}: rtol={judging.rtol:g} lets two models of different random weights pass")


class _AutoDiff:
    """A comparison under way."""

    def __init__(self, folder: Path, steps: int, backward: bool, auto_init: bool, judging: _Judging) -> None:
        self.a, self.b = folder / "a.h5", folder / "b.h5"
        self.begun = folder / "a.begun.h5" if auto_init and judging.white_list else None
        """all weights of A, where the recording has those of some modules alone"""
        self.folder, self.steps, self.backward, self.auto_init, self.judging = (
            folder,
            steps,
            backward,
            auto_init,
            judging,
        )

    def answered(
        self, models: tuple[Any, Any], inputs: Any, losses: Sequence[Any], updates: Sequence[Any], layer_map: Any, single_step: bool
    ) -> Comparison:  # fmt: skip
        """Run both, and compare."""
        given = _micros(inputs)
        modules = list(self.judging.white_list) or None
        if isinstance(models[0], str):
            record_elsewhere(
                models[0], given[0], losses[0], updates[0], self.steps, self.backward, self.a, modules, self.begun
            )
        else:
            self._record_a(models[0], given[0], losses[0], updates[0], modules)
        model, own = model_of(models[1]) if isinstance(models[1], str) else (models[1], {})
        mapping = mapping_of(layer_map, models[0], model)
        if single_step:
            micro = {**own, **(given[1][0] if given[1] else {})}
            return replay(model, self.a, mapping, inputs=micro, weights="a" if self.auto_init else "b")
        loss, update = _resolved(losses[1], None), _resolved(updates[1], model)
        micros = [{**own, **micro} for micro in given[1]] or [own]
        self._record_b(Training(model, micros, loss, update, self.steps, self.backward), mapping, modules)
        return compare(self.a, self.b, mapping, **self.judging.options)

    def _record_a(self, model: Any, micros: Sequence[Any], loss: Any, update: Any, modules: list[str] | None) -> None:
        replaying = verbs_for(model, _CALL)
        training = Training(
            model, micros or [{}], _resolved(loss, None), _resolved(update, model), self.steps, self.backward
        )
        with kept(replaying, model), _optimizer_kept(replaying.adapter, training.update):
            record(training, replaying, self.a, modules, self.begun)

    def _record_b(self, training: Training, mapping: Any, modules: list[str] | None) -> None:
        replaying = verbs_for(training.model, _CALL)
        with kept(replaying, training.model), _optimizer_kept(replaying.adapter, training.update):
            if self.auto_init:
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
    found = inputs if isinstance(inputs, list) else [] if inputs is None else [inputs]
    pairs = [(each, each) if isinstance(each, Mapping) else each for each in found]
    for each in pairs:
        if not isinstance(each, (tuple, list)) or len(each) != 2 or not all(isinstance(one, Mapping) for one in each):
            raise ConfigError(
                f"inputs={type(inputs).__name__} cannot be used; expected a dict of arguments, two of them, or a list of these"
            )
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
