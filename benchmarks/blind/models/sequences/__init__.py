"""Sequence models outside the usual transformers: diagonal state spaces, retention, pointer networks, a neural CRF, memory."""

from .crf_labeller import LABELLER
from .diagonal_state_space import STATE_SPACE
from .memory_network import MEMORY
from .pointer_generator import POINTER
from .retention_lm import RETENTIVE

MODELS = (
    STATE_SPACE,
    RETENTIVE,
    POINTER,
    LABELLER,
    MEMORY,
)
