"""The config.json of msprobe's guide for MindSpeed and LLaMA-Factory, with ``level: mix``, on both of its models."""

from __future__ import annotations

import json
import linecache
from collections.abc import Callable
from pathlib import Path

import pytest

import probe
from probe.answer.result import Verdict
from tests.programs import benchmark

DATA = Path(__file__).parents[2] / "data"
LIBRARY, TEMPLATE = "mindspeed-mm/qwen2.5-vl", DATA / "template-qwen2.5vl-llamafactory.yaml"
TEXT, VISION = ".text_decoder.decoder.layers", ".image_encoder.encoder.blocks.layers"
SDPA, CORE = "scaled_dot_product_attention", "self_attention.core_attention"
FAULTS = {
    "eps of a vision norm": ("visual.blocks.5.norm1/add.0", f"{VISION}.5.input_layernorm/add.0", "self.eps"),
    "vision residual": ("visual.blocks.9/add.1", f"{VISION}.9/add.1", "residual +"),
    "scale of scores": (f"visual.blocks.10.attn/{SDPA}.0", f"{VISION}.10.{CORE}/matmul.1", "@ v"),
    "rotary sections": ("model.layers.0.self_attn/split.0", f"{TEXT}.0.self_attention/split.1", "split("),
    "key heads of queries": ("model.layers.2.self_attn/repeat_interleave.0", f"{TEXT}.2.{CORE}/repeat.0", "repeat("),
}  # fmt: skip
"""by what is wrong in functional code: the operation in A and in B, and what stands in B's line"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("dump")
    config = {**json.loads((DATA / "msprobe-config.json").read_text()), "dump_path": str(folder)}
    (folder / "config.json").write_text(json.dumps(config))
    benchmark("reference_trees.document", str(folder / "config.json"), *FAULTS)
    return lambda name: next((folder / name).glob("*.h5"))


@pytest.mark.parametrize("mapping", [LIBRARY, TEMPLATE], ids=["library", "template"])
def test_operations_of_both_models_are_pairs_that_agree(recorded, mapping) -> None:
    found = probe.compare(recorded("llamafactory"), recorded("mindspeed"), mapping=mapping)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    there = {each.path for each in probe.open(recorded("llamafactory")).modules if each.is_operation}
    paired = {slot.path_a for slot in found.slots if slot.path_b and "/" in slot.path_a}
    assert len(paired) > 0.5 * len(there) > 400
    for layer in ("visual.blocks.0.attn", "model.layers.7.self_attn"):
        assert f"module.{layer}/{SDPA}.0" in paired


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_functional_code_is_named_at_the_operation(recorded, fault) -> None:
    in_a, in_b, code = FAULTS[fault]
    first = probe.compare(recorded("llamafactory"), recorded(fault), mapping=LIBRARY).first_divergence
    assert (first.a[0].path, first.b[0].path) == (f"module.{in_a}", f"0.module.module{in_b}")
    assert code in linecache.getline(first.b[0].file, first.b[0].line)
