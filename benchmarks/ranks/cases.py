"""Which layouts are compared with which, and where each planted fault is."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.ranks.spec import Spec

ONE = Spec()
LAYOUTS = {
    "tp2": ONE.but(tp=2), "tp2 sequence parallel": ONE.but(tp=2, sequence_parallel=True), "tp2 gated": ONE.but(tp=2, gated=True),
    "pp2": ONE.but(pp=2, micros=2), "pp2 tied": ONE.but(pp=2, micros=2, tied=True), "dp2": ONE.but(dp=2),
    "dp2 strided": ONE.but(dp=2, strided=True), "dp2 accumulating": ONE.but(dp=2, micros=2), "ddp2": ONE.but(dp=2, wrapper="ddp"),
    "fsdp2": ONE.but(dp=2, wrapper="fsdp2"), "cp2 zigzag": ONE.but(cp=2), "tp2 dp2": ONE.but(tp=2, dp=2),
    "tp2 pp2": ONE.but(tp=2, pp=2, micros=2), "tp2 pp2 tied": ONE.but(tp=2, pp=2, micros=2, tied=True),
    "tp2 dp2 sequence parallel": ONE.but(tp=2, dp=2, sequence_parallel=True), "tp2 cp2 zigzag": ONE.but(tp=2, cp=2),
    "ep2 of 4 experts": ONE.but(dp=2, ep=2, experts=4), "ep2 pp2 of 4 experts": ONE.but(dp=2, ep=2, pp=2, micros=2, experts=4),
}  # fmt: skip
"""by name; the plain training has one process, and one batch of 4 samples a step"""
BETWEEN = (
    ("tp2", "pp2"), ("tp2", "dp2"), ("pp2", "dp2"), ("tp2 sequence parallel", "tp2 pp2"), ("ddp2", "tp2 dp2"), ("fsdp2", "tp2"),
)  # fmt: skip
"""layouts that are compared with each other"""


def whole_of(spec: Spec) -> Spec:
    """Return the training of one process that does what ranks do."""
    return Spec(experts=spec.experts, gated=spec.gated, tied=spec.tied, task=spec.task)


@dataclass(frozen=True)
class Fault:
    """A mistake of parallel code, and where it is to be named."""

    name: str
    what: str
    path: str
    """a part of the module's path; empty for the model as a whole"""
    layouts: dict[str, tuple[int, ...]]
    """in which it is planted, and the ranks that are to be named"""


FAULTS = (
    Fault("missing-all-reduce", "RowParallelLinear without its all-reduce", "mlp.linear_fc2",
          {"tp2": (0, 1), "tp2 dp2": (0, 1)}),
    Fault("doubled-bias", "bias added on each rank before the all-reduce", "mlp.linear_fc2",
          {"tp2": (0, 1), "tp2 sequence parallel": (0, 1)}),
    Fault("order-of-qkv", "q, k and v cut one after the other in the place of head by head", "self_attention.linear_qkv",
          {"tp2": (0, 1), "tp2 pp2": (0, 1)}),
    Fault("norms-not-reduced", "gradients of norms not added up under sequence parallelism", "layernorm",
          {"tp2 sequence parallel": (0, 1), "tp2 dp2 sequence parallel": (0, 1, 2, 3)}),
    Fault("replica-with-other-seed", "one replica begins with another norm", "input_layernorm", {"dp2": (1,), "tp2 dp2": (3,)}),
    Fault("loss-over-wrong-group", "loss divided by the ranks of another group too", "", {"tp2": (0, 1), "tp2 dp2": (0, 1, 2, 3)}),
    Fault("order-of-experts", "the last rank has its experts in another order", "experts",
          {"ep2 of 4 experts": (1,), "ep2 pp2 of 4 experts": (1,)}),
    Fault("layer-offset", "the second stage builds the layers of the first", "decoder.layers.1", {"pp2": (1,), "tp2 pp2": (2, 3)}),
    Fault("zigzag-forgotten", "positions in order though tokens are zigzag", "embedding",
          {"cp2 zigzag": (0, 1), "tp2 cp2 zigzag": (0, 1, 2, 3)}),
    Fault("scaled-by-world-size", "gradients added up and not averaged", "", {"dp2": (0, 1), "tp2 dp2": (0, 1, 2, 3)}),
    Fault("tied-not-reduced", "gradient of the tied embedding not added up over the first and last stage", "embedding.word_embeddings",
          {"pp2 tied": (0, 1), "tp2 pp2 tied": (0, 1, 2, 3)}),
    Fault("other-order-of-samples", "the last rank takes its samples from another order", "", {"dp2": (1,), "tp2 dp2": (2, 3)}),
    Fault("lr-not-scaled", "another learning rate on all ranks", "", {"dp2": (0, 1), "ddp2": (0, 1)}),
    Fault("other-checkpoint", "one rank loads other weights", "embedding.word_embeddings", {"tp2": (1,), "tp2 dp2": (1, 3)}),
)  # fmt: skip
