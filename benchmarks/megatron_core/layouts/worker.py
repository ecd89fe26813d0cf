"""`python -m benchmarks.megatron_core.layouts.worker FOLDER < layouts.json`, in megatron-core's environment: train and record each, one process a rank."""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probe
from benchmarks.megatron_core.layouts.cases import BATCH, LENGTH, SIZES, STEPS, VOCABULARY, Layout
from benchmarks.megatron_core.worker import QWEN2, on_a_cpu, qwen2
from benchmarks.ranks.forking import train_on_ranks


def main() -> None:
    """Train what stdin says, one after the other; the first is one process, and its weights are those of all."""
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import megatron.core.models.gpt  # noqa: F401  once, before ranks are forked

    for entry in json.load(sys.stdin):
        layout = Layout(**entry)
        train_on_ranks(layout.name, layout.world, functools.partial(_run, layout, folder))


def _run(layout: Layout, folder: Path, rank: int, store: Path) -> None:
    from megatron.core import parallel_state

    on_a_cpu()
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=layout.world)
    parallel_state.initialize_model_parallel(layout.tp, layout.pp, expert_model_parallel_size=layout.ep)
    model = _model(layout)
    weights = folder / f"{layout.model}{'-experts' * bool(layout.experts)}.pt"
    if layout.world == 1 and not weights.exists():
        with torch.no_grad():
            for parameter in model.parameters():  # fresh biases are all 0, norm weights all 1
                if parameter.dim() == 1:
                    parameter += 0.05 * torch.randn_like(parameter)
        torch.save({name: each for name, each in model.state_dict().items() if each is not None}, weights)
    _load(model, torch.load(weights), layout)
    if layout.fault:
        _plant(layout.fault, model)
    _train(layout, model, folder)


def _model(layout: Layout) -> Any:
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.moe import moe_utils

    torch.manual_seed(1)
    parallel = {
        "tensor_model_parallel_size": layout.tp, "pipeline_model_parallel_size": layout.pp,
        "sequence_parallel": layout.sequence_parallel, "pipeline_dtype": torch.float32,
    }  # fmt: skip
    part = {
        "pre_process": parallel_state.is_pipeline_first_stage(), "post_process": parallel_state.is_pipeline_last_stage(),
        "share_embeddings_and_output_weights": layout.tied,
    }  # fmt: skip
    if layout.model == "qwen2":
        _use_norm(torch.nn.RMSNorm)
        return qwen2(**QWEN2, parallel=parallel, part=part)
    _use_norm(torch.nn.LayerNorm)
    if layout.experts:
        moe_utils.te_general_gemm = None  # 0.16.1 looks for it without TransformerEngine too
        parallel |= {
            "num_moe_experts": layout.experts, "expert_model_parallel_size": layout.ep, "moe_router_topk": 2,
            "moe_token_dispatcher_type": "allgather", "moe_ffn_hidden_size": SIZES["ffn_hidden_size"],
            "moe_router_load_balancing_type": "none",
        }  # fmt: skip
    config = TransformerConfig(
        normalization="LayerNorm", add_bias_linear=not layout.experts, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        hidden_dropout=0, attention_dropout=0, use_cpu_initialization=True, bias_activation_fusion=False,
        masked_softmax_fusion=False, gradient_accumulation_fusion=False, bias_dropout_fusion=False, **parallel, **SIZES,
    )  # fmt: skip
    return GPTModel(
        config, get_gpt_layer_local_spec(layout.experts or None, normalization="LayerNorm"), vocab_size=VOCABULARY, max_sequence_length=LENGTH,
        position_embedding_type="rope", **part,
    )  # fmt: skip


def _use_norm(kind: Any) -> None:
    """Let norms be PyTorch's that say of their parameters what Megatron's own say, which need apex or TransformerEngine."""
    from megatron.core.models import backends
    from megatron.core.transformer import transformer_block

    class Norm(kind):  # type: ignore[misc]
        def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **more: object) -> None:
            super().__init__(hidden_size, eps)
            for parameter in self.parameters():
                parameter.sequence_parallel = config.sequence_parallel

    Norm.__name__ = kind.__name__
    backends.LNImpl = backends.WrappedTorchNorm = transformer_block.LayerNormImpl = Norm


def _load(model: Any, whole: dict[str, Tensor], layout: Layout) -> None:
    """Give a rank its parts of the weights of one process: layers of its stage, and of each weight those of its place."""
    from megatron.core import parallel_state

    place, stage = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank()
    offset = stage * len(model.decoder.layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parts = name.split(".")
            if "local_experts" in parts:
                at = parts.index("local_experts") + 1
                parts[at] = str(
                    int(parts[at]) + parallel_state.get_expert_model_parallel_rank() * layout.experts // layout.ep
                )
            if parts[:2] == ["decoder", "layers"]:
                parts[2] = str(int(parts[2]) + offset)
            is_tied = layout.tied and parts == ["output_layer", "weight"]
            full = whole["embedding.word_embeddings.weight" if is_tied else ".".join(parts)]
            if getattr(parameter, "tensor_model_parallel", False):
                axis, groups = parameter.partition_dim, 2 if "linear_fc1" in name else 1
                full = torch.cat([part.chunk(layout.tp, axis)[place] for part in full.chunk(groups, axis)], axis)
            parameter.copy_(full)


def _plant(fault: str, model: Any) -> None:
    """Plant a mistake in the last layer, on the ranks that have it."""
    from megatron.core import parallel_state

    layer = model.decoder.layers[-1]
    if not model.post_process:
        return
    if fault == "missing-all-reduce":
        layer.mlp.linear_fc2.explicit_expert_comm = True  # what a layer of experts has, whose caller adds up
    elif fault == "doubled-bias":
        layer.mlp.linear_fc2._forward_impl = partial(
            _with_bias, layer.mlp.linear_fc2, layer.mlp.linear_fc2._forward_impl
        )
        layer.mlp.linear_fc2.register_forward_hook(lambda module, given, made: (made[0], None))
    elif fault == "norm-not-reduced":
        for parameter in layer.pre_mlp_layernorm.parameters():
            parameter.sequence_parallel = False
    elif fault == "order-of-experts" and parallel_state.get_expert_model_parallel_rank():
        one, other = (each.state_dict() for each in layer.mlp.experts.local_experts)
        kept = {name: each.clone() for name, each in one.items() if each is not None}
        for name, each in kept.items():
            one[name].copy_(other[name])
            other[name].copy_(each)


def _with_bias(module: Any, forward: Callable[..., Tensor], *given: Any, bias: object = None, **more: Any) -> Tensor:
    return forward(*given, bias=module.bias, **more)


def _train(layout: Layout, model: Any, folder: Path) -> None:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    ddp = DistributedDataParallel(model.config, DistributedDataParallelConfig(overlap_grad_reduce=False), model)
    model.config.finalize_model_grads_func = finalize_model_grads
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with probe.capture(model, folder / f"{layout.name}.h5", task=layout.task, quiet=True, overwrite=True):
        for step in range(STEPS):
            batches = iter(_batches(layout, step))
            ddp.zero_grad_buffer()
            said = get_forward_backward_func()(
                forward_step_func=_forward, data_iterator=batches, model=[ddp], num_microbatches=layout.micros,
                seq_length=LENGTH, micro_batch_size=BATCH // layout.dp // layout.micros, forward_only=False,
            )  # fmt: skip
            for parameter in model.parameters():
                parameter.grad = parameter.main_grad
            optimizer.step()
            optimizer.zero_grad()
            probe.step(**({"loss": sum(each["loss"] for each in said) / len(said)} if said else {}))


def tokens_of(vocabulary: int, step: int) -> Tensor:
    """Return the batch of a step, and one token more of each sequence."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(vocabulary, (BATCH, LENGTH + 1), generator=generator)


def _batches(layout: Layout, step: int) -> list[Tensor]:
    from megatron.core import parallel_state

    tokens = tokens_of(QWEN2["vocab_size"] if layout.model == "qwen2" else VOCABULARY, step)
    own = tokens.chunk(layout.dp)[parallel_state.get_data_parallel_rank()]
    return list(own.chunk(layout.micros))


def _forward(batches: Any, model: Any) -> Any:
    tokens = next(batches)
    positions = torch.arange(LENGTH).expand(len(tokens), LENGTH)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    losses = model(tokens[:, :-1], positions, mask, labels=tokens[:, 1:].contiguous())
    return losses, _loss


def _loss(losses: Tensor) -> tuple[Tensor, dict[str, float]]:
    loss = losses.mean()
    return loss, {"loss": float(loss.detach())}


if __name__ == "__main__":
    main()
