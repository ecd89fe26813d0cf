"""Which layouts are compared, and where each planted fault is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from benchmarks.ranks.cases import Fault

SIZES = {"num_layers": 2, "hidden_size": 32, "ffn_hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 2}
VOCABULARY, LENGTH, BATCH, STEPS = 64, 8, 4, 2
MAPPING = "megatron-core/qwen2"


@dataclass(frozen=True)
class Layout:
    """One training."""

    name: str = "one"
    model: str = "gpt"
    """``gpt``, or ``qwen2``, which is compared with that of transformers"""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    """experts lie over ranks of dp"""
    experts: int = 0
    sequence_parallel: bool = False
    micros: int = 1
    """micro-batches of each replica"""
    tied: bool = False
    """the head has the weight of the embedding"""
    fault: str = ""
    task: str = "tensor"

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp * self.dp

    def but(self, **changed: object) -> Layout:
        """Return another training."""
        return replace(self, **changed)  # type: ignore[arg-type]

    def as_json(self) -> dict[str, object]:
        """Return it for a worker."""
        return asdict(self)


LAYOUTS = {
    "tp2": Layout(tp=2), "tp2 sequence parallel": Layout(tp=2, sequence_parallel=True), "pp2": Layout(pp=2, micros=2),
    "pp2 tied": Layout(pp=2, micros=2, tied=True), "dp2": Layout(dp=2), "tp2 pp2": Layout(tp=2, pp=2, micros=2),
    "tp2 dp2 sequence parallel": Layout(tp=2, dp=2, sequence_parallel=True), "qwen2 tp2": Layout(model="qwen2", tp=2),
    "ep2 of 4 experts": Layout(dp=2, ep=2, experts=4),
    "qwen2 tp2 pp2 sequence parallel": Layout(model="qwen2", tp=2, pp=2, micros=2, sequence_parallel=True),
}  # fmt: skip
BETWEEN = (("tp2", "pp2"), ("tp2 sequence parallel", "tp2 pp2"))
"""layouts that are compared with each other"""
FAULTS = (
    Fault("missing-all-reduce", "RowParallelLinear without its all-reduce", "layers.1.mlp.linear_fc2",
          {"tp2": (0, 1), "tp2 pp2": (2, 3)}),
    Fault("doubled-bias", "bias added on each rank before the all-reduce", "layers.1.mlp.linear_fc2",
          {"tp2": (0, 1), "tp2 sequence parallel": (0, 1)}),
    Fault("norm-not-reduced", "gradients of a norm not added up under sequence parallelism", "layers.1.pre_mlp_layernorm",
          {"tp2 sequence parallel": (0, 1), "tp2 dp2 sequence parallel": (0, 1, 2, 3)}),
    Fault("order-of-experts", "the last rank has its experts in another order", "layers.1.mlp.experts", {"ep2 of 4 experts": (1,)}),
)  # fmt: skip


def whole_of(layout: Layout) -> Layout:
    """Return the training of one process that does what ranks do."""
    if layout.model == "qwen2":
        return Layout(name=f"{layout.task}-transformers", model="qwen2", task=layout.task)
    return Layout(
        name=f"one{'-tied' * layout.tied}{'-experts' * bool(layout.experts)}-{layout.task}",
        tied=layout.tied,
        experts=layout.experts,
        task=layout.task,
    )
