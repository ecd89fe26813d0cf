"""The layer mappings of the ports, as a user would write them: classes are sections, and most are written from the port's side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.localisation.models.ports.restructured_weights import (
    CNN_LIST,
    DECODER_NAMES,
    LLAMA_LAYER,
    OLMO_LAYER,
    PERCEPTRON_LIST,
    PHI3_LAYER,
    POINTS_LIST,
    SQUEEZE_LIST,
    STARCODER2_LAYER,
)

_QKV, _GATE_UP = ["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]
_PATCHES = {"reshape": True, "permute": [0, 2, 3, 1]}
"""a Linear on patches whose channels come last, for a convolution"""

RESTRUCTURED_MAPPINGS: dict[str, Mapping[str, Any]] = {
    "llama-fused": {"LlamaForCausalLM": DECODER_NAMES, "LlamaDecoderLayer": LLAMA_LAYER},
    "phi3-split": {"Phi3ForCausalLM": DECODER_NAMES, "Phi3DecoderLayer": PHI3_LAYER},
    "starcoder2-packed": {"Starcoder2ForCausalLM": DECODER_NAMES, "Starcoder2DecoderLayer": STARCODER2_LAYER},
    "olmo-packed": {"OlmoForCausalLM": DECODER_NAMES, "OlmoDecoderLayer": OLMO_LAYER},
    "cnn-sequence": {"ConvNet": CNN_LIST},
    "perceptron-stacked": {"Perceptron": PERCEPTRON_LIST},
    "squeeze-listed": {"SqueezeNet": SQUEEZE_LIST},
    "points-listed": {"PointNet": POINTS_LIST},
}

PORT_MAPPINGS: dict[str, Mapping[str, Any]] = {
    "megatron-qwen2": {
        "GPTModel": {
            "embedding.word_embeddings": "model.embed_tokens",
            "decoder.layers": "model.layers",
            "decoder.final_layernorm": "model.norm",
            "output_layer": "lm_head",
        },
        "TransformerLayer": {"self_attention": "self_attn", "pre_mlp_layernorm": "post_attention_layernorm"},
        "SelfAttention": {"linear_proj": "o_proj", "linear_qkv": {"to": _QKV, "split": {"groups": 2}}},
        "MLP": {"linear_fc1": _GATE_UP, "linear_fc2": "down_proj"},
    },
    "vllm-llama": {
        # what is not named keeps its name; layers and activations do not return what transformers' do
        "FlatLlama": {
            "model.layers.{i}.self_attn": "model.layers.{i}.self_attn",
            "model.layers.{i}.mlp": "model.layers.{i}.mlp",
            "model.layers.{i}.input_layernorm": "model.layers.{i}.input_layernorm",
            "model.layers.{i}.post_attention_layernorm": "model.layers.{i}.post_attention_layernorm",
        },
        "FlatAttention": {"qkv_proj": _QKV},
        "FlatMLP": {"gate_up_proj": _GATE_UP},
        "ignore": ["**/FlatLayer", "**/SiluAndMul", "**/Rotary"],
    },
    "meta-llama": {
        "MetaLlama": {
            "tok_embeddings": "model.embed_tokens",
            "layers": "model.layers",
            "norm": "model.norm",
            "output": "lm_head",
        },
        "MetaBlock": {
            "attention": "self_attn",
            "attention_norm": "input_layernorm",
            "feed_forward": "mlp",
            "ffn_norm": "post_attention_layernorm",
        },
        "Attention": {
            "wq": {"to": "q_proj", "rotary": {"heads": 6, "here": "interleaved"}},
            "wk": {"to": "k_proj", "rotary": {"heads": 2, "here": "interleaved"}},
            "wv": "v_proj",
            "wo": "o_proj",
        },
        "FeedForward": {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"},
    },
    "own-qwen3": {
        "OwnQwen3": {
            "embed": "model.embed_tokens",
            "rope": "model.rotary_emb",
            "blocks": "model.layers",
            "ln_f": "model.norm",
        },
        "OwnLayer": {
            "ln1": "input_layernorm",
            "attn": "self_attn",
            "ln2": "post_attention_layernorm",
            "up_gate": ["mlp.up_proj", "mlp.gate_proj"],
            "down": "mlp.down_proj",
        },
        "NormedAttention": {"wqkv": _QKV, "norm_q": "q_norm", "norm_k": "k_norm", "wo": "o_proj"},
    },
    "nano-gpt2": {
        # written from transformers' side: its Conv1Ds hold [in, out]
        "GPT2MLP": {"act": "gelu"},
    },
    "own-mixtral": {
        "OwnMixtral": {
            "words": "model.embed_tokens",
            "layers": "model.layers",
            "norm": "model.norm",
            "head": "lm_head",
        },
        "ExpertLayer": {
            "norm1": "input_layernorm",
            "attention": "self_attn",
            "norm2": "post_attention_layernorm",
            "moe": "mlp",
        },
        "PackedAttention": {"qkv_proj": _QKV},
        "Experts": {"router": "gate"},
        "StackedExperts": {
            # along the second axis, behind that of the experts
            "params": {"gate_up_proj": {"from": ["w1", "w3"], "split": {"axis": "in"}}, "w2": "down_proj"},
        },
    },
    "own-gemma2": {
        "OwnGemma2": {
            "rope": "model.rotary_emb",
            "layers": "model.layers",
            "norm": "model.norm",
            "params": {"embedder.weight": "model.embed_tokens.weight"},  # transformers' module scales what it returns
        },
        "PackedAttention": {"qkv_proj": _QKV},
    },
    "flat-bert": {
        "FlatBert": {
            "tokens": "bert.embeddings.word_embeddings",
            "positions": "bert.embeddings.position_embeddings",
            "segments": "bert.embeddings.token_type_embeddings",
            "norm": "bert.embeddings.LayerNorm",
            "layers": "bert.encoder.layer",
            "mlm_dense": "cls.predictions.transform.dense",
            "mlm_norm": "cls.predictions.transform.LayerNorm",
            "params": {"mlm_bias": "cls.predictions.bias"},
        },
        "FlatEncoderLayer": {
            "qkv": ["attention.self.query", "attention.self.key", "attention.self.value"],
            "out": "attention.output.dense",
            "norm1": "attention.output.LayerNorm",
            "ff1": "intermediate.dense",
            "ff2": "output.dense",
            "norm2": "output.LayerNorm",
        },
    },
    "own-vit": {
        "OwnViT": {
            "patch": "vit.embeddings.patch_embeddings",
            "blocks": "vit.layers",
            "norm": "vit.layernorm",
            "head": "classifier",
            "params": {"cls_token": "vit.embeddings.cls_token", "pos_embed": "vit.embeddings.position_embeddings"},
        },
        "PatchLinear": {
            "proj": "projection",
            "params": {"proj.weight": {"to": "projection.weight", **_PATCHES}},
        },
        "VitBlock": {
            "norm1": "layernorm_before",
            "attn": "attention",
            "norm2": "layernorm_after",
            "fc1": "mlp.fc1",
            "act": "mlp.activation_fn",
            "fc2": "mlp.fc2",
        },
        "VitAttention": {"qkv": ["q_proj", "k_proj", "v_proj"], "proj": "o_proj"},
    },
    "own-t5": {
        # the two stacks' layers are of one class, and the perceptron of a decoder's is the third of its parts, not the second
        "OwnT5": {
            "table": "shared",
            "enc": "encoder.block",
            "dec": "decoder.block",
            "enc_norm": "encoder.final_layer_norm",
            "dec_norm": "decoder.final_layer_norm",
            # transformers reads its tables inside the first layers
            "enc_positions.table": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
            "dec_positions.table": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        },
        "enc.*/T5Part": {
            "norm1": "layer.0.layer_norm",
            "attn": "layer.0.SelfAttention",
            "norm3": "layer.1.layer_norm",
            "wi": "layer.1.DenseReluDense.wi",
            "relu": "layer.1.DenseReluDense.act",
            "wo": "layer.1.DenseReluDense.wo",
        },
        "dec.*/T5Part": {
            "norm1": "layer.0.layer_norm",
            "attn": "layer.0.SelfAttention",
            "norm2": "layer.1.layer_norm",
            "cross": "layer.1.EncDecAttention",
            "norm3": "layer.2.layer_norm",
            "wi": "layer.2.DenseReluDense.wi",
            "relu": "layer.2.DenseReluDense.act",
            "wo": "layer.2.DenseReluDense.wo",
        },
        "PlainAttention": {"qkv": ["q", "k", "v"], "out": "o"},
        "CrossAttention": {"kv": ["k", "v"], "out": "o"},
    },
    "own-whisper": {
        "OwnWhisper": {
            "encoder": "model.encoder",
            # the decoder itself returns the logits, that of transformers ends before them
            "decoder.token_embedding": "model.decoder.embed_tokens",
            "decoder.blocks": "model.decoder.layers",
            "decoder.ln": "model.decoder.layer_norm",
            "params": {"decoder.positional_embedding": "model.decoder.embed_positions.weight"},
        },
        "AudioEncoder": {
            "blocks": "layers",
            "ln_post": "layer_norm",
            "params": {"positional_embedding": "embed_positions.weight"},
        },
        "ResidualAttentionBlock": {
            "attn": "self_attn",
            "attn_ln": "self_attn_layer_norm",
            "cross_attn": "encoder_attn",
            "cross_attn_ln": "encoder_attn_layer_norm",
            "mlp_ln": "final_layer_norm",
            "mlp.0": "fc1",
            "mlp.1": "activation_fn",
            "mlp.2": "fc2",
        },
        "MultiHeadAttention": {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"},
    },
    "own-mamba": {
        "OwnMamba": {
            "embed": "backbone.embeddings",
            "stack": "backbone.layers",
            "ln_f": "backbone.norm_f",
            "head": "lm_head",
        },
        "MambaLayer": {"ln": "norm", "ssm": "mixer"},
        "Selective": {
            "in_proj": {"from": ["in_x", "in_z"]},
            "conv": "conv1d",
            "to_steps": "x_proj",
            "steps": "dt_proj",
            "out": "out_proj",
            "params": {"log_decay": "A_log", "skip": "D"},
        },
    },
    "own-convnext": {
        "OwnConvNext": {
            "stem_norm": "convnext.embeddings.layernorm",
            "down_norm": "convnext.encoder.stages.1.downsampling_layer.0",
            "stage1.{i}": "convnext.encoder.stages.0.layers.{i}",
            "stage2.{i}": "convnext.encoder.stages.1.layers.{i}",
            "norm": "convnext.layernorm",
            "stem": "convnext.embeddings.patch_embeddings",
            "down": "convnext.encoder.stages.1.downsampling_layer.1",
            "params": {
                "stem.weight": {"to": "convnext.embeddings.patch_embeddings.weight", **_PATCHES},
                "down.weight": {"to": "convnext.encoder.stages.1.downsampling_layer.1.weight", **_PATCHES},
            },
        },
        "NextBlock": {"norm": "layernorm", "params": {"gamma": "layer_scale_parameter"}},
    },
}
