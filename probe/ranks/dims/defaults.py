"""How parameters and tensors of known classes are divided: what code bases say by attributes, and what their classes do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from probe.ranks.dims.language import REPLICATED, Dims, Split, parsed
from probe.ranks.layout.groups import canonical
from probe.records import Role

Facts = Mapping[str, Any]
_GATED = re.compile(r"(linear_fc1|gate_up_proj|gate_up_fused_proj|gate_and_up_proj|w13)$")
"""names of projections that are gate and up, side by side on each rank"""
_TIMES_2 = ("gated_linear_unit", "swiglu", "fuse_attention_ffn")
"""keys of configurations which say that a first linear layer is gate and up"""

COLUMN = frozenset({
    "ColumnParallelLinear", "TEColumnParallelLinear", "TELayerNormColumnParallelLinear", "MergedColumnParallelLinear", "QKVParallelLinear",
    "ColumnSequenceParallelLinear", "InferenceLayerNormColumnParallelLinear", "ParallelLMHead",
})  # fmt: skip
"""layers of which each rank has outputs of its own"""
ROW = frozenset({"RowParallelLinear", "TERowParallelLinear", "RowSequenceParallelLinear", "InferenceRowParallelLinear"})
"""layers of which each rank has inputs of its own, and whose results are added up"""
VOCABULARY = frozenset({"VocabParallelEmbedding", "ParallelEmbedding"})
"""embeddings of which each rank has rows of its own"""
ATTENTION = frozenset({"DotProductAttention", "TEDotProductAttention", "CoreAttention"})
"""Megatron's attention without its projections: each rank has heads of its own"""
SCORES = frozenset({"FusedScaleMaskSoftmax"})
"""its softmax of [samples, heads, positions, positions]"""
_SEQUENCE = ("ColumnSequenceParallelLinear", "RowSequenceParallelLinear")

LAST = "... h[tp]"
FIRST = "s[tp] ..."


@dataclass(frozen=True, slots=True)
class Known:
    """How a tensor that modules of some classes are given, or return, is divided."""

    classes: frozenset[str]
    role: Role
    dims: str
    slot: str = "0"
    when: tuple[str, bool] | None = None
    """an attribute of the module, and what it is there"""

    def fits(self, class_name: str, facts: Facts, role: Role, slot: str) -> bool:
        """Return True if it is said of a tensor."""
        name, wanted = self.when or ("", False)
        is_so = bool(facts.get(name, _UNLESS_SAID.get(name, False))) is wanted
        return class_name in self.classes and (self.role, self.slot) == (role, slot) and is_so


_UNLESS_SAID = {"input_is_parallel": True}
"""what attributes of modules are that these do not have, where that is not False"""
TENSORS = (
    Known(COLUMN, Role.INPUT, FIRST, when=("sequence_parallel", True)),
    Known(COLUMN, Role.INPUT, "replicated"),
    Known(COLUMN, Role.OUTPUT, LAST, when=("gather_output", False)),
    Known(COLUMN, Role.OUTPUT, "replicated"),
    Known(COLUMN, Role.OUTPUT, LAST, slot="1"),
    Known(ROW, Role.INPUT, LAST, when=("input_is_parallel", True)),
    Known(ROW, Role.INPUT, "replicated"),
    Known(ROW, Role.OUTPUT, FIRST, when=("sequence_parallel", True)),
    Known(ROW, Role.OUTPUT, "replicated"),
    *(Known(ATTENTION, Role.INPUT, "... heads[tp] d", slot=slot) for slot in ("0", "1", "2")),
    Known(ATTENTION, Role.OUTPUT, LAST),
    *(Known(SCORES, role, "b heads[tp] ...") for role in (Role.INPUT, Role.OUTPUT)),
    Known(VOCABULARY, Role.INPUT, "replicated"),
    Known(VOCABULARY, Role.OUTPUT, FIRST, when=("reduce_scatter_embeddings", True)),
    Known(VOCABULARY, Role.OUTPUT, "replicated"),
)
"""the first that fits counts; with sequence parallelism the sequence is the first axis, as in Megatron and fleet; what is returned beside
the result is a bias that has not been added"""
FORWARD_OF = {Role.GRAD_OUTPUT: Role.OUTPUT, Role.GRAD_INPUT: Role.INPUT, Role.GRAD_TOTAL: Role.INPUT}


def of_tensor(class_name: str, facts: Facts, role: Role, slot: str, *, parts: int, in_sequence: bool) -> Dims | None:
    """Return how a tensor of a call is divided; None where its class does not say.

    ``facts`` are attributes of the module; the slot of the tensor that a layer works on is ``"0"``. So many ``parts``
    lie side by side on each rank: 2 where it is gate and up. ``in_sequence``: its parameters say that it works on
    parts of the sequence (norms under sequence parallelism).
    """
    role = FORWARD_OF.get(role, role)
    if class_name in _SEQUENCE:
        facts = {**facts, "sequence_parallel": True}
    for known in TENSORS:
        if known.fits(class_name, facts, role, slot):
            is_packed = parts > 1 and known.dims == LAST and role is Role.OUTPUT
            dims = parsed(f"... {parts}·h[tp]" if is_packed else known.dims)
            return _over_experts(dims) if facts.get("is_expert") else dims
    is_layer = class_name in COLUMN | ROW | VOCABULARY | ATTENTION | SCORES
    if in_sequence and slot == "0" and not is_layer and role in (Role.INPUT, Role.OUTPUT):
        return parsed(FIRST)
    return None


def of_parameter(
    class_name: str, facts: Facts, module_facts: Facts, slot: str, framework: str, *, is_gated: bool
) -> Dims | None:
    """Return how a parameter is divided; None where nothing says it."""
    if isinstance(facts.get("placements"), list):
        return of_placements(facts["placements"])
    axis, stride = _axis_said(facts)
    if axis is None:
        axis = _axis_of_class(class_name, slot, framework)
    if axis is None:
        return None
    before: tuple[int | str, ...] = (stride,) if stride > 1 else (2,) if is_gated and class_name in COLUMN else ()
    if axis == REPLICATED:
        return REPLICATED
    dims = Dims((Split(int(axis), "tp", before=before),))
    return _over_experts(dims) if module_facts.get("is_expert") or facts.get("allreduce") is False else dims


def of_placements(placements: list[Any]) -> Dims:
    """Return how a tensor is divided that says for each dimension of a mesh how it lies there."""
    splits: list[Split] = []
    strided: list[Split] = []
    partial: list[str] = []
    for name, said in placements:
        kind, _, factor = str(said).partition("/")
        group = canonical(str(name))
        if kind == "P":
            partial.append(group)
        elif kind.startswith("S"):
            (strided if factor else splits).append(Split(int(kind[1:]), group))
    return Dims((*splits, *strided), tuple(partial))


def is_gated(path: str, config: Facts) -> bool:
    """Return True if a projection is gate and up, by its name and the recorded configuration."""
    found = _GATED.search(path)
    if found is None:
        return False
    return found[1] != "linear_fc1" or any(config.get(key) is True for key in _TIMES_2)


def _axis_said(facts: Facts) -> tuple[int | None, int]:
    """Return along which axis a parameter says that it is divided, and in how many parts."""
    if facts.get("tensor_model_parallel") is True and isinstance(facts.get("partition_dim"), int):
        axis, stride = facts["partition_dim"], facts.get("partition_stride", 1)
        return axis if axis >= 0 else None, stride if isinstance(stride, int) else 1
    if facts.get("is_distributed") is True and isinstance(facts.get("split_axis"), int):
        return facts["split_axis"], 1
    return None, 1


def _axis_of_class(class_name: str, slot: str, framework: str) -> int | Dims | None:
    out, in_ = (1, 0) if framework == "paddle" else (0, 1)
    if class_name in VOCABULARY:
        return 0
    if class_name in COLUMN:
        return 0 if slot == "bias" else out if slot == "weight" else None
    if class_name in ROW:
        return REPLICATED if slot == "bias" else in_ if slot == "weight" else None
    return None


def _over_experts(dims: Dims) -> Dims:
    """Return dims of what belongs to an expert: its ranks of tensor parallelism are groups of their own."""
    return replace(dims, splits=tuple(replace(s, group="etp") if s.group == "tp" else s for s in dims.splits))
