"""docs/reference/mapping.md does what it says, and the schema for editors allows what probe does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from probe.errors import MappingError
from probe.mapping import library, library_folder, load_mapping
from probe.mapping.judging import Tolerance
from probe.mapping.parsing import parse_mapping
from probe.matching import Known, Matching, match
from probe.matching.checks.misshapen import misshapen
from probe.structure.tree import Tree
from tests.published.mapped import matched, with_parameters
from tests.published.trees import DATA, tree

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "mapping.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- map: (\w+) -->\n```yaml\n(.*?)```", PAGE, re.S))


def net(root: str, *modules: str) -> Tree:
    """Make a tree from ``path Class``; what lies between has a class of its own."""
    classes = {"": root}
    for module in modules:
        path, _, name = module.partition(" ")
        parts = path.split(".")
        for end in range(1, len(parts)):
            classes.setdefault(".".join(parts[:end]), "Part")
        classes[path] = name or "Part"
    return tree(classes)


def paired(name: str, a: Tree, b: Tree, config: dict[str, Any] | None = None) -> tuple[Matching, dict[str, str]]:
    """Apply an example of the page, from either side; return the matching and its pairs, without the root."""

    def nothing(_: int) -> frozenset[object]:
        return frozenset()

    mapping = parse_mapping(BLOCKS[name], name)
    sides = Known(a, config=config), Known(b)
    found, other = match(*sides, mapping, nothing, nothing), match(*sides[::-1], mapping, nothing, nothing)
    assert {(pair.a, pair.b) for pair in found.pairs} == {(pair.b, pair.a) for pair in other.pairs}
    assert found.warnings == other.warnings == ()
    return found, {a.path(pair.a): b.path(pair.b) for pair in found.pairs if pair.a}


def test_basics() -> None:
    a = net("GPT", "embedding.words", "decoder.layers.0 TransformerLayer", "decoder.layers.0.self_attention")
    b = net("Llama", "embed_tokens", "layers.0", "layers.0.self_attn")
    assert paired("basics", a, b)[1] == {
        "embedding.words": "embed_tokens", "decoder.layers": "layers", "decoder.layers.0": "layers.0",
        "decoder.layers.0.self_attention": "layers.0.self_attn",
    }  # fmt: skip


def test_paths() -> None:
    layer = "TransformerLayer"
    a = net(
        "VLM",
        f"vision.0 {layer}",
        "vision.0.self_attention",
        f"text.0 {layer}",
        "text.0.self_attention",
        "text.head.out",
    )
    b = net("VL", "vision.0.attn", "text.0.self_attn", "text.head.lm_head")
    pairs = paired("paths", a, b)[1]
    assert pairs["vision.0.self_attention"] == "vision.0.attn"
    assert pairs["text.0.self_attention"] == "text.0.self_attn"
    assert pairs["text.head.out"] == "text.head.lm_head"


def test_numbers() -> None:
    pairs = paired(
        "numbers", net("GPT", "decoder.layers.0", "decoder.layers.11"), net("B", "blocks.block0", "blocks.block11")
    )
    assert pairs[1] == {"decoder.layers.0": "blocks.block0", "decoder.layers.11": "blocks.block11"}


def test_counted() -> None:
    a = net("Net", "pipe PipelineLayer", "pipe.0", "pipe.1", "pipe.2", "stack HybridStack", *(
        f"stack.layers.{n}.{part}" for n, part in enumerate(("mixer", "mlp", "mixer", "mlp"))))  # fmt: skip
    b = net("Net", "pipe.model.embed_tokens", "pipe.model.layers.0", "pipe.model.layers.1", *(
        f"stack.layers.{n}.{part}" for n in (0, 1) for part in ("mamba", "feed_forward")))  # fmt: skip
    pairs = paired("counted", a, b)[1]
    assert (pairs["pipe.0"], pairs["pipe.2"]) == ("pipe.model.embed_tokens", "pipe.model.layers.1")
    assert pairs["stack.layers.3.mlp"] == "stack.layers.1.feed_forward"
    assert pairs["stack.layers.2.mixer"] == "stack.layers.1.mamba"


def test_several_for_one() -> None:
    a = net("L", "attn SelfAttention", "attn.linear_qkv", "mlp MLP", "mlp.linear_fc1")
    b = net("L", "attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    found, _ = paired("several", a, b, {"num_query_groups": 2})
    assert [(len(bundle.parts), bundle.groups) for bundle in found.bundles] == [(3, 2), (2, 1)]
    assert (found.only_a, found.only_b) == ((), ())


def test_several_of_this_side_for_one() -> None:
    a = net("L", "attn LlamaAttention", "attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp LlamaMLP", "mlp.gate_proj",
            "mlp.up_proj")  # fmt: skip
    found, _ = paired("several_here", a, net("L", "attn.linear_qkv", "mlp.linear_fc1"), {"num_key_value_heads": 2})
    assert [(each.side, len(each.parts), each.groups) for each in found.bundles] == [("A", 3, 2), ("A", 2, 1)]
    assert (found.only_a, found.only_b) == ((), ())


def test_several_in_one_on_both_sides() -> None:
    a = net("L", "one Attention", "one.linear_qkv", "two GroupedAttention", "two.query_key_value")
    b = net("L", "one.qkv", "two.qkv_proj")
    found, _ = paired("packed_on_both", a, b, {"num_attention_heads": 2, "num_query_groups": 2})
    assert [(each.side, len(each.parts), each.order) for each in found.bundles] == [
        ("B", 1, (0, 2, 4, 1, 3, 5)),
        ("B", 1, (0, 1, 2, 3, 8, 10, 4, 5, 6, 7, 9, 11)),
    ]
    assert (found.only_a, found.only_b) == ((), ())


def test_parameters() -> None:
    a = net("L", "norm MyNorm", "block MyBlock", "block.proj", "block.fc", "experts Experts")
    b = net(
        "L",
        "norm",
        "block.out_proj",
        "block.linear",
        *(f"experts.{i}.{n}_proj" for i in (0, 1) for n in ("gate", "up", "down")),
    )
    found, _ = paired("parameters", a, b)
    assert {(a.path(module), slot): (view.name, view.axes) for (module, slot), view in found.views_a.items()} == {
        ("norm", "gamma"): ("weight", ()), ("block.proj", "weight"): ("weight", (1, 0)),
        ("block.fc", "weight"): ("weight", (1, 0)), ("block.fc", "kernel"): ("weight", ()),
        ("experts", "down_proj"): ("down_proj", (0, 2, 1)),
    }  # fmt: skip
    assert [(len(bundle.parts), len(bundle.parts[0])) for bundle in found.weight_bundles] == [(2, 2), (2, 1)]


def test_parameters_from_this_side() -> None:
    a = net("L", "mlp SequentialMLP", *(f"mlp.local_experts.{i}.linear_fc{n}" for i in (0, 1) for n in (1, 2)),
            "te TEGroupedMLP", "te.linear_fc1")  # fmt: skip
    found, _ = paired("from", a, net("L", "mlp Experts", "te Experts"))
    assert [(each.side, each.whole, len(each.parts)) for each in found.weight_bundles] == [
        ("A", (1, "gate_up_proj"), 2), ("A", (1, "down_proj"), 2),
    ]  # fmt: skip
    assert [a.path(row[0][0]) for row in found.weight_bundles[0].parts] == [
        "mlp.local_experts.0.linear_fc1", "mlp.local_experts.1.linear_fc1",
    ]  # fmt: skip


def with_shapes(tree: Tree, **shapes: tuple[int, ...]) -> Known:
    return with_parameters(tree, {name.replace("__", "."): shape for name, shape in shapes.items()})


def of(name: str, a: Known, b: Known) -> Matching:
    """Apply an example of the page to sides of which the shapes are known."""
    found, other = matched(a, b, BLOCKS[name]), matched(b, a, BLOCKS[name])
    assert found.warnings == other.warnings == ()
    assert misshapen(found, a, b) == misshapen(other, b, a) == []
    return found


def test_stacked_weights_along_another_axis() -> None:
    tree = net("L", "experts StackedExperts")
    a = with_shapes(tree, experts__w1=(4, 5, 3), experts__w3=(4, 5, 3))
    found = of("stacked", a, with_shapes(net("L", "experts"), experts__gate_up_proj=(4, 10, 3)))
    assert [(each.axis, len(each.parts[0]), each.stacked) for each in found.weight_bundles] == [(1, 2, False)]


def test_the_same_elements_in_another_shape() -> None:
    a = net("L", "experts GroupedMLP", "patch PatchLinear", "patch.proj")
    b = net("L", "experts", "patch", "patch.projection")
    known = with_shapes(a, experts__weight2=(4 * 6, 5), patch__proj__weight=(48, 48))
    other = with_shapes(b, experts__down_proj=(4, 5, 6), patch__projection__weight=(48, 3, 4, 4))
    found = of("reshape", known, other)
    assert [each.shape for each in found.weight_bundles] == [(4, 6, 5), (48, 4, 4, 3)]
    picture = np.arange(48.0).reshape(3, 4, 4)  # patches whose channels come last
    kernel = np.random.default_rng(0).random((48, 3, 4, 4))
    linear = kernel.transpose(0, 2, 3, 1).reshape(48, 48)
    assert np.allclose(linear @ picture.transpose(1, 2, 0).ravel(), np.tensordot(kernel, picture, 3))


def test_axes_of_this_side_in_the_order_that_the_other_side_has() -> None:
    tree = net("L", "x X")
    known = with_shapes(tree, x__w=(4, 5, 3)), with_shapes(net("L", "x"), x__w=(3, 4, 5))
    text = "X: {params: {w: {to: w, permute: [2, 0, 1]}}}"
    assert "`permute: [2, 0, 1]` is for [h, w, c] here, [c, h, w] there" in PAGE
    assert misshapen(matched(*known, text), *known) == []


def test_a_weight_of_which_the_module_returns_something_else() -> None:
    a, b = net("OwnGemma2", "embedder", "norm"), net("G", "model.embed_tokens", "norm")
    found = of(
        "weights_alone", with_shapes(a, embedder__weight=(9, 4)), with_shapes(b, model__embed_tokens__weight=(9, 4))
    )
    assert {a.path(pair.a): b.path(pair.b) for pair in found.pairs} == {"": "", "norm": "norm"}
    assert [(a.path(each.whole[0]), b.path(each.parts[0][0][0])) for each in found.weight_bundles] == [
        ("embedder", "model.embed_tokens")
    ]


def test_modules_that_are_called_elsewhere() -> None:
    inside = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    b = net("T5", "shared", "encoder.embed_tokens", inside, "decoder.embed_tokens")
    pairs = paired("called_otherwise", net("OwnT5", "table", "positions.table"), b)[1]
    assert pairs == {"table": "shared", "positions.table": inside}


def test_a_module_that_returns_something_else_under_the_same_name() -> None:
    norms = ("input_layernorm", "post_attention_layernorm")
    parts = (*norms, "self_attn", "self_attn.o_proj", "mlp", "other")
    layer = [f"model.layers.0.{part}" for part in parts]
    tree = net("L", "model LlamaModel", "model.layers.0 LlamaDecoderLayer", *layer, "model.norm")
    weights = {f"model.layers.0.{name}.weight": (4,) for name in norms} | {"model.norm.weight": (4,)}
    known = with_parameters(tree, weights)
    found = of("other_output", known, known)
    assert {tree.path(pair.a) for pair in found.pairs} == {"", "model", "model.layers", *layer[2:5]}
    ignored = ["model.layers.0", *layer[:2], "model.layers.0.other", "model.norm"]
    assert [tree.path(i) for i in sorted(found.ignored_a)] == ignored
    assert sorted(f"{tree.path(each.whole[0])}.weight" for each in found.weight_bundles) == sorted(weights)


def test_parts_in_another_order() -> None:
    a = net("D", "norm AdaLayerNormContinuous", "norm.linear", "block Block", "block.qkv")
    found, _ = paired("exchanged", a, net("D", "norm.adaLN_modulation.1", "block.kvq"))
    assert [(a.path(each.whole), each.order) for each in found.bundles] == [
        ("norm.linear", (1, 0)), ("block.qkv", (1, 2, 0)),
    ]  # fmt: skip


def test_a_weight_that_is_a_norm_and_a_direction() -> None:
    a = with_parameters(
        net("W", "c Conv1d", "d Conv1d"), {"c.weight_g": (4, 1, 1), "c.weight_v": (4, 3, 2), "d.weight": (2,)}
    )
    parametrized = {f"c.parametrizations.weight.original{n}": shape for n, shape in ((0, (4, 1, 1)), (1, (4, 3, 2)))}
    b = with_parameters(net("W", "c.parametrizations.weight", "d"), {**parametrized, "d.weight": (2,)})
    found = of("weight_norm", a, b)
    assert not found.notes and len(found.weight_bundles) == 2


def test_rows_in_another_order() -> None:
    a, b = net("L", "attn Attention", "attn.wq", "attn.wk"), net("L", "attn.q_proj", "attn.k_proj")
    found, _ = paired("rotary", a, b, {"n_heads": 4, "n_kv_heads": 2})
    assert [(a.path(each.parts[0]), each.side, each.rotary) for each in found.bundles] == [
        ("attn.wq", "A", 4), ("attn.wk", "A", 2),
    ]  # fmt: skip


def test_for_some_models_only() -> None:
    b = net("L", "attn.o_proj", "attn.q_norm")
    for more in ((), ("attn.q_layernorm", "x IdentityOp")):
        found, pairs = paired("optional", net("L", "attn SelfAttention", "attn.linear_proj", *more), b)
        assert pairs["attn.linear_proj"] == "attn.o_proj" and bool(found.ignored_a) is bool(more)


def test_what_is_left_out() -> None:
    a, b = net("L", "rotary_emb", "up", "up.id Identity", "decoder.x"), net("L", "up")
    found, pairs = paired("ignore", a, b)
    assert pairs == {"up": "up"} and (found.only_a, found.only_b) == ((), ())


def test_tolerances_for_single_modules() -> None:
    (rule,) = parse_mapping(BLOCKS["rules"], "m").judging
    assert (rule.path, rule.tolerance) == ("model.layers.*.mlp", Tolerance(rtol=1e-3))


def test_every_example_is_tried_and_allowed_by_the_schema() -> None:
    assert set(BLOCKS) == {
        "basics",
        "paths",
        "numbers",
        "counted",
        "several",
        "several_here",
        "packed_on_both",
        "exchanged",
        "weight_norm",
        "parameters",
        "from",
        "reshape",
        "stacked",
        "weights_alone",
        "called_otherwise",
        "other_output",
        "rotary",
        "optional",
        "ignore",
        "rules",
    }
    for text in BLOCKS.values():
        assert not wrong(yaml.safe_load(text))


# The schema: a check of those of its words that it uses

FOLDER = library_folder()
assert FOLDER is not None
SCHEMA = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
KNOWN = {"$schema", "title", "description", "pattern", "definitions", "type", "properties", "additionalProperties", "required", "items",
         "minItems", "uniqueItems", "minimum", "anyOf", "allOf", "enum", "$ref"}  # fmt: skip


def wrong(value: Any, schema: Any = SCHEMA, at: str = "") -> list[str]:
    """Return what of a value a schema does not allow."""
    if schema is False:
        return [f"{at}: not known"]
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        return wrong(value, SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]], at)
    found = []
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(isinstance(value, TYPES[name]) and (name == "boolean" or value is not True) for name in types):
        return [f"{at}: no {types}"]
    if "anyOf" in schema and all(wrong(value, each, at) for each in schema["anyOf"]):
        found.append(f"{at}: none of several")
    found += [text for each in schema.get("allOf", ()) for text in wrong(value, each, at)]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: none of {schema['enum']}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        found.append(f"{at}: not {schema['pattern']}")
    if isinstance(value, dict):
        found += [f"{at}: no {name}" for name in schema.get("required", ()) if name not in value]
        for name, each in value.items():
            inner = schema.get("properties", {}).get(str(name), schema.get("additionalProperties", {}))
            found += wrong(each, inner, f"{at}.{name}")
    if isinstance(value, list):
        found += [f"{at}: too few"] * (len(value) < schema.get("minItems", 0))
        found += [f"{at}: twice"] * (
            schema.get("uniqueItems", False) and len({str(each) for each in value}) < len(value)
        )
        found += [text for n, each in enumerate(value) for text in wrong(each, schema.get("items", {}), f"{at}[{n}]")]
    if "minimum" in schema and isinstance(value, (int, float)) and value < schema["minimum"]:
        found.append(f"{at}: too small")
    return found


@pytest.mark.parametrize(
    "file", [*library().values(), *sorted(DATA.glob("template-*.yaml"))], ids=lambda file: file.stem
)
def test_mappings_are_what_the_schema_says(file: Path) -> None:
    load_mapping(file)
    assert not wrong(yaml.safe_load(file.read_text(encoding="utf-8")) or {})


@pytest.mark.parametrize(
    "text",
    [
        "A: [b]", "A: {b: null}", "A: {b: []}", "A: {b: [c, c]}", "A: {b: {split: {groups: 2}}}", "A: {b: {to: c, too: d}}",
        "A: {b: {to: [c, d], split: {groups: 0}}}", "A: {b: {to: [c, d], split: {axis: in}}}",
        "A: {params: {b: {to: [c, d], split: {axis: up}}}}", "A: {b: {to: c, transpose: 1}}", "A: {b: {to: c, permute: []}}",
        "A: {b: {from: c}}", "A: {b: {to: c, rotary: {heads: 2}}}", "A: {b: {to: c, rotary: {heads: 2, here: up}}}", "A: {'b{i}': 'c.{i-1}'}", "A: {'b{i}': 'c.{0*i}'}", "A: {b: {from: [c]}}", "A: {b: {to: c, permute: [0, 0]}}", "A: {params: {b: null}}", "ignore: a", "ignore: [[a]]", "A: b",
        "rules: [{rtol: 1}]", "rules: [{path: a, rtool: 1}]", "rules: [{path: a, rtol: 1, metric: l1}]",
    ],
)  # fmt: skip
def test_what_the_schema_refuses_probe_refuses(text: str) -> None:
    assert wrong(yaml.safe_load(text))
    with pytest.raises(MappingError):
        parse_mapping(text, "m")
