"""Matching: which module is which, on small trees, on random ones, and on the two published ones."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from probe.errors import MappingError
from probe.mapping import load_mapping
from probe.mapping.parsing import parse_mapping
from probe.matching import Direction, Matching, Reason, match
from probe.structure.tree import Tree
from tests.published.trees import DATA, printed_tree, tree

Sections = Mapping[str, Mapping[str, str]]


def nothing_known(index: int) -> frozenset[object]:
    return frozenset()


def matched(a: Tree, b: Tree, sections: Sections | None = None, direction: Direction | None = None) -> Matching:
    return match(a, b, load_mapping(sections), nothing_known, nothing_known, direction)


def names(found: Matching, a: Tree, b: Tree) -> dict[str, str]:
    return {a.path(pair.a): b.path(pair.b) for pair in found.pairs}


def reasons(found: Matching, a: Tree) -> dict[str, Reason]:
    return {a.path(pair.a): pair.reason for pair in found.pairs}


def left(found: Matching, a: Tree, b: Tree) -> tuple[list[str], list[str]]:
    return [a.path(i) for i in found.only_a], [b.path(i) for i in found.only_b]


LLAMA = tree({
    "": "Llama", "model": "LlamaModel", "model.embed": "Embedding", "model.layers": "ModuleList",
    "model.layers.0": "LlamaLayer", "model.layers.0.attn": "LlamaAttention", "model.layers.0.attn.o": "Linear",
    "model.layers.0.mlp": "LlamaMLP", "model.layers.1": "LlamaLayer", "model.layers.1.attn": "LlamaAttention",
    "model.layers.1.attn.o": "Linear", "model.layers.1.mlp": "LlamaMLP", "lm_head": "Linear",
})  # fmt: skip
GPT = tree({
    "": "GPT", "embedding": "Embedder", "embedding.words": "Embedding", "decoder": "Decoder",
    "decoder.layers": "ModuleList", "decoder.layers.0": "GPTLayer", "decoder.layers.0.self_attention": "Attention",
    "decoder.layers.0.self_attention.proj": "Linear", "decoder.layers.0.mlp": "MLP",
    "decoder.layers.1": "GPTLayer", "decoder.layers.1.self_attention": "Attention",
    "decoder.layers.1.self_attention.proj": "Linear", "decoder.layers.1.mlp": "MLP", "output": "Linear",
})  # fmt: skip
FROM_GPT = {
    "GPT": {"embedding.words": "model.embed", "decoder.layers": "model.layers", "output": "lm_head"},
    "GPTLayer": {"self_attention": "attn"},
    "Attention": {"proj": "o"},
}
FROM_LLAMA = {
    "Llama": {"lm_head": "output"},
    "LlamaModel": {},
    "TopLayer": {"model.embed": "embedding.words", "model.layers": "decoder.layers"},
    "LlamaLayer": {"attn": "self_attention"},
    "LlamaAttention": {"o": "proj"},
}
PAIRS = {
    "": "", "embedding.words": "model.embed", "decoder.layers": "model.layers", "decoder.layers.0": "model.layers.0",
    "decoder.layers.0.self_attention": "model.layers.0.attn",
    "decoder.layers.0.self_attention.proj": "model.layers.0.attn.o", "decoder.layers.0.mlp": "model.layers.0.mlp",
    "decoder.layers.1": "model.layers.1", "decoder.layers.1.self_attention": "model.layers.1.attn",
    "decoder.layers.1.self_attention.proj": "model.layers.1.attn.o", "decoder.layers.1.mlp": "model.layers.1.mlp",
    "output": "lm_head",
}  # fmt: skip


# Same paths


def test_equal_trees_are_paired_by_path() -> None:
    found = matched(GPT, GPT)
    assert names(found, GPT, GPT) == {module.path: module.path for module in GPT.modules}
    assert set(reasons(found, GPT).values()) == {Reason.SAME_PATH}
    assert (found.only_a, found.only_b, found.warnings) == ((), (), ())


def test_what_only_one_side_has_is_listed_with_everything_below_it() -> None:
    a = tree({"": "Net", "up": "Linear", "adapter": "Lora", "adapter.a": "Linear"})
    b = tree({"": "Net", "gate": "Linear", "up": "Linear"})
    found = matched(a, b)
    assert names(found, a, b) == {"": "", "up": "up"}
    assert left(found, a, b) == (["adapter", "adapter.a"], ["gate"])


def test_the_class_does_not_matter_where_the_path_is_the_same() -> None:
    found = matched(tree({"": "Net", "norm": "LayerNorm"}), tree({"": "Model", "norm": "RMSNorm"}))
    assert len(found.pairs) == 2


# What a mapping says


@pytest.mark.parametrize(("sections", "direction"), [(FROM_GPT, Direction.A_TO_B), (FROM_LLAMA, Direction.B_TO_A)])
def test_a_mapping_is_read_from_the_side_it_is_written_from(sections: Sections, direction: Direction) -> None:
    forwards, backwards = matched(GPT, LLAMA, sections), matched(LLAMA, GPT, sections)
    assert names(forwards, GPT, LLAMA) == PAIRS
    assert names(backwards, LLAMA, GPT) == {b: a for a, b in PAIRS.items()}
    assert forwards.direction is direction
    assert backwards.direction is not direction
    assert left(forwards, GPT, LLAMA) == (["embedding", "decoder"], ["model"])
    assert forwards.warnings == backwards.warnings == ()
    said = reasons(forwards, GPT)
    assert said[""] is Reason.SAME_PATH
    assert {reason for path, reason in said.items() if path} == {Reason.MAPPED}


def test_the_direction_can_be_given() -> None:
    with pytest.raises(MappingError, match="^the mapping: none of its 5 keys names a module of B"):
        matched(GPT, LLAMA, FROM_GPT, Direction.B_TO_A)
    found = matched(GPT, LLAMA, FROM_GPT, Direction.A_TO_B)
    assert names(found, GPT, LLAMA) == PAIRS


def test_a_tie_reads_from_a_and_says_so_where_it_matters() -> None:
    net = {"": "Net", "x": "Linear", "y": "Linear", "z": "Linear"}
    a, b = tree(net), tree(net)
    turned = {"Net": {"x": "y", "y": "z", "z": "x"}}
    found = matched(a, b, turned)
    assert names(found, a, b) == {"": "", "x": "y", "y": "z", "z": "x"}
    assert found.direction is Direction.A_TO_B
    assert found.warnings == (
        "the mapping fits both sides equally well; it is read as written from A: --map-direction decides",
    )
    assert matched(a, b, turned, Direction.B_TO_A).warnings == ()
    assert matched(a, b, {"Net": {"x": "y", "y": "x"}}).warnings == (), "the same from either side"


def test_the_longest_key_wins_whatever_the_order() -> None:
    a = tree({"": "Net", "mlp": "MLP", "mlp.up": "Linear", "mlp.up.w": "Linear", "mlp.down": "Linear"})
    b = tree({"": "Net", "ffn": "FFN", "ffn.down": "Linear", "gate": "Linear", "gate.w": "Linear"})
    wanted = {"": "", "mlp": "ffn", "mlp.up": "gate", "mlp.up.w": "gate.w", "mlp.down": "ffn.down"}
    for keys in (["mlp", "mlp.up"], ["mlp.up", "mlp"]):
        found = matched(a, b, {"Net": {key: {"mlp": "ffn", "mlp.up": "gate"}[key] for key in keys}})
        assert names(found, a, b) == wanted


def test_a_long_key_of_an_outer_class_goes_before_a_section_inside() -> None:
    a = tree({"": "Net", "mlp": "MLP", "mlp.up": "Linear"})
    b = tree({"": "Net", "mlp": "MLP", "mlp.x": "Linear", "y": "Linear"})
    assert names(matched(a, b, {"Net": {"mlp.up": "y"}, "MLP": {"up": "x"}}), a, b)["mlp.up"] == "y"


def test_top_layer_is_the_root_only() -> None:
    a = tree({"": "Net", "x": "Net", "x.x": "Linear"})
    b = tree({"": "Net", "y": "Net", "y.x": "Linear", "y.y": "Linear"})
    assert names(matched(a, b, {"TopLayer": {"x": "y"}}), a, b)["x.x"] == "y.x"
    assert names(matched(a, b, {"Net": {"x": "y"}}), a, b)["x.x"] == "y.y", "a class is meant wherever it stands"


def test_a_class_that_a_list_index_leads_to() -> None:
    a = tree({"": "list", "0": "Net", "0.up": "Linear", "1": "Net", "1.up": "Linear"})
    b = tree({"": "Pipe", "first": "Net", "first.up": "Linear", "second": "Net", "second.up": "Linear"})
    found = matched(a, b, {"TopLayer": {"0": "first", "1": "second"}})
    assert names(found, a, b) == {"": "", "0": "first", "0.up": "first.up", "1": "second", "1.up": "second.up"}


@pytest.mark.parametrize("sections", [{"Net": {"x": "up"}, "MLP": {"up": "down"}}, {"GPT": {"a": "b"}}])
def test_a_mapping_of_which_nothing_fits_is_an_error(sections: Sections) -> None:
    a = tree({"": "Net", "up": "Linear"})
    count = sum(map(len, sections.values()))
    with pytest.raises(MappingError, match=f"^the mapping: none of its {count} keys names a module of either side"):
        matched(a, a, sections)


def test_an_unused_key_is_said() -> None:
    a, b = tree({"": "Net", "up": "Linear"}), tree({"": "Net", "w1": "Linear"})
    mapping = parse_mapping("Net:\n  up: w1\n  down: w2\nGPT:\n  layers: h\n", "m")
    found = match(a, b, mapping, nothing_known, nothing_known)
    assert found.warnings == (
        "the mapping's line 3: Net: down: w2 names nothing that is there",
        "the mapping's line 4: GPT: no module is of this class",
    )


def test_a_target_that_is_missing_is_said_and_its_module_is_not_paired_by_name_instead() -> None:
    a = tree({"": "Net", "up": "Linear", "up.w": "Linear", "gate": "Linear"})
    b = tree({"": "Net", "up": "Linear", "gate": "Linear"})
    mapping = parse_mapping("Net:\n  up: w1\n  gate: gate\n", "m")
    found = match(a, b, mapping, nothing_known, nothing_known, Direction.A_TO_B)
    assert names(found, a, b) == {"": "", "gate": "gate"}
    assert left(found, a, b) == (["up", "up.w"], ["up"])
    assert found.warnings == ("the mapping's line 2: Net: up: w1 leads to nothing on the other side; did you mean up?",)


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_a_target_that_is_missing_in_some_places_is_said_whatever_their_order(order: tuple[str, str]) -> None:
    a = tree({"": "Net", **{f"{n}{k}": c for n in order for k, c in (("", "Block"), (".up", "Linear"))}})
    b = tree({"": "Net", "first": "Block", "first.w1": "Linear", "second": "Block"})
    mapping = parse_mapping("Block:\n  up: w1\n", "m")
    found = match(a, b, mapping, nothing_known, nothing_known)
    assert found.warnings == ("the mapping's line 2: Block: up: w1 leads to nothing on the other side for second",)


def test_two_keys_with_one_target_are_an_error() -> None:
    a, b = tree({"": "Net", "up": "Linear", "gate": "Linear"}), tree({"": "Net", "w1": "Linear"})
    mapping = parse_mapping("Net:\n  up: w1\n  gate: w1\n", "map.yaml")
    message = "map.yaml, lines 2 and 3: Net: gate: w1 is already the counterpart of up"
    with pytest.raises(MappingError, match=f"^{re.escape(message)}"):
        match(a, b, mapping, nothing_known, nothing_known)


def test_two_keys_with_one_target_in_different_places_are_fine() -> None:
    a = tree({"": "Net", "x": "Block", "x.up": "Linear", "y": "Block", "y.w": "Linear"})
    b = tree({"": "Net", "x": "Block", "x.w1": "Linear", "y": "Block", "y.w1": "Linear"})
    found = matched(a, b, {"Block": {"up": "w1", "w": "w1"}})
    assert names(found, a, b) == {"": "", "x": "x", "x.up": "x.w1", "y": "y", "y.w": "y.w1"}


def test_what_is_mapped_goes_before_what_has_the_same_name() -> None:
    a, b = tree({"": "Net", "up": "Linear", "w": "Linear"}), tree({"": "Net", "w": "Linear"})
    found = matched(a, b, {"Net": {"up": "w"}})
    assert names(found, a, b) == {"": "", "up": "w"}
    assert left(found, a, b) == (["w"], [])
    swapped = tree({"": "Net", "w": "Linear", "up": "Linear"})
    assert names(matched(swapped, b, {"Net": {"up": "w"}}), swapped, b) == {"": "", "up": "w"}


def test_what_is_inside_a_module_that_lost_its_place_is_lost_too() -> None:
    a = tree({"": "Net", "w": "MLP", "w.x": "Linear", "up": "MLP"})
    b = tree({"": "Net", "w": "MLP", "w.x": "Linear"})
    found = matched(a, b, {"Net": {"up": "w"}})
    assert names(found, a, b) == {"": "", "up": "w"}
    assert left(found, a, b) == (["w", "w.x"], ["w.x"])


# Wrappers

WRAPPINGS = {
    "nothing": [],
    "DDP": [("DistributedDataParallel", "module")],
    "list of one": [("list", "0")],
    "list, DDP, Float16Module": [("list", "0"), ("DistributedDataParallel", "module"), ("Float16Module", "module")],
    "compiled": [("OptimizedModule", "_orig_mod")],
    "DDP, compiled": [("DistributedDataParallel", "module"), ("OptimizedModule", "_orig_mod")],
    "fleet": [("PipelineParallel", "_layers")],
}


def wrapped(inner: Tree, wrappers: list[tuple[str, str]]) -> tuple[Tree, str]:
    """Put wrappers around a tree; return it with the prefix that all its paths get."""
    classes, prefix = {}, ""
    for class_name, name in wrappers:
        classes[prefix] = class_name
        prefix = f"{prefix}.{name}" if prefix else name
    for module in inner.modules:
        classes[".".join(part for part in (prefix, module.path) if part)] = module.class_name
    return tree(classes), prefix


@pytest.mark.parametrize("around_a", WRAPPINGS)
@pytest.mark.parametrize("around_b", WRAPPINGS)
@pytest.mark.parametrize("sections", [None, FROM_GPT, FROM_LLAMA], ids=["same path", "from A", "from B"])
def test_wrappers_on_either_side_change_nothing(sections: Sections | None, around_a: str, around_b: str) -> None:
    inner_b = LLAMA if sections else GPT
    a, prefix_a = wrapped(GPT, WRAPPINGS[around_a])
    b, prefix_b = wrapped(inner_b, WRAPPINGS[around_b])
    found = matched(a, b, sections)
    inside = {
        pair_a.removeprefix(prefix_a).lstrip("."): pair_b.removeprefix(prefix_b).lstrip(".")
        for pair_a, pair_b in names(found, a, b).items()
        if a.wrapped(a.by_path[pair_a]) is None
    }
    assert inside == (PAIRS if sections else {module.path: module.path for module in GPT.modules})
    assert all(b.wrapped(pair.b) is None for pair in found.pairs if a.wrapped(pair.a) is None)
    assert not any(a.wrapped(i) for i in found.only_a) and not any(b.wrapped(i) for i in found.only_b)


def test_a_key_may_leave_wrappers_out_or_name_them() -> None:
    a, _ = wrapped(GPT, WRAPPINGS["list, DDP, Float16Module"])
    full = {"TopLayer": {"0.module.module.output": "lm_head"}}
    short = {"TopLayer": {"output": "lm_head"}}
    part = {"Float16Module": {"module.output": "lm_head"}}
    for sections in (full, short, part):
        assert names(matched(a, LLAMA, sections), a, LLAMA)["0.module.module.output"] == "lm_head"


@pytest.mark.parametrize("around", ["nothing", "DDP", "compiled"])
def test_a_target_may_name_a_wrapper_that_is_not_there(around: str) -> None:
    a, _ = wrapped(GPT, WRAPPINGS["list of one"])
    b, prefix = wrapped(LLAMA, WRAPPINGS[around])
    found = matched(a, b, {"TopLayer": {"0": "module"}, **FROM_GPT})
    assert names(found, a, b)["0.output"] == ".".join(part for part in (prefix, "lm_head") if part)
    assert found.warnings == ()


# The published trees and templates

MINDSPEED, LLAMAFACTORY = printed_tree("mindspeed-mm-qwen25vl.txt"), printed_tree("llamafactory-qwen25vl.txt")
VISION = "0.module.module.image_encoder"
TEXT = "0.module.module.text_decoder"
IN_BOTH = {
    "0.module.module": "module",
    VISION: "module.visual",
    f"{VISION}.encoder.patch_embed.proj": "module.visual.patch_embed.proj",
    f"{VISION}.encoder.rotary_pos_emb": "module.visual.rotary_pos_emb",
    f"{VISION}.encoder.blocks.layers.15": "module.visual.blocks.15",
    f"{VISION}.encoder.blocks.layers.7.input_layernorm": "module.visual.blocks.7.norm1",
    f"{VISION}.encoder.blocks.layers.7.pre_mlp_layernorm": "module.visual.blocks.7.norm2",
    f"{VISION}.encoder.blocks.layers.0.self_attention": "module.visual.blocks.0.attn",
    f"{VISION}.encoder.blocks.layers.0.self_attention.linear_qkv": "module.visual.blocks.0.attn.qkv",
    f"{VISION}.encoder.blocks.layers.0.self_attention.linear_proj": "module.visual.blocks.0.attn.proj",
    f"{VISION}.encoder.blocks.layers.3.mlp.linear_fc2": "module.visual.blocks.3.mlp.down_proj",
    f"{VISION}.projector": "module.visual.merger",
    f"{VISION}.projector.layernorm": "module.visual.merger.ln_q",
    f"{VISION}.projector.encoder.linear_fc1": "module.visual.merger.mlp.0",
    f"{VISION}.projector.encoder.linear_fc2": "module.visual.merger.mlp.2",
    TEXT: "module.model",
    f"{TEXT}.embedding.word_embeddings": "module.model.embed_tokens",
    f"{TEXT}.rotary_pos_emb": "module.model.rotary_emb",
    f"{TEXT}.decoder.layers.7": "module.model.layers.7",
    f"{TEXT}.decoder.layers.7.mlp": "module.model.layers.7.mlp",
    f"{TEXT}.decoder.final_layernorm": "module.model.norm",
}
FROM_MINDSPEED_ONLY = {f"{TEXT}.decoder.layers.2.mlp.linear_fc1": "module.model.layers.2.mlp.up_proj"}
FROM_LLAMAFACTORY_ONLY = {
    f"{TEXT}.output_layer": "module.lm_head",
    f"{TEXT}.decoder.layers.0.input_layernorm": "module.model.layers.0.input_layernorm",
    f"{TEXT}.decoder.layers.5.pre_mlp_layernorm": "module.model.layers.5.post_attention_layernorm",
    f"{TEXT}.decoder.layers.5.self_attention": "module.model.layers.5.self_attn",
    f"{TEXT}.decoder.layers.5.self_attention.linear_proj": "module.model.layers.5.self_attn.o_proj",
}


@pytest.mark.parametrize(
    ("file", "count", "some", "none"),
    [
        ("template-qwen2.5vl-mindspeed-mm.yaml", 193, IN_BOTH | FROM_MINDSPEED_ONLY, FROM_LLAMAFACTORY_ONLY),
        ("template-qwen2.5vl-llamafactory.yaml", 210, IN_BOTH | FROM_LLAMAFACTORY_ONLY, FROM_MINDSPEED_ONLY),
    ],
    ids=["from MindSpeed", "from LLaMA-Factory"],
)
def test_published_templates_on_the_published_trees(
    file: str, count: int, some: dict[str, str], none: dict[str, str]
) -> None:
    mapping = load_mapping(DATA / file)
    found = match(MINDSPEED, LLAMAFACTORY, mapping, nothing_known, nothing_known)
    other = match(LLAMAFACTORY, MINDSPEED, mapping, nothing_known, nothing_known)
    assert found.direction is not other.direction
    assert len(found.pairs) == count
    pairs = names(found, MINDSPEED, LLAMAFACTORY)
    assert {a: pairs.get(a) for a in some} == some
    assert not pairs.keys() & none.keys()
    assert {(p.b, p.a) for p in other.pairs} == {(p.a, p.b) for p in found.pairs}
    numbers = {a: b for a, b in pairs.items() if ".layers." in a}
    assert all(
        re.findall(r"layers\.(\d+)", a) == re.findall(r"(?:layers|blocks)\.(\d+)", b) for a, b in numbers.items()
    )


TEXT_LAYERS = f" for {TEXT}.decoder.layers.0 and 7 more"


def test_what_the_mindspeed_template_cannot_say_is_said() -> None:
    mapping = load_mapping(DATA / "template-qwen2.5vl-mindspeed-mm.yaml")
    found = match(MINDSPEED, LLAMAFACTORY, mapping, nothing_known, nothing_known)
    assert found.warnings == tuple(
        f"the mapping's line {line}: {rule} leads to nothing on the other side{where}{near}"
        for line, rule, where, near in [
            (16, "TransformerLayer: input_layernorm: norm1", TEXT_LAYERS, "; did you mean input_layernorm?"),
            (17, "TransformerLayer: self_attention: attn", TEXT_LAYERS, "; did you mean self_attn?"),
            (18, "TransformerLayer: pre_mlp_layernorm: norm2", TEXT_LAYERS, ""),
            (39, "MMGPTModel: output_layer: lm_head", "", "; module.lm_head is there, outside of module.model"),
        ]
    )


def test_the_llamafactory_template_fits_without_deepspeed_too() -> None:
    bare = tree({m.path.removeprefix("module").lstrip("."): m.class_name for m in LLAMAFACTORY.modules[1:]})
    for file, count in (("template-qwen2.5vl-mindspeed-mm.yaml", 193), ("template-qwen2.5vl-llamafactory.yaml", 210)):
        found = match(MINDSPEED, bare, load_mapping(DATA / file), nothing_known, nothing_known)
        assert sum(MINDSPEED.wrapped(pair.a) is None for pair in found.pairs) == count - 1
