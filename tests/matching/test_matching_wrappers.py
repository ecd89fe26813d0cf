"""Lines that count on wrappers, DistributedDataParallel of Float16Module in a list, on models that have others or none."""

from __future__ import annotations

import pytest

from probe.mapping import load_mapping
from probe.mapping.parsing import parse_mapping
from probe.matching import match
from probe.structure.tree import Tree
from tests.mapped import matched, names, nothing, with_parameters
from tests.trees import DATA, tree

MEGATRON = {
    "": "GPTModel", "embedding": "LanguageModelEmbedding", "embedding.word_embeddings": "VocabParallelEmbedding",
    "rotary_emb": "RotaryEmbedding", "decoder": "TransformerBlock", "decoder.layers": "ModuleList",
    "decoder.layers.0": "TransformerLayer", "decoder.layers.0.input_layernorm": "RMSNorm",
    "decoder.layers.0.self_attention": "SelfAttention", "decoder.layers.0.self_attention.linear_proj": "RowParallelLinear",
    "decoder.layers.0.pre_mlp_layernorm": "RMSNorm", "decoder.layers.0.mlp": "MLP",
    "decoder.layers.0.mlp.linear_fc2": "RowParallelLinear", "decoder.final_layernorm": "RMSNorm",
    "output_layer": "ColumnParallelLinear",
}  # fmt: skip
QWEN2 = {
    "": "Qwen2ForCausalLM", "model": "Qwen2Model", "model.embed_tokens": "Embedding", "model.rotary_emb": "Qwen2RotaryEmbedding",
    "model.layers": "ModuleList", "model.layers.0": "Qwen2DecoderLayer", "model.layers.0.input_layernorm": "Qwen2RMSNorm",
    "model.layers.0.self_attn": "Qwen2Attention", "model.layers.0.self_attn.o_proj": "Linear",
    "model.layers.0.post_attention_layernorm": "Qwen2RMSNorm", "model.layers.0.mlp": "Qwen2MLP",
    "model.layers.0.mlp.down_proj": "Linear", "model.norm": "Qwen2RMSNorm", "lm_head": "Linear",
}  # fmt: skip
PAIRS = {
    "": "", "embedding.word_embeddings": "model.embed_tokens", "rotary_emb": "model.rotary_emb", "decoder.layers": "model.layers",
    "decoder.layers.0": "model.layers.0", "decoder.layers.0.input_layernorm": "model.layers.0.input_layernorm",
    "decoder.layers.0.self_attention": "model.layers.0.self_attn",
    "decoder.layers.0.self_attention.linear_proj": "model.layers.0.self_attn.o_proj",
    "decoder.layers.0.pre_mlp_layernorm": "model.layers.0.post_attention_layernorm", "decoder.layers.0.mlp": "model.layers.0.mlp",
    "decoder.layers.0.mlp.linear_fc2": "model.layers.0.mlp.down_proj", "decoder.final_layernorm": "model.norm",
    "output_layer": "lm_head",
}  # fmt: skip
"""what both templates pair, by the paths without wrappers: `rotary_emb` keeps its name, below where the model's parts begin"""
WRAPPED = {
    "bare": [],
    "in a list": ["list"],
    "DDP": ["DistributedDataParallel"],
    "Float16Module": ["Float16Module"],
    "Float16Module in a list": ["list", "Float16Module"],
    "DDP in a list": ["list", "DistributedDataParallel"],
    "DDP of Float16Module": ["DistributedDataParallel", "Float16Module"],
    "all": ["list", "DistributedDataParallel", "Float16Module"],
}


def wrapped(classes: dict[str, str], around: list[str]) -> Tree:
    found = classes
    for name in reversed(around):
        held = "0" if name == "list" else "module"
        found = {"": name, **{f"{held}.{path}".rstrip("."): each for path, each in found.items()}}
    return tree(found)


def bare(path: str) -> str:
    while path.partition(".")[0] in ("0", "module"):
        path = path.partition(".")[2]
    return path


def pairs(found: object, a: Tree, b: Tree) -> dict[str, str]:
    inner = {i: j for i, j in ((p.a, p.b) for p in found.pairs) if a.wrapped(i) is None}  # type: ignore[attr-defined]
    return {bare(a.path(i)): bare(b.path(j)) for i, j in inner.items()}


@pytest.mark.parametrize("file", ["template-qwen2.5-mindspeed-llm.yaml", "template-qwen2.5-llamafactory.yaml"])
@pytest.mark.parametrize("around_qwen2", [[], ["list"], ["DistributedDataParallel"]], ids=["bare", "list", "DDP"])
@pytest.mark.parametrize("around", WRAPPED.values(), ids=WRAPPED)
def test_a_template_says_the_same_whatever_wraps_the_models(
    file: str, around: list[str], around_qwen2: list[str]
) -> None:
    megatron, qwen2 = wrapped(MEGATRON, around), wrapped(QWEN2, around_qwen2)
    mapping = load_mapping(DATA / file)
    found = match(megatron, qwen2, mapping, nothing, nothing)
    lacking = {"linear_fc1: up_proj", "up_proj: linear_fc1"}  # these trees are without
    assert [text for text in found.warnings if not any(each in text for each in lacking)] == []
    assert pairs(found, megatron, qwen2) == PAIRS
    turned = match(qwen2, megatron, mapping, nothing, nothing)
    assert {(p.b, p.a) for p in turned.pairs} == {(p.a, p.b) for p in found.pairs}


UNKNOWN = {
    "unknown": [("TrainedModel", "net")],
    "DDP of an unknown one": [("DistributedDataParallel", "module"), ("TrainedModel", "net")],
    "unknown, of the usual name": [("TrainedModel", "module")],
}


def held(classes: dict[str, str], around: list[tuple[str, str]]) -> Tree:
    """Return a tree of models in wrappers of any class, each with the name of what it holds."""
    for name, inner in reversed(around):
        classes = {"": name, **{f"{inner}.{path}".rstrip("."): each for path, each in classes.items()}}
    return tree(classes)


@pytest.mark.parametrize("file", ["template-qwen2.5-mindspeed-llm.yaml", "template-qwen2.5-llamafactory.yaml"])
@pytest.mark.parametrize("known", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
def test_a_line_that_pairs_a_wrapper_with_one_of_an_unknown_class(
    file: str, unknown: list[tuple[str, str]], known: list[str]
) -> None:
    """The template's first line is one, with the name that the unknown one gives to what it holds."""
    name = unknown[-1][1]
    text = (
        (DATA / file)
        .read_text()
        .replace("0.module: module", f"0.module: {name}")
        .replace("module: 0.module", f"{name}: 0.module")
    )
    megatron, qwen2 = wrapped(MEGATRON, known), held(QWEN2, unknown)
    found = match(megatron, qwen2, parse_mapping(text, "m.yaml"), nothing, nothing)
    lacking = ("linear_fc1: up_proj", "up_proj: linear_fc1")
    assert [text for text in found.warnings if not any(each in text for each in lacking)] == []
    ends = {megatron.path(p.a): qwen2.path(p.b).removeprefix(qwen2.path(len(unknown))).lstrip(".") for p in found.pairs}
    assert {bare(a): b for a, b in ends.items() if megatron.wrapped(megatron.by_path[a]) is None} == PAIRS


def test_a_model_that_holds_one_other_is_no_wrapper_unless_a_line_says_so() -> None:
    tied = {path: name for path, name in QWEN2.items() if path != "lm_head"}  # its head is the embedding
    found = matched(tree(tied), tree(tied), {"TopLayer": {"model": "model"}})
    assert len(found.pairs) == len(tied)


@pytest.mark.parametrize("around", WRAPPED.values(), ids=WRAPPED)
def test_paths_that_begin_with_wrappers(around: list[str]) -> None:
    """The library's file for Qwen2.5-VL begins as this one does."""
    sections = {
        "TopLayer": {"0.module.module.decoder.layers": "module.model.layers", "0.module.module.output_layer": "lm_head"}
    }
    megatron = wrapped(MEGATRON, around)
    found = matched(megatron, wrapped(QWEN2, []), sections)
    assert not found.warnings
    made = pairs(found, megatron, wrapped(QWEN2, []))
    assert made["decoder.layers.0"] == "model.layers.0" and made["output_layer"] == "lm_head"


def test_the_model_that_holds_all_weights_is_the_whole_one() -> None:
    """A backbone in a wrapper is the backbone, where the other side has a head that it lacks."""
    backbone = {path: name for path, name in MEGATRON.items() if path != "output_layer"}
    a, b = wrapped(backbone, ["Float16Module"]), wrapped(QWEN2, [])
    sides = (
        with_parameters(
            a, {"module.embedding.word_embeddings.weight": (50, 8), "module.decoder.final_layernorm.weight": (8,)}
        ),
        with_parameters(
            b, {"model.embed_tokens.weight": (50, 8), "model.norm.weight": (8,), "lm_head.weight": (50, 8)}
        ),
    )
    found = matched(*sides, {"Float16Module": {"module": "model"}, "GPTModel": {"decoder.layers": "layers"}})
    made = names(found, a, b)
    assert made["module"] == "model" and made["module.decoder.layers.0"] == "model.layers.0"


def test_names_that_wrappers_give_may_be_a_models_own() -> None:
    own = {"": "Net", "module": "Inner", "module.0": "Linear", "module.1": "Linear"}
    other = {"": "Other", "body": "Inner", "body.first": "Linear", "body.1": "Linear"}
    found = matched(tree(own), tree(other), {"TopLayer": {"module": "body", "module.0": "body.first"}})
    assert names(found, tree(own), tree(other)) == {
        "": "",
        "module": "body",
        "module.0": "body.first",
        "module.1": "body.1",
    }
    assert not found.warnings


def test_a_line_for_what_a_wrapper_holds_that_leads_to_nothing_is_said() -> None:
    mapping = parse_mapping("Float16Module:\n  module: modle\nGPTModel:\n  output_layer: lm_head\n", "m.yaml")
    found = match(wrapped(MEGATRON, []), wrapped(QWEN2, []), mapping, nothing, nothing)
    assert any(text.startswith("the mapping's line 2: Float16Module") and "model" in text for text in found.warnings), (
        found.warnings
    )
