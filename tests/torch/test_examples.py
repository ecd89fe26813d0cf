"""The demo's two models: equal mathematics, a mapping that fits both trees, faults where they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

REPO = Path(__file__).parents[2]
EXAMPLES = REPO / "docs" / "examples"
sys.path.insert(0, str(EXAMPLES))  # as Python does for a script in that folder

from convert_qwen2 import megatron_config, megatron_from, to_huggingface, to_megatron  # noqa: E402
from megatron_gpt import GPTModel, left_to_right  # noqa: E402
from train_hf import fixed_batch, next_token_loss, small_qwen2  # noqa: E402
from train_megatron import FAULTS  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Kind  # noqa: E402
from probe.mapping import library  # noqa: E402
from probe.records import Phase  # noqa: E402
from tests.limits import HANGS  # noqa: E402

EXPECTED_PAIRS = {
    "": "",
    "embedding.word_embeddings": "model.embed_tokens",
    "decoder.final_layernorm": "model.norm",
    "output_layer": "lm_head",
}
EXPECTED_PAIRS_PER_LAYER = {
    "": "",
    ".input_layernorm": ".input_layernorm",
    ".self_attention": ".self_attn",
    ".self_attention.linear_proj": ".self_attn.o_proj",
    ".pre_mlp_layernorm": ".post_attention_layernorm",
    ".mlp": ".mlp",
    ".mlp.linear_fc2": ".mlp.down_proj",
}


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / a.norm())


def run_megatron(model: GPTModel) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Loss and every layer's output of one forward pass."""
    outputs = []
    hooks = [
        layer.register_forward_hook(lambda module, args, output: outputs.append(output[0].detach()))
        for layer in model.decoder.layers
    ]
    tokens = fixed_batch()
    loss = next_token_loss(model(tokens, *left_to_right(tokens)), tokens)
    for hook in hooks:
        hook.remove()
    return loss, outputs


def test_conversion_is_complete_and_invertible() -> None:
    hf = small_qwen2()
    config = megatron_config(hf.config)
    back = to_huggingface(to_megatron(hf.state_dict(), config), config)
    assert back.keys() == hf.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in hf.state_dict().items())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_loss_and_gradients_agree(attention: str) -> None:
    hf = small_qwen2()
    hf.set_attn_implementation(attention)
    megatron = megatron_from(hf)
    tokens = fixed_batch()

    hf_logits = hf(input_ids=tokens).logits
    megatron_logits = megatron(tokens, *left_to_right(tokens))
    assert relative(hf_logits, megatron_logits) < 1e-5

    hf_loss, megatron_loss = next_token_loss(hf_logits, tokens), next_token_loss(megatron_logits, tokens)
    assert relative(hf_loss, megatron_loss) < 1e-6

    hf_loss.backward()
    megatron_loss.backward()
    gradients = {name: parameter.grad for name, parameter in megatron.named_parameters()}
    gradients = to_huggingface(gradients, megatron.config)
    errors = {name: relative(parameter.grad, gradients[name]) for name, parameter in hf.named_parameters()}
    assert max(errors.values()) < 1e-5, errors


def test_models_are_the_same_for_the_same_seed() -> None:
    first, second = small_qwen2().state_dict(), small_qwen2().state_dict()
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert all(tensor.std() > 0 for tensor in first.values())  # no constant bias or norm


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_starts_in_its_layer(fault: str) -> None:
    clean, faulty = megatron_from(small_qwen2()), megatron_from(small_qwen2())
    FAULTS[fault](faulty.decoder.layers[3])
    clean_loss, clean_outputs = run_megatron(clean)
    faulty_loss, faulty_outputs = run_megatron(faulty)
    errors = [relative(a, b) for a, b in zip(clean_outputs, faulty_outputs, strict=True)]
    assert errors[:3] == [0, 0, 0]
    if fault != "grad":
        assert errors[3] > 1e-6
        return
    assert errors[3:] == [0, 0, 0]
    clean_loss.backward()
    faulty_loss.backward()
    differ = {
        name
        for (name, a), b in zip(clean.named_parameters(), faulty.parameters(), strict=True)
        if not torch.equal(a.grad, b.grad)
    }
    assert differ == {"decoder.layers.3.pre_mlp_layernorm.weight"}


def translate(path: str, sections: dict[str, dict[str, str]], classes: dict[str, str]) -> str:
    """The path on the other side, by the published format's rule, written down as plainly as possible."""
    walked: list[str] = []
    rest = path.split(".") if path else []
    translated: list[str] = []
    while rest:
        section = sections.get(classes[".".join(walked)], {})
        keys = [key.split(".") for key in section]
        fitting = [key for key in keys if key == rest[: len(key)]]
        key = max(fitting, key=len, default=rest[:1])
        translated += section.get(".".join(key), key[0]).split(".")
        walked, rest = walked + key, rest[len(key) :]
    return ".".join(translated)


def test_mapping_pairs_what_corresponds_and_nothing_else() -> None:
    hf = small_qwen2()
    megatron = megatron_from(hf)
    classes = {path: type(module).__name__ for path, module in megatron.named_modules()}
    written = yaml.safe_load((REPO / "layer_mappings" / "megatron-core" / "qwen2.yaml").read_text())
    del written["ignore"]  # is for another layer spec
    assert written.keys() <= set(classes.values())
    plain = {name: {key: to for key, to in section.items() if isinstance(to, str)} for name, section in written.items()}

    hf_modules = dict(hf.named_modules())
    pairs = {path: translate(path, plain, classes) for path in classes}
    pairs = {path: other for path, other in pairs.items() if other in hf_modules}
    expected = dict(EXPECTED_PAIRS) | {"decoder.layers": "model.layers"}
    for n in range(6):
        for ours, theirs in EXPECTED_PAIRS_PER_LAYER.items():
            expected[f"decoder.layers.{n}{ours}"] = f"model.layers.{n}{theirs}"
    assert pairs == expected


def test_scripts_write_recordings_and_agree_on_the_loss(tmp_path: Path) -> None:
    printed = []
    for script, out in [("train_hf.py", "a.h5"), ("train_megatron.py", "b.h5")]:
        command = [sys.executable, str(EXAMPLES / script), "--out", str(tmp_path / out), "--steps", "2"]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=HANGS)
        assert finished.returncode == 0, finished.stderr
        assert (tmp_path / out).exists()
        printed.append([float(line.split()[-1]) for line in finished.stdout.splitlines() if "loss" in line])
    assert printed[0] == pytest.approx(printed[1], rel=1e-5)
    assert len(printed[0]) == 2


def record(folder: Path, script: str, *more: str) -> Path:
    command = [sys.executable, EXAMPLES / f"train_{script}.py", "--task", "tensor", "--out", folder / f"{script}.h5"]
    subprocess.run([*map(str, command), "--steps", "1", *more], check=True, capture_output=True)
    return folder / f"{script}.h5"


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("hf"), "hf")


def test_what_one_side_computes_without_a_module_is_not_called_missing(hf: Path, tmp_path: Path) -> None:
    a, b = hf, record(tmp_path, "megatron", "--fault", "gelu", "--fault-layer", "3")
    first = probe.compare(a, b, "megatron-core/qwen2").first_divergence
    hint = "what B computes in the place of this SiLUActivation is not the same: look at it, and at its settings"
    assert first is not None and (first.phase, first.kind, first.hint) == (Phase.FORWARD, Kind.INTRODUCED, hint)
    assert first.a[0].path == "model.layers.3.mlp.act_fn"


def test_a_module_of_one_side_whose_input_was_not_compared_is_not_blamed_alone(hf: Path, tmp_path: Path) -> None:
    """What lies before it in the same code, such as rotary embeddings, may be wrong as well."""
    a, b = hf, record(tmp_path, "megatron", "--fault", "mask", "--fault-layer", "3")
    first = probe.compare(a, b, "megatron-core/qwen2").first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.FORWARD, Kind.INTRODUCED)
    assert (first.a[0].path, first.b[0].path) == ("model.layers.3.self_attn", "decoder.layers.3.self_attention")
    text = "it is made between linear_qkv and linear_proj; not compared there: decoder.layers.3.self_attention.core_attention"
    assert first.evidence[1].startswith(text) and first.confidence < 0.9


def test_what_was_not_compared_is_nearer_than_what_the_whole_model_is_not_given(hf: Path, tmp_path: Path) -> None:
    """B gets two more arguments; without a pair for the faulty norm, its layer is named, and that it was not compared."""
    a, b = hf, record(tmp_path, "megatron", "--fault", "eps", "--fault-layer", "3")
    lines = library()["megatron-core/qwen2"].read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "map.yaml").write_text("".join(line for line in lines if "pre_mlp_layernorm: post" not in line))
    found = probe.compare(a, b, tmp_path / "map.yaml", min_confidence=1)
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "model.layers.3")
    assert "not compared on the way: model.layers.3.post_attention_layernorm" in first.evidence
