"""probe: two runs of "the same" model disagree; this names the first place that is really wrong.

Recording, inside a training program::

    probe.start(model, "a.h5")
    for batch in loader:
        loss = train_step(model, batch)
        probe.step(loss=loss)
    probe.stop()

Comparing, anywhere, without a framework::

    probe.compare("a.h5", "b.h5", mapping="map.yaml").first_divergence

Over whole runs, from recordings or training logs::

    probe.curves("a.h5", "b.h5").verdict

Weights of one framework for another::

    state = probe.convert_weights(torch_model.state_dict(), to="paddle", source=torch_model)

Importing probe loads none of these: each is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

from probe._version import __version__

if TYPE_CHECKING:
    from probe.comparing import compare
    from probe.conversion import convert_weights
    from probe.conversion.loading import load_matching
    from probe.curve_comparison import curves
    from probe.recording import open_recording as open
    from probe.replaying.injecting import inject
    from probe.replaying.run import replay
    from probe.replaying.two_models.auto_diff import auto_diff
    from probe.replaying.updating import replay_gradients
    from probe.reproducibility.batch_comparison import compare_batches
    from probe.reproducibility.batches import load_batches, save_batches
    from probe.reproducibility.inputs import make_inputs
    from probe.reproducibility.perturbing import noise_run
    from probe.reproducibility.schedules import compare_schedules
    from probe.reproducibility.seeding import seed_all
    from probe.run.arming import arm
    from probe.session import capture, log, start, step, stop

__all__ = [
    "__version__",
    "arm",
    "auto_diff",
    "capture",
    "compare",
    "compare_batches",
    "compare_schedules",
    "convert_weights",
    "curves",
    "inject",
    "load_batches",
    "load_matching",
    "log",
    "make_inputs",
    "noise_run",
    "open",
    "replay",
    "replay_gradients",
    "save_batches",
    "seed_all",
    "start",
    "step",
    "stop",
]

_HOMES = {
    "arm": "run.arming:arm",
    "auto_diff": "replaying.two_models.auto_diff:auto_diff",
    "capture": "session:capture",
    "compare": "comparing:compare",
    "compare_batches": "reproducibility.batch_comparison:compare_batches",
    "compare_schedules": "reproducibility.schedules:compare_schedules",
    "convert_weights": "conversion:convert_weights",
    "curves": "curve_comparison:curves",
    "inject": "replaying.injecting:inject",
    "load_batches": "reproducibility.batches:load_batches",
    "load_matching": "conversion.loading:load_matching",
    "log": "session:log",
    "make_inputs": "reproducibility.inputs:make_inputs",
    "noise_run": "reproducibility.perturbing:noise_run",
    "open": "recording:open_recording",
    "replay": "replaying.run:replay",
    "replay_gradients": "replaying.updating:replay_gradients",
    "save_batches": "reproducibility.batches:save_batches",
    "seed_all": "reproducibility.seeding:seed_all",
    "start": "session:start",
    "step": "session:step",
    "stop": "session:stop",
}
"""module and name of what is loaded when it is first used: the same as the imports above, which only type checkers run"""


def _first_use(name: str) -> object:
    """Load a public name, or a module such as ``probe.errors``, when it is first asked for (PEP 562)."""
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        value = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        module = f"{__name__}.{name}"
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # a type checker would let every name pass
    __getattr__ = _first_use


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
