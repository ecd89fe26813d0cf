"""Layer mappings: which path on one side takes the place of which on the other.

A file has sections, named by a module class of the side that it is written from, by a path, or ``TopLayer`` for the root;
each holds paths below such a module, and the path that takes their place::

    TransformerLayer:
      self_attention: self_attn
      self_attention.linear_qkv: [self_attn.q_proj, self_attn.k_proj, self_attn.v_proj]

Dotted keys cross levels, the longest key wins, what is not named keeps its name. docs/reference/mapping.md has all of it.
"""

from probe.mapping.library import library, library_folder, load_mapping
from probe.mapping.rules import TOP, Ignored, LayerMapping, ParameterRule, Rule, Section, Split

__all__ = [
    "TOP", "Ignored", "LayerMapping", "ParameterRule", "Rule", "Section", "Split", "library", "library_folder",
    "load_mapping",
]  # fmt: skip
