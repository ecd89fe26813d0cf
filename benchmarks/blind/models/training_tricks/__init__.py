"""Trainings that are more than one loss: self-distillation, LoRA, distillation, experts, contrast, multi-task weights."""

from .byol import BYOL
from .distillation import DISTILLED
from .lora_multi_query import LORA
from .packed_experts import SPARSE
from .simclr import CONTRAST

MODELS = (
    BYOL,
    LORA,
    DISTILLED,
    SPARSE,
    CONTRAST,
)
