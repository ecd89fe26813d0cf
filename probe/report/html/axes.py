"""What the axes of a tensor are, where its shape tells: batch, token, head, channel; out and in of a weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from probe.answer.result import SlotResult
from probe.records import Role

_OF_CONFIG = {
    "head": ("num_attention_heads", "n_heads", "num_heads", "n_head", "num_key_value_heads", "num_query_groups",
             "multi_query_group_num", "kv_heads", "n_kv_heads", "num_kv_heads"),
    "channel": ("hidden_size", "d_model", "n_embd", "intermediate_size", "ffn_hidden_size", "head_dim", "kv_channels"),
    "word": ("vocab_size", "padded_vocab_size"),
}  # fmt: skip
_OF_WEIGHT = ("out", "in", "kernel row", "kernel column")
_WEIGHTS = frozenset({Role.PARAM, Role.PARAM_GRAD, Role.DELTA, Role.STATE})


@dataclass(frozen=True, slots=True)
class Axes:
    """What is known of sizes."""

    batch: int = 0
    tokens: int = 0
    """both 0 where the model was not given integers of two axes"""
    others: Mapping[int, str] = field(default_factory=dict)
    """heads, channels and words by their number, where one of them alone has it"""

    @classmethod
    def of(cls, slots: Iterable[SlotResult], config: Mapping[str, object]) -> Axes:
        """Return what slots in causal order and the recorded ``model_config`` of A tell."""
        given = (slot for slot in slots if slot.role is Role.INPUT and slot.dtype_a.startswith("int"))
        batch, tokens = next((slot.shape_a for slot in given if len(slot.shape_a) == 2), (0, 0))
        found: dict[int, set[str]] = {}
        for name, keys in _OF_CONFIG.items():
            for size in map(config.get, keys):
                if isinstance(size, int) and size > 1:
                    found.setdefault(size, set()).add(name)
        return cls(batch, tokens, {size: next(iter(names)) for size, names in found.items() if len(names) == 1})

    def names(self, slot: SlotResult, order: Sequence[int] = ()) -> list[str]:
        """Return what each axis of A's tensor is, empty where that is not known.

        Parameters
        ----------
        slot
            the pair of tensors
        order
            of a parameter, A's stored axes in the order [out, in, …]
        """
        shape = slot.shape_a
        if slot.role in _WEIGHTS:
            return _of_weight(slot, order)
        first = self._first(shape)
        rest = [self.others.get(size, "token" if size == self.tokens else "") for size in shape[len(first) :]]
        if not first:  # so few heads may be anything
            rest = [name if name != "head" else "" for name in rest]
        elif rest and not rest[-1]:
            rest[-1] = "channel"
        return [*first, *rest]

    def _first(self, shape: tuple[int, ...]) -> list[str]:
        """Return what the first axes are: [batch, token], [token, batch], or both in one."""
        batch, tokens = self.batch, self.tokens
        if not batch or not shape:
            return []
        if shape[:2] == (batch, tokens):
            return ["batch", "token"]
        if shape[:2] == (tokens, batch):
            return ["token", "batch"]
        return ["token"] if shape[0] == batch * tokens else ["batch"] if shape[0] == batch and len(shape) == 4 else []


def _of_weight(slot: SlotResult, order: Sequence[int]) -> list[str]:
    names = [""] * len(slot.shape_a)
    if slot.slot_a.partition(".")[0] == "weight" and len(names) > 1:
        known = ("word", "channel") if "Embedding" in slot.class_a else _OF_WEIGHT
        for stored, name in zip(order or range(len(names)), known, strict=False):
            names[stored] = name
    return names
