"""All faults, by name."""

from __future__ import annotations

from benchmarks.localisation.faults.attention import ATTENTION_FAULTS
from benchmarks.localisation.faults.backward import BACKWARD_FAULTS
from benchmarks.localisation.faults.clipping import CLIPPING_FAULTS
from benchmarks.localisation.faults.gradients import GRADIENT_FAULTS
from benchmarks.localisation.faults.inputs import INPUT_FAULTS
from benchmarks.localisation.faults.layers import LAYER_FAULTS
from benchmarks.localisation.faults.loss import LOSS_FAULTS
from benchmarks.localisation.faults.norms import NORM_FAULTS
from benchmarks.localisation.faults.optimizer import OPTIMIZER_FAULTS
from benchmarks.localisation.faults.outputs import OUTPUT_FAULTS
from benchmarks.localisation.faults.positions import POSITION_FAULTS
from benchmarks.localisation.faults.weights import WEIGHT_FAULTS
from benchmarks.localisation.tools.planting import Fault

FAULTS: dict[str, Fault] = {
    **WEIGHT_FAULTS,
    **INPUT_FAULTS,
    **ATTENTION_FAULTS,
    **POSITION_FAULTS,
    **NORM_FAULTS,
    **LAYER_FAULTS,
    **OUTPUT_FAULTS,
    **LOSS_FAULTS,
    **BACKWARD_FAULTS,
    **GRADIENT_FAULTS,
    **CLIPPING_FAULTS,
    **OPTIMIZER_FAULTS,
}
