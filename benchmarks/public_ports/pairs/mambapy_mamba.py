"""mambapy's Mamba against transformers: loose A_log and D, a Linear of which only the weight is used."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import next_tokens

HIDDEN, STATE, LAYERS, VOCABULARY, LENGTH = 32, 4, 3, 64, 16
A, B = "backbone.layers", "mamba.layers"


def _transformers() -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(
        MambaConfig(hidden_size=HIDDEN, num_hidden_layers=LAYERS, state_size=STATE, vocab_size=VOCABULARY, layer_norm_epsilon=1e-5, tie_word_embeddings=False)
    )  # fmt: skip


def _mambapy() -> nn.Module:
    from mambapy.mamba import Mamba, MambaConfig, RMSNorm

    class LM(nn.Module):
        """mambapy.lm.LM line by line: its file imports mamba_ssm, which needs CUDA."""

        def __init__(self, config: MambaConfig) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, config.d_model, padding_idx=0)
            self.mamba = Mamba(config)
            self.norm_f = RMSNorm(config.d_model, config.rms_norm_eps, config.mup)
            self.lm_head = nn.Linear(config.d_model, VOCABULARY, bias=False)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.lm_head(self.norm_f(self.mamba(self.embedding(tokens))))

    return LM(MambaConfig(d_model=HIDDEN, n_layers=LAYERS, d_state=STATE))


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    return {"ids": torch.randint(1, VOCABULARY, (3, LENGTH), generator=generator)}


def _scan(change: Any) -> plant.Plant:
    """Change what a mixer's scan is given: x, delta, A, B, C, D."""
    return plant.calls(f"{B}.1.mixer", "selective_scan", lambda scan, *args: scan(*change(*args)))


def _looking_ahead(forward: Any, x: Tensor) -> Tensor:
    """Let the causal convolution see the next token."""
    return forward(x)[..., 1:]


_MIXER = (f"{A}.1.mixer",)
PAIR = Pair(
    name="mambapy_mamba",
    a=Side(("transformers 5.23.0",), _transformers, lambda model, batch: next_tokens(model(batch["ids"], use_cache=False).logits, batch["ids"])),
    b=Side(("mambapy 1.2.0",), _mambapy, lambda model, batch: next_tokens(model(batch["ids"]), batch["ids"])),
    batch=_batch,
    faults=(
        Fault("norm_eps", plant.attribute(f"{B}.1.norm", eps=1e-6), (f"{A}.1.norm",), ("forward",)),
        Fault("final_norm_eps", plant.attribute("norm_f", eps=1e-3), ("backbone.norm_f",), ("forward",)),
        Fault("decay_positive", plant.weight(f"{B}.2.mixer", lambda x: -x, "A_log"), (f"{A}.2.mixer",), ("init",)),
        Fault("skip_lost", plant.weight(f"{B}.1.mixer", lambda x: 0 * x, "D"), _MIXER, ("init",)),
        Fault("step_scaled", _scan(lambda x, delta, *rest: (x, delta * 1.1, *rest)), _MIXER, ("forward",)),
        Fault("b_and_c", _scan(lambda x, delta, a, b, c, d: (x, delta, a, c, b, d)), _MIXER, ("forward",)),
        Fault("scan_detached", _scan(lambda x, delta, *rest: (x, delta.detach(), *rest)), (f"{A}.1.mixer.dt_proj", f"{A}.1.mixer"), ("backward", "gradient")),
        Fault("gate_order", plant.output(f"{B}.0.mixer.in_proj", lambda x: x.roll(x.shape[-1] // 2, -1)), (f"{A}.0.mixer.in_proj",), ("forward",)),
        Fault("not_causal", plant.forward(f"{B}.1.mixer.conv1d", _looking_ahead), (f"{A}.1.mixer.conv1d", *_MIXER), ("forward",)),
        Fault("no_conv_bias", plant.weight(f"{B}.0.mixer.conv1d", lambda x: 0 * x, "bias"), (f"{A}.0.mixer.conv1d",), ("init",)),
        Fault("step_bias", plant.weight(f"{B}.2.mixer.dt_proj", lambda x: x + 1, "bias"), (f"{A}.2.mixer.dt_proj",), ("init",)),
        Fault("wrong_layer", plant.weights_of(f"{B}.2.mixer.x_proj", f"{B}.1.mixer.x_proj"), (f"{A}.2.mixer.x_proj",), ("init",)),
        Fault("residual", plant.forward(f"{B}.1", lambda forward, x: forward(x) - x), (f"{A}.1",), ("forward",)),
        Fault("dropout", plant.output(f"{B}.1.mixer", lambda x: F.dropout(x, 0.1)), _MIXER, ("forward",)),
        Fault("loss_unshifted", plant.loss_by(lambda old, model, batch: F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["ids"].flatten())), ("",), ("loss",)),
        Fault("decay_of_a", plant.optimizer("*.A_log", weight_decay=0.0), (f"{A}.0.mixer", f"{A}.*.mixer"), ("update",)),
        Fault("learning_rate", plant.optimizer(lr=1.02e-3), ("",), ("update",)),
    ),
)  # fmt: skip
