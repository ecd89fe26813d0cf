"""All architectures and the layer mappings of the ports, by name."""

from __future__ import annotations

from benchmarks.localisation.models.architecture import TRANSFORMERS, Architecture
from benchmarks.localisation.models.audio import AUDIO
from benchmarks.localisation.models.encoders import ENCODERS
from benchmarks.localisation.models.generative import GENERATIVE
from benchmarks.localisation.models.graphs import GRAPHS
from benchmarks.localisation.models.mixtures import MIXTURES
from benchmarks.localisation.models.ports.architectures import PORTS, RESTRUCTURED
from benchmarks.localisation.models.ports.mappings import MAPPINGS as MAPPINGS
from benchmarks.localisation.models.recommenders import RECOMMENDERS
from benchmarks.localisation.models.recurrent import RECURRENT
from benchmarks.localisation.models.vision import VISION

ARCHITECTURES: dict[str, Architecture] = {
    **TRANSFORMERS,
    **ENCODERS,
    **MIXTURES,
    **RECURRENT,
    **VISION,
    **AUDIO,
    **GRAPHS,
    **GENERATIVE,
    **RECOMMENDERS,
    **RESTRUCTURED,
    **PORTS,
}
