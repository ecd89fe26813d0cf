"""The trees in ``tests/skeletons`` that the ready-made mappings are proven on are those that the packages really build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.printing import node_of, text_of
from tests.trees import DATA

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SKELETONS = DATA.parent / "skeletons"
LLM = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 112, "max_position_embeddings": 32,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
MLA = {
    "num_key_value_heads": 4, "first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 48, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1,
}  # fmt: skip
BERT = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 24,
}  # fmt: skip
VIT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "image_size": 32,
    "patch_size": 16, "num_labels": 10,
}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLM),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLM),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLM, "head_dim": 32}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig",
                {**LLM, "intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": ("Qwen2MoeForCausalLM", "Qwen2MoeConfig",
                  {**LLM, **MOE, "shared_expert_intermediate_size": 112, "decoder_sparse_step": 1}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**LLM, **MOE, "head_dim": 32}),
    "deepseek-v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", {**LLM, **MLA}),
    "vit": ("ViTForImageClassification", "ViTConfig", VIT),
    "bert": ("BertForSequenceClassification", "BertConfig", BERT),
    "bert-mlm": ("BertForMaskedLM", "BertConfig", BERT),
}  # fmt: skip


def same_as_the_file(name: str, build: Callable[[], Any]) -> None:
    with torch.device("meta"):
        text = text_of(node_of(build()))
    assert f"{text}\n" == (SKELETONS / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(int(transformers.__version__.split(".")[0]) < 5, reason="transformers 5 has other names than 4")
@pytest.mark.parametrize("name", MODELS)
def test_transformers_builds_what_the_skeleton_says(name: str) -> None:
    model, config, options = MODELS[name]
    same_as_the_file(
        f"transformers-{name}", lambda: getattr(transformers, model)(getattr(transformers, config)(**options))
    )


def test_torch_builds_what_the_skeleton_says() -> None:
    """BERT's outer names around torch's own encoder."""
    nn = torch.nn

    class Embeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word_embeddings = nn.Embedding(96, 32)
            self.position_embeddings = nn.Embedding(24, 32)
            self.token_type_embeddings = nn.Embedding(2, 32)
            self.LayerNorm = nn.LayerNorm(32)
            self.dropout = nn.Dropout(0.1)

    class Pooler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(32, 32)
            self.activation = nn.Tanh()

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = Embeddings()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu"), 2)
            self.pooler = Pooler()

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = Backbone()
            self.dropout = nn.Dropout(0.1)
            self.classifier = nn.Linear(32, 2)

    same_as_the_file("torch-bert", Classifier)
