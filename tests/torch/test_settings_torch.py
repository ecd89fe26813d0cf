"""Settings of PyTorch: what is recorded of its switches, what models imply, findings of real models that name their setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import probe
from probe.adapters.torch.adapter import TorchAdapter
from probe.adapters.torch.environment import environment
from probe.comparison.result import Verdict
from probe.report.text import render
from probe.settings.advising import Environment, advice
from probe.settings.reading.dialects import source_of
from probe.settings.reading.recordings import recorded
from probe.settings.resolving import resolved
from probe.settings.side import Settings
from probe.settings.source import Form
from probe.settings.table.models import MODELS

transformers = pytest.importorskip("transformers")

# What is recorded


def test_the_switches_are_recorded(tmp_path: Path) -> None:
    torch.set_float32_matmul_precision("high")
    try:
        facts = environment()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert facts["float32_matmul_precision"] == "high" and facts["num_threads"] == torch.get_num_threads()
    assert facts["default_dtype"] == "float32" and facts["sdp_kernels"]
    assert "devices" not in facts or torch.cuda.is_initialized()


def test_two_kinds_of_tf32_switches_do_not_stop_a_recording(tmp_path: Path) -> None:
    """PyTorch raises where a program has used the new switch and the old one is asked for."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this version has one kind")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        model = torch.nn.Linear(2, 2)
        with probe.capture(model, tmp_path / "a.h5"):
            model(torch.ones(1, 2)).sum().backward()
            probe.step()
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    settings = resolved(recorded(tmp_path / "a.h5"))
    assert settings.source.recorded["matmul_fp32_precision"] == "tf32"
    assert settings.known("tf32") is True


def test_asking_changes_nothing() -> None:
    """Threads may still be set afterwards, CUDA is not started, random numbers go on."""
    state = torch.get_rng_state()
    environment()
    assert torch.equal(state, torch.get_rng_state()) and not torch.cuda.is_initialized()


def test_devices_are_recorded_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here: what is asked for, and that its answer is understood."""
    asked = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "get_device_capability": (7, 0),
        "get_device_name": "Tesla V100",
    }
    for name, answer in asked.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    facts = environment()
    assert facts["devices"] == ["Tesla V100 (compute capability 7.0)"]
    found = advice(Environment("a.h5", {"torch": "2"}, {}, tuple(facts["devices"]), facts, ("bfloat16",)))  # type: ignore[arg-type]
    assert [each.dtype for each in found.unfit] == ["bfloat16"] and found.is_wrong
    assert {step.variable for step in found.missing} >= {"CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert "devices" not in environment(), "asking would start CUDA"


def test_functions_and_dtypes_of_a_configuration_are_recorded_by_name() -> None:
    """As Megatron's TransformerConfig has them."""

    class Config:
        def __init__(self) -> None:
            self.activation_func, self.params_dtype, self.hidden_size = F.silu, torch.bfloat16, 8
            self.init_method = lambda weight: None
            self.nested = torch.nn.Linear(1, 1)

    model = torch.nn.Linear(1, 1)
    model.config = Config()  # type: ignore[assignment]
    found = TorchAdapter().model_config(model)
    assert found["activation_func"] == "silu" and found["params_dtype"] == "torch.bfloat16" and "nested" not in found


# What models imply

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "n_embd": 16, "n_head": 4, "n_layer": 4, "n_positions": 32, "ffn_dim": 24, "word_embed_proj_dim": 16, "head_dim": 4,
    "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "kv_lora_rank": 8,
    "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "n_routed_experts": 4, "num_local_experts": 4, "num_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
INSTALLED = sorted(MODELS.keys() & set(transformers.CONFIG_MAPPING.keys()))


def settings_of(config: Any) -> Settings:
    return resolved(source_of("config.json", Form.ARGUMENTS_JSON, config.to_dict()))


@pytest.mark.parametrize("kind", INSTALLED)
def test_defaults_are_those_of_the_models_class(kind: str) -> None:
    """Where the class has a key, the table's default is its default."""
    given = settings_of(transformers.CONFIG_MAPPING[kind]())
    for name, value in MODELS[kind].items():
        known = given.values.get(name)
        if known is not None and known.origin == "given":
            assert known.value == value, f"{kind}: {name}"


BUILT = ("llama", "qwen2", "qwen3", "gemma2", "mixtral", "deepseek_v3", "gpt2", "gpt_neox")
"""of each family one: building all of them takes half a minute"""


@pytest.mark.parametrize("kind", BUILT)
def test_what_a_models_name_implies_is_what_it_is_built_of(kind: str) -> None:
    own = transformers.CONFIG_MAPPING[kind]()
    config = transformers.CONFIG_MAPPING[kind](**{name: value for name, value in SIZES.items() if hasattr(own, name)})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    names = {name for name, _ in model.named_parameters()}
    classes = {type(module).__name__.lower() for module in model.modules()}
    implied = MODELS[kind]
    has = {
        "normalization": "rmsnorm" if any("rmsnorm" in name for name in classes) else "layernorm",
        "qkv_bias": any(name.endswith(("q_proj.bias", "query.bias", "c_attn.bias", "query_key_value.bias", "q_a_proj.bias")) for name in names),
        "mlp_bias": any(".bias" in name and any(part in name for part in ("mlp", "fc1", "intermediate.dense", "dense_h_to_4h")) and "gate" not in name
                        and "expert" not in name for name in names),
        "gated_mlp": any("gate_proj" in name or "gate_up_proj" in name for name in names),
        "qk_norm": any(each in name for name in names for each in ("q_norm", "k_norm", "q_a_layernorm")),
    }  # fmt: skip
    assert has == {name: implied[name] for name in has}
    assert bool(model.config.tie_word_embeddings) is implied["tie_word_embeddings"]
    if "num_experts" in implied and implied["num_experts"] != 1:
        assert any("expert" in name for name in names)
        assert any("shared_expert" in name for name in names) is bool(
            implied["shared_expert_size"] or kind.startswith("deepseek")
        )


# Findings that name their setting

BASE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "use_cache": False, "tie_word_embeddings": False,
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "eps": ({"rms_norm_eps": 1e-4}, "norm_eps", "rms_norm_eps: 1e-06 in A, 0.0001 in B"),
    "theta": ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, "rope_theta", "rope_theta: 10000 in A, 1000000 in B"),
    "activation": ({"hidden_act": "gelu"}, "activation", "hidden_act: silu in A, gelu in B"),
    "dropout": ({"attention_dropout": 0.3}, "attention_dropout", "attention_dropout: 0 in A, 0.3 in B"),
    "groups": ({"num_key_value_heads": 4}, "num_key_value_heads", "num_key_value_heads: 2 in A, 4 in B"),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    folder = tmp_path_factory.mktemp("trained")

    def one(name: str, **changes: Any) -> Path:
        path = folder / f"{name}.h5"
        if path.exists():
            return path
        torch.manual_seed(0)
        model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**{**BASE, **changes})).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(1))
        with probe.capture(model, path):
            logits = model(input_ids=ids).logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
        return path

    return one


@pytest.mark.parametrize("case", CASES)
def test_the_finding_names_the_setting_from_statistics(case: str, trained: Callable[..., Path]) -> None:
    changes, name, said = CASES[case]
    found = probe.compare(trained("plain"), trained(case, **changes))
    first = found.first_divergence
    assert found.verdict is Verdict.DIVERGED and first is not None
    assert first.settings[0] == name and first.hint.replace("rope_parameters.", "").startswith(said)
    assert found.settings[0].difference.setting == name
    assert "→ the first divergence" in render(found).plain


def test_the_same_configuration_names_nothing(trained: Callable[..., Path]) -> None:
    found = probe.compare(trained("plain"), trained("again"))
    assert (found.verdict, found.settings) == (Verdict.ALIGNED, ())


def test_one_layers_fault_is_not_its_configurations(trained: Callable[..., Path], tmp_path: Path) -> None:
    """The configurations agree on the eps: another setting that differs is not blamed for a norm."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**BASE, bos_token_id=3)).train()
    model.model.layers[1].input_layernorm.variance_epsilon = 1e-3
    ids = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(1))
    with probe.capture(model, tmp_path / "b.h5"):
        loss = F.cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        probe.step(loss=loss)
    first = probe.compare(trained("plain"), tmp_path / "b.h5").first_divergence
    assert first is not None and first.path == "model.layers.1.input_layernorm" and first.settings == ()
