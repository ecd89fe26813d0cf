"""All architectures and the layer mappings of the ports, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.localisation.models.architecture import Architecture
from benchmarks.localisation.models.audio import AUDIO
from benchmarks.localisation.models.decoders import DECODERS
from benchmarks.localisation.models.encoder_decoders import ENCODER_DECODERS
from benchmarks.localisation.models.encoders import ENCODERS
from benchmarks.localisation.models.generative import GENERATIVE
from benchmarks.localisation.models.graphs import GRAPHS
from benchmarks.localisation.models.mixtures import MIXTURES
from benchmarks.localisation.models.ports.architectures import BASELINES, PORTS, RESTRUCTURED
from benchmarks.localisation.models.ports.mappings import PORT_MAPPINGS, RESTRUCTURED_MAPPINGS
from benchmarks.localisation.models.recommenders import RECOMMENDERS
from benchmarks.localisation.models.recurrent import RECURRENT
from benchmarks.localisation.models.state_space import STATE_SPACE
from benchmarks.localisation.models.vision import VISION

ARCHITECTURES: dict[str, Architecture] = {
    **DECODERS,
    **ENCODERS,
    **ENCODER_DECODERS,
    **MIXTURES,
    **STATE_SPACE,
    **RECURRENT,
    **VISION,
    **AUDIO,
    **GRAPHS,
    **GENERATIVE,
    **RECOMMENDERS,
    **RESTRUCTURED,
    **BASELINES,
    **PORTS,
}
MAPPINGS: dict[str, Mapping[str, Any]] = {**RESTRUCTURED_MAPPINGS, **PORT_MAPPINGS}
"""for each architecture that is a port with another structure"""
