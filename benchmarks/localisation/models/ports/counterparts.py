"""Which module of transformers each module of a port is, and how its weights are made of that one's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import torch
from torch import Tensor

Combine = Callable[[list[Tensor]], Tensor]
Source = str | tuple[Combine, str | Sequence[str]]
"""a module of transformers, or several and what packs their weights"""
_INDICES = range(8)
"""numbers that ``{i}`` and ``{j}`` may have"""


def concatenated(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts)


def transposed(parts: list[Tensor]) -> Tensor:
    """Turn a Conv1D's weight; its bias stays."""
    return parts[0].t()


def grouped(groups: int) -> Combine:
    """Return what packs, group by group, queries, keys, values."""
    return lambda parts: torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)


def interleaved(heads: int) -> Combine:
    """Return what puts the rows of the halves of each head beside each other."""
    return lambda parts: parts[0].unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def expert_half(number: int) -> Combine:
    """Return what takes one half of the rows of every expert."""
    return lambda parts: parts[0].chunk(2, 1)[number]


def row_half(number: int) -> Combine:
    return lambda parts: parts[0].chunk(2)[number]


def channels_last_patch_weight(parts: list[Tensor]) -> Tensor:
    """Turn a convolution's kernel into the weight of a Linear on patches whose channels come last."""
    return parts[0].permute(0, 2, 3, 1).flatten(1) if parts[0].dim() == 4 else parts[0]


_LAYER = "model.layers.{i}"
_QKV = tuple(f"{_LAYER}.self_attn.{part}_proj" for part in "qkv")
_GATE_UP = tuple(f"{_LAYER}.mlp.{part}_proj" for part in ("gate", "up"))
_BERT, _VIT = "bert.encoder.layer.{i}", "vit.layers.{i}"

_DECODERS: dict[str, dict[str, Source]] = {
    "megatron-qwen2": {
        "embedding.word_embeddings": "model.embed_tokens",
        "decoder.layers.{i}": _LAYER,
        "decoder.layers.{i}.input_layernorm": f"{_LAYER}.input_layernorm",
        "decoder.layers.{i}.self_attention": f"{_LAYER}.self_attn",
        "decoder.layers.{i}.self_attention.linear_qkv": (grouped(2), _QKV),
        "decoder.layers.{i}.self_attention.linear_proj": f"{_LAYER}.self_attn.o_proj",
        "decoder.layers.{i}.pre_mlp_layernorm": f"{_LAYER}.post_attention_layernorm",
        "decoder.layers.{i}.mlp": f"{_LAYER}.mlp",
        "decoder.layers.{i}.mlp.linear_fc1": (concatenated, _GATE_UP),
        "decoder.layers.{i}.mlp.linear_fc2": f"{_LAYER}.mlp.down_proj",
        "decoder.final_layernorm": "model.norm",
        "output_layer": "lm_head",
    },
    "vllm-llama": {
        "model": "model",
        "model.embed_tokens": "model.embed_tokens",
        "model.layers.{i}": _LAYER,
        "model.layers.{i}.input_layernorm": f"{_LAYER}.input_layernorm",
        "model.layers.{i}.self_attn": f"{_LAYER}.self_attn",
        "model.layers.{i}.self_attn.qkv_proj": (concatenated, _QKV),
        "model.layers.{i}.self_attn.o_proj": f"{_LAYER}.self_attn.o_proj",
        "model.layers.{i}.post_attention_layernorm": f"{_LAYER}.post_attention_layernorm",
        "model.layers.{i}.mlp": f"{_LAYER}.mlp",
        "model.layers.{i}.mlp.gate_up_proj": (concatenated, _GATE_UP),
        "model.layers.{i}.mlp.down_proj": f"{_LAYER}.mlp.down_proj",
        "model.norm": "model.norm",
        "lm_head": "lm_head",
    },
    "meta-llama": {
        "tok_embeddings": "model.embed_tokens",
        "layers.{i}": _LAYER,
        "layers.{i}.attention_norm": f"{_LAYER}.input_layernorm",
        "layers.{i}.attention": f"{_LAYER}.self_attn",
        "layers.{i}.attention.wq": (interleaved(6), f"{_LAYER}.self_attn.q_proj"),
        "layers.{i}.attention.wk": (interleaved(2), f"{_LAYER}.self_attn.k_proj"),
        "layers.{i}.attention.wv": f"{_LAYER}.self_attn.v_proj",
        "layers.{i}.attention.wo": f"{_LAYER}.self_attn.o_proj",
        "layers.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
        "layers.{i}.feed_forward": f"{_LAYER}.mlp",
        "layers.{i}.feed_forward.w1": f"{_LAYER}.mlp.gate_proj",
        "layers.{i}.feed_forward.w2": f"{_LAYER}.mlp.down_proj",
        "layers.{i}.feed_forward.w3": f"{_LAYER}.mlp.up_proj",
        "norm": "model.norm",
        "output": "lm_head",
    },
    "own-qwen3": {
        "embed": "model.embed_tokens",
        "rope": "model.rotary_emb",
        "blocks.{i}": _LAYER,
        "blocks.{i}.ln1": f"{_LAYER}.input_layernorm",
        "blocks.{i}.attn": f"{_LAYER}.self_attn",
        "blocks.{i}.attn.wqkv": (concatenated, _QKV),
        "blocks.{i}.attn.norm_q": f"{_LAYER}.self_attn.q_norm",
        "blocks.{i}.attn.norm_k": f"{_LAYER}.self_attn.k_norm",
        "blocks.{i}.attn.wo": f"{_LAYER}.self_attn.o_proj",
        "blocks.{i}.ln2": f"{_LAYER}.post_attention_layernorm",
        "blocks.{i}.up_gate": (concatenated, _GATE_UP[::-1]),
        "blocks.{i}.down": f"{_LAYER}.mlp.down_proj",
        "ln_f": "model.norm",
    },
    "nano-gpt2": {
        "transformer.wte": "transformer.wte",
        "transformer.wpe": "transformer.wpe",
        "transformer.h.{i}": "transformer.h.{i}",
        **{
            f"transformer.h.{{i}}.{name}": f"transformer.h.{{i}}.{name}"
            for name in ("ln_1", "attn", "ln_2", "mlp", "attn.resid_dropout", "mlp.dropout")
        },
        "transformer.h.{i}.mlp.gelu": "transformer.h.{i}.mlp.act",
        **{
            f"transformer.h.{{i}}.{name}": (transposed, f"transformer.h.{{i}}.{name}")
            for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        },
        "transformer.ln_f": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    "own-mixtral": {
        "words": "model.embed_tokens",
        "layers.{i}": _LAYER,
        "layers.{i}.norm1": f"{_LAYER}.input_layernorm",
        "layers.{i}.attention": f"{_LAYER}.self_attn",
        "layers.{i}.attention.qkv_proj": (concatenated, _QKV),
        "layers.{i}.attention.o_proj": f"{_LAYER}.self_attn.o_proj",
        "layers.{i}.norm2": f"{_LAYER}.post_attention_layernorm",
        "layers.{i}.moe": f"{_LAYER}.mlp",
        "layers.{i}.moe.router": f"{_LAYER}.mlp.gate",
        "layers.{i}.moe.experts": f"{_LAYER}.mlp.experts",
        "layers.{i}.moe.experts.w1": (expert_half(0), f"{_LAYER}.mlp.experts.gate_up_proj"),
        "layers.{i}.moe.experts.w2": f"{_LAYER}.mlp.experts.down_proj",
        "layers.{i}.moe.experts.w3": (expert_half(1), f"{_LAYER}.mlp.experts.gate_up_proj"),
        "norm": "model.norm",
        "head": "lm_head",
    },
    "own-gemma2": {
        "embedder": "model.embed_tokens",
        "rope": "model.rotary_emb",
        "layers.{i}": _LAYER,
        "layers.{i}.self_attn": f"{_LAYER}.self_attn",
        "layers.{i}.self_attn.qkv_proj": (concatenated, _QKV),
        "layers.{i}.self_attn.o_proj": f"{_LAYER}.self_attn.o_proj",
        "layers.{i}.mlp": f"{_LAYER}.mlp",
        **{
            f"layers.{{i}}.{name}": f"{_LAYER}.{name}"
            for name in (
                "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
                "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
            )
        },
        "norm": "model.norm",
    },
}  # fmt: skip
_ENCODERS: dict[str, dict[str, Source]] = {
    "flat-bert": {
        "tokens": "bert.embeddings.word_embeddings",
        "positions": "bert.embeddings.position_embeddings",
        "segments": "bert.embeddings.token_type_embeddings",
        "norm": "bert.embeddings.LayerNorm",
        "layers.{i}": _BERT,
        "layers.{i}.qkv": (concatenated, tuple(f"{_BERT}.attention.self.{part}" for part in ("query", "key", "value"))),
        "layers.{i}.out": f"{_BERT}.attention.output.dense",
        "layers.{i}.norm1": f"{_BERT}.attention.output.LayerNorm",
        "layers.{i}.ff1": f"{_BERT}.intermediate.dense",
        "layers.{i}.ff2": f"{_BERT}.output.dense",
        "layers.{i}.norm2": f"{_BERT}.output.LayerNorm",
        "mlm_dense": "cls.predictions.transform.dense",
        "mlm_norm": "cls.predictions.transform.LayerNorm",
        "mlm_bias": "cls.predictions.bias",
    },
    "own-vit": {
        "patch": "vit.embeddings.patch_embeddings",
        "patch.proj": (channels_last_patch_weight, "vit.embeddings.patch_embeddings.projection"),
        "cls_token": "vit.embeddings.cls_token",
        "pos_embed": "vit.embeddings.position_embeddings",
        "blocks.{i}": _VIT,
        "blocks.{i}.norm1": f"{_VIT}.layernorm_before",
        "blocks.{i}.attn": f"{_VIT}.attention",
        "blocks.{i}.attn.qkv": (concatenated, tuple(f"{_VIT}.attention.{part}_proj" for part in "qkv")),
        "blocks.{i}.attn.proj": f"{_VIT}.attention.o_proj",
        "blocks.{i}.norm2": f"{_VIT}.layernorm_after",
        "blocks.{i}.fc1": f"{_VIT}.mlp.fc1",
        "blocks.{i}.act": f"{_VIT}.mlp.activation_fn",
        "blocks.{i}.fc2": f"{_VIT}.mlp.fc2",
        "norm": "vit.layernorm",
        "head": "classifier",
    },
}
_ENC, _DEC = "encoder.block.{i}.layer", "decoder.block.{i}.layer"


def _t5(stack: str, old: str, last: int) -> dict[str, Source]:
    """Return a layer of a stack, the perceptron of which is the last of its parts."""
    return {
        f"{stack}.{{i}}": old.rpartition(".")[0],
        f"{stack}.{{i}}.norm1": f"{old}.0.layer_norm",
        f"{stack}.{{i}}.attn": f"{old}.0.SelfAttention",
        f"{stack}.{{i}}.attn.qkv": (concatenated, tuple(f"{old}.0.SelfAttention.{part}" for part in "qkv")),
        f"{stack}.{{i}}.attn.out": f"{old}.0.SelfAttention.o",
        f"{stack}.{{i}}.norm3": f"{old}.{last}.layer_norm",
        f"{stack}.{{i}}.wi": f"{old}.{last}.DenseReluDense.wi",
        f"{stack}.{{i}}.relu": f"{old}.{last}.DenseReluDense.act",
        f"{stack}.{{i}}.wo": f"{old}.{last}.DenseReluDense.wo",
    }


def _whisper(half: str) -> dict[str, Source]:
    new, old = f"{half}.blocks.{{i}}", f"model.{half}.layers.{{i}}"
    names = {"attn": "self_attn", "cross_attn": "encoder_attn"}
    parts = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    return {
        f"{half}.blocks.{{i}}": old,
        **{f"{new}.{name}": f"{old}.{other}" for name, other in names.items()},
        **{f"{new}.{name}_ln": f"{old}.{other}_layer_norm" for name, other in names.items()},
        **{f"{new}.{name}.{a}": f"{old}.{other}.{b}" for name, other in names.items() for a, b in parts.items()},
        f"{new}.mlp_ln": f"{old}.final_layer_norm",
        f"{new}.mlp.0": f"{old}.fc1",
        f"{new}.mlp.1": f"{old}.activation_fn",
        f"{new}.mlp.2": f"{old}.fc2",
    }


_NEXT = ("dwconv", "pwconv1", "pwconv2", "act")
_OTHERS: dict[str, dict[str, Source]] = {
    "own-t5": {
        "table": "shared",
        "enc_positions.table": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        "dec_positions.table": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        **_t5("enc", _ENC, 1),
        **_t5("dec", _DEC, 2),
        "dec.{i}.norm2": f"{_DEC}.1.layer_norm",
        "dec.{i}.cross": f"{_DEC}.1.EncDecAttention",
        "dec.{i}.cross.q": f"{_DEC}.1.EncDecAttention.q",
        "dec.{i}.cross.kv": (concatenated, tuple(f"{_DEC}.1.EncDecAttention.{part}" for part in "kv")),
        "dec.{i}.cross.out": f"{_DEC}.1.EncDecAttention.o",
        "enc_norm": "encoder.final_layer_norm",
        "dec_norm": "decoder.final_layer_norm",
    },
    "own-whisper": {
        "encoder": "model.encoder",
        "encoder.conv1": "model.encoder.conv1",
        "encoder.conv2": "model.encoder.conv2",
        "encoder.positional_embedding": "model.encoder.embed_positions.weight",
        **_whisper("encoder"),
        "encoder.ln_post": "model.encoder.layer_norm",
        "decoder.token_embedding": "model.decoder.embed_tokens",
        "decoder.positional_embedding": "model.decoder.embed_positions.weight",
        **_whisper("decoder"),
        "decoder.ln": "model.decoder.layer_norm",
    },
    "own-mamba": {
        "embed": "backbone.embeddings",
        "stack.{i}": "backbone.layers.{i}",
        "stack.{i}.ln": "backbone.layers.{i}.norm",
        "stack.{i}.ssm": "backbone.layers.{i}.mixer",
        "stack.{i}.ssm.in_x": (row_half(0), "backbone.layers.{i}.mixer.in_proj"),
        "stack.{i}.ssm.in_z": (row_half(1), "backbone.layers.{i}.mixer.in_proj"),
        "stack.{i}.ssm.conv": "backbone.layers.{i}.mixer.conv1d",
        "stack.{i}.ssm.to_steps": "backbone.layers.{i}.mixer.x_proj",
        "stack.{i}.ssm.steps": "backbone.layers.{i}.mixer.dt_proj",
        "stack.{i}.ssm.log_decay": "backbone.layers.{i}.mixer.A_log",
        "stack.{i}.ssm.skip": "backbone.layers.{i}.mixer.D",
        "stack.{i}.ssm.out": "backbone.layers.{i}.mixer.out_proj",
        "ln_f": "backbone.norm_f",
        "head": "lm_head",
    },
    "own-convnext": {
        "stem": (channels_last_patch_weight, "convnext.embeddings.patch_embeddings"),
        "stem_norm": "convnext.embeddings.layernorm",
        "down_norm": "convnext.encoder.stages.1.downsampling_layer.0",
        "down": (channels_last_patch_weight, "convnext.encoder.stages.1.downsampling_layer.1"),
        **{
            f"stage{number + 1}.{{i}}{new}": f"convnext.encoder.stages.{number}.layers.{{i}}{old}"
            for number in range(2)
            for new, old in [("", ""), (".norm", ".layernorm"), (".gamma", ".layer_scale_parameter")]
            + [(f".{name}", f".{name}") for name in _NEXT]
        },
        "norm": "convnext.layernorm",
        "classifier": "classifier",
    },
}
COUNTERPARTS: dict[str, dict[str, Source]] = {**_DECODERS, **_ENCODERS, **_OTHERS}


def converted(port: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what has transformers' names, weights or gradients, with a port's names and in its shapes."""
    found = {}
    for new, source in COUNTERPARTS[port].items():
        combine, old = _parts(source)
        numbers = product(_INDICES if "{i}" in new else (0,), _INDICES if "{j}" in new else (0,))
        for (i, j), suffix in product(numbers, ("", ".weight", ".bias")):
            names = [f"{each}{suffix}".format(i=i, j=j) for each in old]
            if all(name in weights for name in names):
                found[f"{new}{suffix}".format(i=i, j=j)] = combine([weights[name] for name in names])
    return found


def nearest(port: str, path: str) -> str:
    """Return a module of a port, or the one around it that takes the place of one of transformers'."""
    while path and not any(_pattern(new).fullmatch(path) for new in COUNTERPARTS[port]):
        path = path.rpartition(".")[0]
    return path


def counterparts(port: str, path: str) -> tuple[str, ...]:
    """Return the modules of transformers that take the place of one of a port, or of the one around it that has such."""
    path = nearest(port, path)
    for new, source in COUNTERPARTS[port].items():
        if found := _pattern(new).fullmatch(path):
            return tuple(each.format(**found.groupdict()) for each in _parts(source)[1])
    return ("",)


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{j\}", r"(?P<j>\d+)"))


def _parts(source: Source) -> tuple[Combine, Sequence[str]]:
    if isinstance(source, str):
        return (lambda parts: parts[0]), (source,)
    combine, old = source
    return combine, (old,) if isinstance(old, str) else old
