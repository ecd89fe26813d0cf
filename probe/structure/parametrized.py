"""Weights that are made of others: PyTorch stores these in the module itself, or below it as parametrizations."""

from __future__ import annotations

from probe.structure.tree import Tree

_PARTS = {
    ("_WeightNorm", "original0"): "g",
    ("_WeightNorm", "original1"): "v",
    ("_SpectralNorm", "original"): "orig",
    ("_SpectralNorm", "_u"): "u",
    ("_SpectralNorm", "_v"): "v",
}
"""by the class of the first parametrization and the slot: what ``torch.nn.utils.weight_norm`` and ``spectral_norm`` append to the name"""


def parametrized(tree: Tree, module: int, slot: str) -> tuple[int, str] | None:
    """Return the module whose weight is made of a parameter, and its name there: ``parametrizations.weight.original0`` is ``weight_g``."""
    while module >= 0 and tree.class_name(module) != "ParametrizationList":
        if tree.name(module) != "0":
            return None
        module = tree.modules[module].parent
    first = tree.children[module].get("0", -1) if module >= 0 else -1
    part = _PARTS.get((tree.class_name(first), slot)) if first >= 0 else None
    if part is None:
        return None
    return tree.modules[tree.modules[module].parent].parent, f"{tree.name(module)}_{part}"
