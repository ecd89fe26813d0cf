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
"""

from probe._version import __version__
from probe.batch_comparison import compare_batches
from probe.batches import load_batches, save_batches
from probe.comparison.divergence import compare
from probe.conversion import convert_weights
from probe.conversion.loading import load_matching
from probe.curve_comparison import curves
from probe.inputs import make_inputs
from probe.perturbing import noise_run
from probe.recording import open_recording as open
from probe.seeding import seed_all
from probe.session import capture, log, start, step, stop

__all__ = [
    "__version__",
    "capture",
    "compare",
    "compare_batches",
    "convert_weights",
    "curves",
    "load_batches",
    "load_matching",
    "log",
    "make_inputs",
    "noise_run",
    "open",
    "save_batches",
    "seed_all",
    "start",
    "step",
    "stop",
]
