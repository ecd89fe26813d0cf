"""The two printed models of msprobe's documentation, run: right pairs agree, rows in another order are a layout or a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from benchmarks.reference_trees.converter import mindspeed_of  # noqa: E402
from benchmarks.reference_trees.faults import FAULTS, Fault, plant  # noqa: E402
from benchmarks.reference_trees.llamafactory import llamafactory  # noqa: E402
from benchmarks.reference_trees.mindspeed import mindspeed  # noqa: E402
from benchmarks.reference_trees.sizes import GRIDS, IMAGE, Sizes, make_batch  # noqa: E402
from benchmarks.reference_trees.training import record  # noqa: E402
from benchmarks.reference_trees.trials import names  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.comparison.run import Comparison  # noqa: E402
from probe.structure.printed import read_printed  # noqa: E402

DATA = Path(__file__).parents[1] / "data"
FEW = Sizes(vision_layers=4, text_layers=2, full_attention=(1, 3), patch=4)
LIBRARY = "mindspeed-mm/qwen2.5-vl"
QKV = "visual.blocks.{}.attn.qkv"


@pytest.mark.parametrize("name", ["mindspeed-mm", "llamafactory"])
def test_the_models_are_built_as_they_are_printed(name: str) -> None:
    model: Any = mindspeed(Sizes()) if name == "mindspeed-mm" else llamafactory(Sizes())
    file = f"{name}-qwen25vl.txt"
    printed = read_printed((DATA / file).read_text(encoding="utf-8"), file).modules
    built = read_printed(str(model), "print").modules
    assert [(m.path, m.class_name) for m in built] == [(m.path, m.class_name) for m in printed]
    assert len(built) == {"mindspeed-mm": 432 + 1, "llamafactory": 307}[name]  # and the list that holds the model


def test_the_model_computes_what_that_of_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("transformers 5 has other names than 4")
    s = FEW
    text = {
        "vocab_size": s.vocabulary, "hidden_size": s.width, "intermediate_size": s.hidden, "num_hidden_layers": s.text_layers,
        "num_attention_heads": s.heads, "num_key_value_heads": s.groups, "rms_norm_eps": s.eps, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": s.text_theta, "mrope_section": list(s.sections)},
    }  # fmt: skip
    vision = {
        "depth": s.vision_layers, "hidden_size": s.vision_width, "intermediate_size": s.vision_hidden, "num_heads": s.vision_heads,
        "patch_size": s.patch, "temporal_patch_size": s.frames, "spatial_merge_size": s.merge, "out_hidden_size": s.width,
        "window_size": s.window * s.merge * s.patch, "fullatt_block_indexes": list(s.full_attention), "hidden_act": "silu",
    }  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE, tie_word_embeddings=False
    )
    theirs = transformers.Qwen2_5_VLForConditionalGeneration(config).eval()
    mine = llamafactory(s)
    state = mine.module.state_dict()
    renamed = {
        name.replace("visual.", "model.visual.", 1) if name.startswith("visual.") else
        name.replace("model.", "model.language_model.", 1): value
        for name, value in state.items()
    }  # fmt: skip
    left = theirs.load_state_dict(renamed, strict=False)
    assert not left.unexpected_keys and not left.missing_keys
    batch = make_batch(s, 0)
    grids = torch.tensor([(1, *grid) for grid in GRIDS])
    with torch.no_grad():
        found = theirs(
            input_ids=batch.tokens, pixel_values=batch.pixels, image_grid_thw=grids, position_ids=batch.positions,
            use_cache=False,
        ).logits  # fmt: skip
        torch.testing.assert_close(mine(batch), found, rtol=1e-4, atol=1e-4)


class Pairs:
    """Recordings of small models, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def compared(self, task: str, mapping: Any = None, *, fault: Fault | None = None, **how: Any) -> Comparison:
        """Compare LLaMA-Factory's recording with MindSpeed-MM's."""
        a = self.folder / f"a-{task}.h5"
        if not a.exists():
            record(a, llamafactory(FEW), FEW, task)
        model = mindspeed_of(llamafactory(FEW), FEW, **how)
        if fault is not None:
            plant(model[0], fault)
        b = self.folder / f"b-{task}-{len(list(self.folder.iterdir()))}.h5"
        return probe.compare(a, record(b, model, FEW, task, **(fault.settings if fault else {})), mapping=mapping)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("pairs"))


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("mapping", [None, LIBRARY])
def test_q_k_and_v_head_by_head_are_a_layout(pairs: Pairs, mapping: str | None, task: str) -> None:
    found = pairs.compared(task, mapping)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.doubts)
    said = [text for text in found.warnings if "hold the same rows in another order" in text]
    assert len(said) == 1 and "(3 parts in 4 groups in B, one after the other in A)" in said[0]
    if mapping:
        assert f"{LIBRARY}, line 51: Qwen2vlSelfAttention: linear_qkv: groups: neither recording's model_config has " \
               "num_query_groups; the weights say 2" in found.warnings  # fmt: skip
    assert not any(
        slot.metrics.is_known and slot.metrics.rel_l2 > 1e-2 for slot in found.slots if slot.role.label == "param_grad"
    )


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("mapping", [None, LIBRARY])
def test_biases_that_callers_add_are_no_difference(pairs: Pairs, mapping: str | None, task: str) -> None:
    found = pairs.compared(task, mapping, skip_bias_add=True)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.doubts)


def test_a_mapping_says_it(pairs: Pairs) -> None:
    split = {"parts": 3, "groups": {"here": 1, "there": FEW.vision_heads}}
    sections = {"Qwen2_5_VLVisionSdpaAttention": {"qkv": {"to": "linear_qkv", "split": split}}}
    mapping = {
        "TopLayer": {"module": "0.module.module"},
        "Qwen2_5_VLForConditionalGeneration": {"visual": "image_encoder"},
        "Qwen2_5_VisionTransformerPretrainedModel": {"blocks": "encoder.blocks.layers"},
        "Qwen2_5_VLVisionBlock": {"attn": "self_attention"}, **sections,
    }  # fmt: skip
    found = pairs.compared("tensor", mapping)
    own = [slot for slot in found[f"module.{QKV.format(2)}"] if slot.role.label in ("param", "output")]
    assert own and all(slot.metrics.rel_l2 < 1e-4 for slot in own)
    assert not any("hold the same rows in another order" in text for text in found.warnings)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_rows_in_another_order_in_one_layer_are_a_fault(pairs: Pairs, task: str) -> None:
    def shuffle(model: Any) -> None:
        attention = model.image_encoder.encoder.blocks.layers[2].self_attention
        for weight in (attention.linear_qkv.weight, attention.linear_qkv.bias):
            weight.data = weight.data.unflatten(0, (attention.heads, 3, -1)).transpose(0, 1).flatten(0, 2)

    fault = Fault("order", shuffle, ("",), ("",), "init")
    first = pairs.compared(task, fault=fault).first_divergence
    assert first is not None and (first.phase.label, first.path) == ("init", f"module.{QKV.format(2)}")
    assert str(first.hint).startswith("the rows lie in A's module.visual.blocks.2.attn.qkv as in B's"), first.hint


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_rows_in_another_order_than_they_are_read_in_are_a_fault(pairs: Pairs, task: str) -> None:
    """The whole tower was converted otherwise than its attentions read it."""
    as_plain = Fault("", _read_by_head, ("",), ("",), "init")
    plain = pairs.compared(task, is_interleaved=False, fault=as_plain).first_divergence
    assert plain is not None and plain.path == "module.visual.blocks.0.attn"
    first = pairs.compared(task, fault=Fault("order", _lie_by_part, ("",), ("",), "init")).first_divergence
    assert first is not None and first.path == f"module.{QKV.format(0)}" and first.phase.label == "init"


def _read_by_head(model: Any) -> None:
    for layer in model.image_encoder.encoder.blocks.layers:
        layer.self_attention.is_interleaved = True


def _lie_by_part(model: Any) -> None:
    """Other orders than those that the attentions read: first all second halves of heads."""
    for layer in model.image_encoder.encoder.blocks.layers:
        for weight in (layer.self_attention.linear_qkv.weight, layer.self_attention.linear_qkv.bias):
            weight.data = weight.data.unflatten(0, (12, 2, -1)).transpose(0, 1).flatten(0, 2)


@pytest.mark.parametrize(
    ("name", "mapping"),
    [
        ("order of merged patches", LIBRARY), ("eps of the last norm", LIBRARY), ("no window", LIBRARY), ("text theta", LIBRARY),
        ("vision theta", None), ("text theta", None), ("output tied to the embedding", None),
    ],
)  # fmt: skip
def test_faults_of_both_towers_are_named(pairs: Pairs, name: str, mapping: str | None) -> None:
    fault = next(each for each in FAULTS if each.name == name)
    first = pairs.compared("statistics", mapping, fault=fault).first_divergence
    assert first is not None and names(fault, first.path, first.phase.label), first


def test_a_number_that_nothing_says_leaves_its_modules_open(tmp_path: Path) -> None:
    files = []
    for name in "ab":
        model: Any = llamafactory(FEW) if name == "a" else mindspeed_of(llamafactory(FEW), FEW)
        files.append(tmp_path / f"{name}.h5")
        with probe.capture(model, files[-1], task="statistics", phases=["forward"]):
            (model if name == "a" else model[0])(make_batch(FEW, 0))
            probe.step()
    found = probe.compare(*files, mapping=LIBRARY)
    (said,) = [text for text in found.warnings if "nor do the weights say it" in text]
    assert said.endswith(
        "0.module.module.text_decoder.decoder.layers.0.self_attention.linear_qkv and 1 more are not compared; write the number, or "
        "another key"
    )
    assert not found.divergences
    assert found["module.model.layers.1.self_attn.o_proj"] and "module.model.layers.1.self_attn.q_proj" in found.only_a
