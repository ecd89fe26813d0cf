"""Whose names a configuration uses, and what it is a configuration of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.errors import ConfigError
from probe.settings.setting import Dialect, Part
from probe.settings.source import OWN_SECTIONS, Form, Names, Source, flattened
from probe.settings.table import TABLE

_MARKS: dict[Dialect, tuple[str, ...]] = {
    Dialect.PADDLENLP: ("paddlenlp_version", "tensor_parallel_degree", "pipeline_parallel_degree", "amp_master_grad",
                        "fp16_opt_level",
                        "sharding_parallel_degree", "unified_checkpoint", "fuse_attention_qkv"),
    Dialect.MINDFORMERS: ("runner_config", "runner_wrapper", "moe_config", "model.model_config", "lr_schedule.type",
                          "run_mode", "trainer.model_name",
                          "n_kv_heads", "layernorm_compute_type", "softmax_compute_type", "param_init_type",
                          "use_past", "mindformers_version"),
    Dialect.VLLM: ("max_model_len", "gpu_memory_utilization", "enforce_eager", "hf_overrides", "max_num_seqs",
                   "kv_cache_dtype"),
    Dialect.MEGATRON: ("tensor_model_parallel_size", "num_query_groups", "norm_epsilon", "layernorm_epsilon",
                       "ffn_hidden_size", "micro_batch_size",
                       "untie_embeddings_and_output_weights", "swiglu", "kv_channels", "use_mcore_models",
                       "hidden_dropout", "lr_decay_style",
                       "disable_bias_linear", "init_method_std", "rotary_base"),
    Dialect.TRANSFORMERS: ("transformers_version", "architectures", "model_type", "per_device_train_batch_size",
                           "lr_scheduler_type",
                           "num_hidden_layers", "rope_theta", "torch_dtype", "adam_epsilon",
                           "gradient_accumulation_steps", "num_train_epochs", "max_grad_norm", "learning_rate",
                           "gradient_checkpointing"),
}  # fmt: skip
"""keys, or sections, of one code base alone; the first dialect with the most of them counts"""
_WEIGHT = {Dialect.PADDLENLP: 4, Dialect.VLLM: 4}
"""of a key: these two take the names of transformers beside their own"""
_PARAMS_JSON = {"dim", "n_layers", "n_heads", "norm_eps"}
"""keys of every params.json, outside of sections"""
_SURE = 2
"""keys of one code base alone"""
_OF_MODEL = ("model_type", "architectures", "num_hidden_layers", "hidden_size", "n_embd", "d_model")
_OF_TRAINING = (
    "per_device_train_batch_size",
    "learning_rate",
    "num_train_epochs",
    "max_grad_norm",
    "lr_scheduler_type",
)
_TRAINING_SECTIONS = ("optimizer", "runner_wrapper", "lr_schedule")
_CHECKPOINT = "use_checkpoint_args"
_MODEL_NEEDED = ("num_layers", "hidden_size", "num_attention_heads")


def source_of(
    path: str, form: Form, values: Mapping[Any, Any], variables: Mapping[str, str] | None = None,
    unknown: frozenset[str] = frozenset(), is_complete: bool = True,
) -> Source:  # fmt: skip
    """Return what nested values are: whose, and of what.

    Names with an unknown value tell that too. Where further entries are unknown, nothing that is missing has its default.

    Raises
    ------
    ConfigError
        none of them is a setting
    """
    keys = flattened(values)
    seen = {**keys, **dict.fromkeys(unknown)}
    names = Names(seen)
    dialect = dialect_of(seen)
    if not any(names.find(_bare(name)) for row in TABLE for name in row.names(dialect)) and not variables:
        raise ConfigError(
            f"{path}: none of its {len(keys)} entries is a setting that probe knows; see docs/reference/settings.md"
        )
    is_config = (
        form is Form.ARGUMENTS_JSON and dialect in (Dialect.TRANSFORMERS, Dialect.PADDLENLP) and _has(names, _OF_MODEL)
    )
    parts = _parts(dialect, form, names) if is_complete else frozenset[Part]()
    return Source(path, Form.CONFIG_JSON if is_config else form, dialect, keys, parts, variables or {},
                  also=others(seen, dialect), unknown=unknown, is_complete=is_complete)  # fmt: skip


def dialect_of(keys: Mapping[str, Any]) -> Dialect:
    """Return whose names keys are."""
    if keys.keys() >= _PARAMS_JSON:
        return Dialect.META
    scores = _scores(keys)
    best = max(scores, key=lambda dialect: scores[dialect])
    return best if scores[best] else Dialect.TRANSFORMERS


def others(keys: Mapping[str, Any], dialect: Dialect) -> tuple[Dialect, ...]:
    """Return the dialects whose names may be among keys too, where too few of them tell whose they are."""
    return tuple(each for each in Dialect if each is not dialect) if _scores(keys).get(dialect, _SURE) < _SURE else ()


def _scores(keys: Mapping[str, Any]) -> dict[Dialect, int]:
    own = [key for key in keys if OWN_SECTIONS.isdisjoint(key.split(".")[:-1])]
    sections = {key.rpartition(".")[0] for key in own}
    present = {end for key in [*own, *sections] for end in _ends(key)}
    return {
        dialect: _WEIGHT.get(dialect, 1) * sum(mark in present for mark in marks) for dialect, marks in _MARKS.items()
    }


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[at:to]) for at in range(len(parts)) for to in range(at + 1, len(parts) + 1)]


def _parts(dialect: Dialect, form: Form, names: Names) -> frozenset[Part]:
    """Return what a configuration is of."""
    if dialect in (Dialect.TRANSFORMERS, Dialect.PADDLENLP):
        wanted = {Part.MODEL: _has(names, _OF_MODEL), Part.TRAINING: _has(names, _OF_TRAINING)}
        return frozenset(part for part, is_there in wanted.items() if is_there)
    if dialect is Dialect.MINDFORMERS:
        is_trained = any(names.find(f"{section}.type") for section in _TRAINING_SECTIONS)
        return frozenset({Part.MODEL, Part.TRAINING} if is_trained else {Part.MODEL})
    if dialect is Dialect.MEGATRON:
        is_model = names.get(_CHECKPOINT) is not True and all(map(names.find, _MODEL_NEEDED))
        is_trained = names.find("lr") or names.find("train_iters") or names.find("micro_batch_size")
        return frozenset([*([Part.MODEL] if is_model else []), *([Part.TRAINING] if is_trained else [])])
    return frozenset({Part.MODEL} if dialect is Dialect.META else ())


def _has(names: Names, wanted: tuple[str, ...]) -> bool:
    return any(map(names.find, wanted))


def _bare(name: str) -> str:
    return name.partition("|")[0]
