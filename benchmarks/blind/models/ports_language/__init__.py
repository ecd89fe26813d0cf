"""Language models and their ports: transformers against implementations written from scratch."""

from .apertus_port import APERTUS
from .arcee_packed import ARCEE
from .decision_transformer_port import DECISION
from .imagegpt_port import IMAGEGPT

MODELS = (
    ARCEE,
    APERTUS,
    IMAGEGPT,
    DECISION,
)
