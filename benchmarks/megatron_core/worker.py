"""`python -m benchmarks.megatron_core.worker WEIGHTS FOLDER TASK`, in megatron-core's environment: train and record, right and with each fault."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import probe
from benchmarks.megatron_core.faults import FAULTS, Training

CLEAN = "clean"
QWEN2 = {
    "vocab_size": 160, "num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "num_query_groups": 2,
}  # fmt: skip


def main() -> None:
    """Record each of the trainings into a file of its own, and say which as it is done."""
    weights, folder, task, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    kept = torch.load(weights)
    _start()
    for number, name in enumerate([CLEAN, *FAULTS]):
        if names and name not in names:
            continue
        training = Training(qwen2(**kept["config"]))
        missing = training.model.load_state_dict(kept["weights"], strict=False).missing_keys
        assert not [each for each in missing if "_extra_state" not in each], missing
        if name != CLEAN:
            FAULTS[name].plant(training)
        _record(Path(folder) / f"{number}.h5", training, kept["tokens"], task)


def on_a_cpu() -> None:
    """Let what asks for CUDA get the CPU; no random numbers are drawn."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.Tensor.cuda = lambda tensor, *more, **named: tensor  # type: ignore[method-assign]
    zeros = torch.zeros
    torch.zeros = lambda *sizes, device=None, **more: zeros(
        *sizes, device="cpu" if device == "cuda" else device, **more
    )
    CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()


def _start() -> None:
    """Set up a world of one."""
    from megatron.core import parallel_state

    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=os.environ.get("MASTER_PORT", "29517"))
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    on_a_cpu()


def qwen2(
    vocab_size: int,
    parallel: Mapping[str, object] | None = None,
    part: Mapping[str, object] | None = None,
    **sizes: int,
) -> Any:
    """Return a GPTModel that is a Qwen2.

    Parameters
    ----------
    parallel
        of the configuration: how it is divided
    part
        what of it this stage has, and returns
    """
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    config = TransformerConfig(
        normalization="RMSNorm", layernorm_epsilon=1e-6, add_bias_linear=False, add_qkv_bias=True, gated_linear_unit=True,
        activation_func=F.silu, hidden_dropout=0, attention_dropout=0, use_cpu_initialization=True,
        bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False, **(parallel or {}), **sizes,
    )  # fmt: skip
    return GPTModel(
        config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=vocab_size, max_sequence_length=64,
        position_embedding_type="rope", rotary_base=10_000, **(part or {"parallel_output": False}),
    )  # fmt: skip


def _record(path: Path, training: Training, tokens: torch.Tensor, task: str) -> None:
    length = tokens.size(1)
    positions, mask = torch.arange(length).expand_as(tokens), torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    model = training.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    with probe.capture(model, path, task=task):
        for _ in range(2):
            logits = model(tokens, positions, mask)
            kept = logits[:, : length - training.shift]
            loss = F.cross_entropy(kept.flatten(0, 1), tokens[:, training.shift :].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)


if __name__ == "__main__":
    main()
