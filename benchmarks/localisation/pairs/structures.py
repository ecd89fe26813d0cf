"""Pairs whose B has another structure and a fault, of any phase."""

from __future__ import annotations

from benchmarks.localisation.pairs.making import BF16, Table, faulty

FORWARD_STRUCTURES: Table = {
    "held-out-4": (
        faulty("olmo", "first_part", "blocks.1.down", answer="model.layers.1.mlp.down_proj", port="olmo-packed"),
        faulty(
            "olmo",
            "columns_exchanged",
            "blocks.0.attention.proj",
            answer="model.layers.0.self_attn.o_proj",
            port="olmo-packed",
        ),
        faulty(
            "olmo",
            "eps",
            "blocks.2.norm2",
            size=1e-3,
            answer="model.layers.2.post_attention_layernorm",
            port="olmo-packed",
        ),
        faulty("points", "half_batches", "parts.1", answer="bn1", port="points-listed"),
        faulty("points", "other_norm", "parts.9", answer="norm", port="points-listed"),
    ),
}
"""faults up to the forward pass, which that set has apart"""

STRUCTURES: Table = {
    "tuned": (
        faulty(
            "llama",
            "eps",
            "blocks.1.norm2",
            size=1e-4,
            port="llama-fused",
            answer="model.layers.1.post_attention_layernorm",
        ),
        faulty(
            "llama", "scaled", "blocks.2.attention", size=1e-3, port="llama-fused", answer="model.layers.2.self_attn"
        ),
        faulty("cnn", "pool_padding", "features.7", port="cnn-sequence", answer="pool2"),
        faulty("cnn", "weight", "features.4", size=1e-2, port="cnn-sequence", answer="conv2"),
    ),
    "once-held-out": (
        faulty("llama", "rows", "blocks.0.down", port="llama-fused", answer="model.layers.0.mlp.down_proj"),
        faulty("llama", "lr", port="llama-fused", size=0.2),
        faulty("cnn", "gradient", "features.4", size=0.1, port="cnn-sequence", answer="conv2"),
    ),
    "held-out-2": (
        faulty("phi3", "eps_outside", "blocks.1.norm1", port="phi3-split", answer="model.layers.1.input_layernorm"),
        faulty("phi3", "scaled", "blocks.0.attention", size=1e-4, port="phi3-split", answer="model.layers.0.self_attn"),
        faulty(
            "phi3", "transposed", "blocks.2.attention.out", port="phi3-split", answer="model.layers.2.self_attn.o_proj"
        ),
        faulty(
            "phi3", "gradient", "blocks.1.down", size=1e-2, port="phi3-split", answer="model.layers.1.mlp.down_proj"
        ),
        faulty("phi3", "smoothing", size=0.01, port="phi3-split"),
        faulty("phi3", "scaled", "final_norm", size=0.2, port="phi3-split", answer="model.norm", **BF16),
        faulty("perceptron", "momentum", "layers.4", size=0.9, port="perceptron-stacked", answer="bn2", steps=2),
        faulty("perceptron", "relu", "layers.5", port="perceptron-stacked", answer="act2"),
        faulty("perceptron", "frozen", "layers.6", port="perceptron-stacked", answer="fc3"),
        faulty("perceptron", "lr", size=0.1, port="perceptron-stacked"),
    ),
    "held-out-3": (
        faulty(
            "starcoder2",
            "eps_outside",
            "blocks.1.norm1",
            answer="model.layers.1.input_layernorm",
            port="starcoder2-packed",
        ),
        faulty(
            "starcoder2",
            "scaled",
            "blocks.0.attention",
            size=1e-3,
            answer="model.layers.0.self_attn",
            port="starcoder2-packed",
        ),
        faulty(
            "starcoder2",
            "transposed",
            "blocks.2.attention.dense",
            answer="model.layers.2.self_attn.o_proj",
            port="starcoder2-packed",
        ),
        faulty("starcoder2", "gelu", "blocks.1.act", answer="model.layers.1.mlp.act", port="starcoder2-packed"),
        faulty("starcoder2", "no_bias", "blocks.0.down", answer="model.layers.0.mlp.c_proj", port="starcoder2-packed"),
        faulty(
            "starcoder2",
            "gradient",
            "blocks.2.up",
            size=0.01,
            answer="model.layers.2.mlp.c_fc",
            port="starcoder2-packed",
        ),
        faulty("starcoder2", "z_loss", size=1e-3, port="starcoder2-packed"),
        faulty(
            "starcoder2",
            "norm_partial",
            "blocks.1.norm2",
            answer="model.layers.1.post_attention_layernorm",
            port="starcoder2-packed",
        ),
        faulty("starcoder2", "scaled", "final_norm", size=0.2, answer="model.norm", port="starcoder2-packed", **BF16),
        faulty("squeeze", "flatten_order", "parts.8", answer="head", port="squeeze-listed"),
        faulty("squeeze", "momentum", "parts.1", size=0.9, answer="bn", steps=2, port="squeeze-listed"),
        faulty("squeeze", "relu", "parts.2", answer="act", port="squeeze-listed"),
        faulty("squeeze", "pool_padding", "parts.6", answer="pool", port="squeeze-listed"),
        faulty("squeeze", "frozen", "parts.4.excite.expand", answer="block2.excite.expand", port="squeeze-listed"),
        faulty("squeeze", "step_late", port="squeeze-listed"),
    ),
    "held-out-4": (
        faulty("olmo", "half_of_batch", "blocks.2.down", answer="model.layers.2.mlp.down_proj", port="olmo-packed"),
        faulty("olmo", "narrow_logits", port="olmo-packed"),
        faulty("points", "mean_passed", "parts.6", answer="pool", port="points-listed"),
        faulty("points", "half_corrected", port="points-listed"),
    ),
}
