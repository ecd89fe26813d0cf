"""Graphs, sets and molecules."""

from .graph_attention import GAT
from .molecule_energy import MOLECULE
from .set_transformer import SETS

MODELS = (
    GAT,
    MOLECULE,
    SETS,
)
