"""Autoregressive flows, score networks, adversarial training, hyper-networks, mixture densities."""

from .hyper_network import HYPER
from .made_flow import AUTOREGRESSIVE
from .mixture_density import MIXTURE
from .projection_gan import SPECTRAL
from .score_network import SCORE
from .vocoder import VOCODER

MODELS = (
    AUTOREGRESSIVE,
    SCORE,
    SPECTRAL,
    VOCODER,
    MIXTURE,
    HYPER,
)
