"""Faults whose two sides compute in 16 bits, besides those that say so themselves."""

from __future__ import annotations

import dataclasses

from ..blind.spec import Model

NAMES = {
    "bfloat16": """
        s-mamba2/gate-late s-rwkv/no-bonus s-mixtral/top-1 s-qwen3-moe/window 
        s-vit/norm-last s-siglip/text-causal s-whisper/memory-is-itself s-unet/skip-order
        s-dit/scale-shift-order s-x-transformer/future-seen s-lora/alpha s-gemma3/window-everywhere
        s-swin/no-shift s-bert/positions-from-2 s-vae/decoder-layer-off s-hubert/projection-dropped
    """,
    "autocast": """
        s-mamba/gate-detached s-convnext/reflect s-gpt2/value-detached s-unet/time-not-activated
        s-gemma3/layer-twice s-byol/target-in-evaluation s-mixtral/heads-tiled s-t5/memory-detached
        s-lora/input-detached s-dit/condition-detached s-vit/query-detached s-bert/key-detached
    """,
    "float16": """
        s-siglip/tower-detached s-swin/bias-left-out s-gemma3/post-norm-missing
    """,
}
DTYPES = {name: dtype for dtype, names in NAMES.items() for name in names.split()}


def precise(model: Model) -> Model:
    """The model, its faults in the precision of this table."""
    faults = tuple(dataclasses.replace(f, dtype=DTYPES.get(f"{model.name}/{f.name}", f.dtype)) for f in model.faults)
    return dataclasses.replace(model, faults=faults)
