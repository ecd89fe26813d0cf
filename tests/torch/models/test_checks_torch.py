"""The checks of one side on models of transformers, and of mappings for lists of models: a NaN in attention, labels and masks, decay groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner
from torch import nn
from transformers import BertConfig, BertForMaskedLM, Qwen2Config, Qwen2ForCausalLM

import probe
from probe.answer.acceptance import Decision
from probe.answer.presets import Scope
from probe.answer.result import Verdict
from probe.checks.data import check_data
from probe.checks.initial import check_init
from probe.checks.outcome import Status
from probe.checks.overflow import check_overflow
from probe.checks.overflow.birth import Origin
from probe.checks.weights import check_weights
from probe.commands.map_commands import map_group
from probe.records import Phase
from tests.cli.running import run as run_command
from tests.published.printing import node_of, text_of
from tests.published.trees import DATA
from tests.torch.training import train_scaled

# ---- The checks of one side on models of transformers: a NaN in attention, labels and masks with a tokenizer, wrong decay groups.

WORDS = ["<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(97))]


def qwen(seed: int = 0, dtype: torch.dtype = torch.float32, **changed: Any) -> torch.nn.Module:
    torch.manual_seed(seed)
    settings = {
        "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "attn_implementation": "eager", "tie_word_embeddings": False,
    }  # fmt: skip
    return Qwen2ForCausalLM(Qwen2Config(**{**settings, **changed})).to(dtype)


def ids() -> torch.Tensor:
    found = torch.randint(3, len(WORDS), (3, 10), generator=torch.Generator().manual_seed(1))
    found[:, 0] = 1
    found[0, 7:], found[2, 5:] = 0, 0
    return found


def recorded(
    path: Path, model: torch.nn.Module, *, task: str = "statistics", labels: torch.Tensor | None = None
) -> Path:
    tokens = ids()
    labels = tokens.masked_fill(tokens == 0, -100) if labels is None else labels
    model.zero_grad()
    with probe.capture(model, path, task=task):
        loss = model(input_ids=tokens, attention_mask=(tokens != 0).long(), labels=labels).loss
        loss.backward()
        probe.step(loss=loss)
    return path


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_nan_that_is_born_in_the_third_layer_s_attention(tmp_path: Path, implementation: str) -> None:
    """Queries and keys are so large that their products overflow in float16, as they do without a scale."""
    model = qwen(dtype=torch.float16, attn_implementation=implementation)
    attention = model.model.layers[2].self_attn
    with torch.no_grad():
        for layer in (attention.q_proj, attention.k_proj):
            layer.weight *= 4000
    if implementation == "sdpa":  # it multiplies in float32, where these products are finite
        attention.scaling = float("inf")
    found = check_overflow(recorded(tmp_path / "a.h5", model))
    birth = found.birth
    assert found.status is Status.FOUND and birth is not None and birth.first is not None
    assert (birth.origin, birth.path, birth.step) == (Origin.CODE, "model.layers.2.self_attn", 0)
    assert (birth.first.path, birth.first.role.label) == (
        "model.layers.2.self_attn.o_proj",
        "input",
    ) and birth.first.nan > 0
    assert {each.path.rpartition(".")[2] for each in birth.made_from if each.role.label == "output"} == {"q_proj", "k_proj", "v_proj"}  # fmt: skip
    assert birth.last_finite is not None and birth.last_finite.path.startswith("model.layers.2.self_attn")
    assert found.advice is not None and found.advice.code == "narrow-dtype-overflows"
    result = run_command("check", "overflow", tmp_path / "a.h5")
    assert result.exit_code == 1 and "NaN is born in the code of model.layers.2.self_attn" in " ".join(
        result.stdout.split()
    )


def test_a_step_that_a_loss_scaler_skips_is_said(tmp_path: Path) -> None:
    found = check_overflow(train_scaled(tmp_path / "a.h5", "statistics"))
    assert found.birth is not None and (found.birth.step, found.birth.phase, found.birth.is_skipped) == (
        0,
        Phase.BACKWARD,
        True,
    )
    assert "as a loss scaler does" in str(found)


def test_the_same_model_without_the_fault(tmp_path: Path) -> None:
    assert check_overflow(recorded(tmp_path / "a.h5", qwen())).status is Status.CLEAN


def tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    wrapped.save_pretrained(folder)
    return folder


def test_labels_that_are_shifted_twice(tmp_path: Path) -> None:
    tokens = ids()
    right = tokens.masked_fill(tokens == 0, -100)
    twice = torch.cat([right[:, 1:], torch.full((3, 1), -100)], dim=1)
    assert check_data(recorded(tmp_path / "a.h5", qwen(), task="tensor")).status is Status.CLEAN
    found = check_data(recorded(tmp_path / "b.h5", qwen(), task="tensor", labels=twice))
    (said,) = found.found
    assert said.code == "labels-shifted" and said.facts["is_wrong"] and said.facts["habit"] == "the model"


def test_samples_as_text_and_the_tokenizer_s_special_ids(tmp_path: Path) -> None:
    folder = tokenizer(tmp_path / "tokenizer")
    path = recorded(tmp_path / "a.h5", qwen(), task="tensor")
    found = check_data(path, tokenizer=folder)
    assert found.status is Status.CLEAN
    assert found.samples[0].text.split() == [WORDS[token] for token in ids()[0].tolist()]
    other = recorded(tmp_path / "b.h5", qwen(eos_token_id=3, vocab_size=98), task="tensor")
    assert {note.code for note in check_data(other, tokenizer=folder).found} == {
        "special-ids-of-tokenizer",
        "tokenizer-too-large",
    }


def test_initialisations_of_transformers(tmp_path: Path) -> None:
    a = recorded(tmp_path / "a.h5", qwen(1), task="tensor")
    assert check_init(a, recorded(tmp_path / "b.h5", qwen(2), task="tensor")).status is Status.CLEAN
    other = qwen(3)
    torch.nn.init.kaiming_uniform_(other.model.layers[1].mlp.up_proj.weight, a=5**0.5)
    found = check_init(a, recorded(tmp_path / "c.h5", other, task="tensor"))
    (differing,) = found.differing
    assert differing.name_a == "model.layers.1.mlp.up_proj.weight"
    assert differing.like_a == "normal(0, 0.02)" and differing.like_b.startswith("uniform ±1/√fan_in (PyTorch's")


def trained(path: Path, *, order: int, decay_all: bool = False) -> Path:
    """Train a small BERT with AdamW; biases and norms decay too where somebody forgot their group."""
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ))  # fmt: skip
    plain = [each for name, each in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    others = [each for each in model.parameters() if all(each is not other for other in plain)]
    groups = [{"params": others, "weight_decay": 0.5}, {"params": plain, "weight_decay": 0.5 if decay_all else 0.0}]
    optimizer, data = (
        torch.optim.AdamW(groups, lr=3e-3),
        torch.randint(100, (64, 12), generator=torch.Generator().manual_seed(5)),
    )
    generator = torch.Generator().manual_seed(order)
    for _ in range(80):
        batch = data[torch.randint(64, (8,), generator=generator)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), path)
    return path


def test_decay_of_biases_and_norms_shows_in_trained_weights(tmp_path: Path) -> None:
    a = trained(tmp_path / "a.pt", order=0)
    assert check_weights(a, trained(tmp_path / "b.pt", order=1)).status is Status.CLEAN
    found = check_weights(a, trained(tmp_path / "c.pt", order=1, decay_all=True))
    groups = {note.facts["kind"]: note.facts["is_smaller"] for note in found.found if note.code == "kind-of-other-size"}
    assert groups.get("norm weights") is True and set(groups.values()) == {True}


def test_an_acceptance_table_finds_logits_and_loss_of_transformers(tmp_path: Path) -> None:
    """The model returns its loss beside its logits; another attention kernel rounds otherwise, another eps is beyond the bound."""
    a = recorded(tmp_path / "a.h5", qwen(), task="tensor")
    answer = probe.compare(
        a, recorded(tmp_path / "b.h5", qwen(attn_implementation="sdpa"), task="tensor"), preset="paddlenlp/qwen2-0.5b"
    )
    assert answer.acceptance is not None and answer.acceptance.decision is Decision.ACCEPTED
    rows = {each.item.scope: each for each in answer.acceptance.items}
    logits = rows[Scope.LOGITS].where
    assert logits is not None and (logits.path_a, logits.slot_a) == ("", "logits") and rows[Scope.LOSS].judged == 2
    other = recorded(tmp_path / "c.h5", qwen(rms_norm_eps=1e-3), task="tensor")
    refused = probe.compare(a, other, preset="paddlenlp/qwen2-0.5b").acceptance
    assert refused is not None and refused.decision is Decision.NOT_ACCEPTED


# ---- Mappings for lists of models, mappings of the library for models that lack what they are for, packed weights in the tree.


def two_layers(first: str, second: str) -> nn.Module:
    model = nn.Sequential()
    model.add_module(first, nn.Linear(4, 8))
    model.add_module(second, nn.Linear(8, 4))
    return model


class Packed(nn.Module):
    """Queries, keys and values of one layer, or of three; in the middle of the model."""

    def __init__(self, packed: bool, faulty: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = [nn.Linear(8, 8, bias=False) for _ in range(3)]
        self.packed, self.out = packed, nn.Linear(8, 8, bias=False)
        if packed:
            weights = [each.weight.data * (1.01 if faulty and n == 1 else 1.0) for n, each in enumerate(parts)]
            self.qkv = nn.Linear(8, 24, bias=False)
            self.qkv.weight.data = torch.cat(weights)
        else:
            self.query, self.key, self.value = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1) if self.packed else (self.query(x), self.key(x), self.value(x))
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


def record(path: Path, model: nn.Module | list[nn.Module], width: int = 4) -> Path:
    torch.manual_seed(1)
    x = torch.randn(2, 3, width)
    with probe.capture(model, path, task="tensor", steps=[0]):
        for each in model if isinstance(model, list) else [model]:
            x = each(x)
        loss = x.square().mean()
        loss.backward()
        probe.step(loss=loss.item())
    return path


def check(*arguments: str | Path) -> str:
    return CliRunner().invoke(map_group, ["check", *map(str, arguments)], catch_exceptions=False).output


def test_models_of_a_list_are_named_by_their_numbers(tmp_path: Path) -> None:
    """A key of a mapping names each of them: {i} is for what is repeated inside."""
    a = record(tmp_path / "a.h5", [two_layers("a", "b"), two_layers("a", "b")])
    b = record(tmp_path / "b.h5", [two_layers("first", "second"), two_layers("first", "second")])
    (tmp_path / "map.yaml").write_text("Sequential:\n  a: first\n", encoding="utf-8")
    said = check(tmp_path / "map.yaml", a, b)
    assert "{i}" not in said and "0.b (Linear)   perhaps 0.second" in said and "1.b (Linear)   perhaps 1.second" in said


def test_sections_of_the_library_may_fit_nothing(tmp_path: Path) -> None:
    files = [record(tmp_path / f"{name}.h5", two_layers("a", "b")) for name in "ab"]
    assert not [text for text in probe.compare(*files, "torch/paddle").warnings if "torch/paddle" in text]
    with pytest.raises(probe.errors.MappingError, match="TransformerDecoderLayer: no module is of this class"):
        probe.compare(*files, {"TransformerDecoderLayer": {"multihead_attn": "cross_attn"}})


@pytest.mark.xfail(strict=True, reason="which part of a packed weight is wrong is not told")
def test_the_tree_marks_the_part_of_a_packed_weight_that_is_wrong(tmp_path: Path) -> None:
    root = []
    for name in "ab":
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 8), Packed(name == "b", faulty=True))
        root.append(record(tmp_path / f"{name}.h5", model, 8))
    found = probe.compare(*root, {"Packed": {"qkv": ["query", "key", "value"]}})
    assert found.first_divergence.agreeing == ("1.query", "1.value")
    drawn = {line.split()[1]: line for line in str(found).split("Where it lies")[1].splitlines() if "Linear" in line}
    assert "✗ wrong, the first" in drawn["key"]
    assert all("✓ agrees" in drawn[name] for name in ("query", "value"))


# ---- The trees in ``tests/skeletons`` that the ready-made mappings are proven on are those that the packages really build.

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


# ---- A mixture of experts in 16 bits: tokens that both route alike are judged from values; statistics name what decides.


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_tokens_that_rounding_routes_otherwise(task: str, tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, attn_implementation="eager",
    )  # fmt: skip
    tokens = torch.randint(0, 64, (4, 64), generator=torch.Generator().manual_seed(1))
    for name, dtype in (("a", torch.float32), ("b", torch.bfloat16)):
        torch.manual_seed(0)
        model = transformers.Qwen3MoeForCausalLM(config).to(dtype)
        with probe.capture(model, tmp_path / f"{name}.h5", task=task), torch.no_grad():
            model(input_ids=tokens, use_cache=False)
            probe.step()
    found = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    if task == "statistics":
        assert found.verdict is Verdict.UNDECIDED and "probe replay" in str(found)
    else:
        (said,) = [note for note in found.notes if note.code == "choices-flipped"]
        assert "mlp.gate: " in str(said) and "choices differ, 0 by more than the margin of their scores" in str(said)
        assert found.verdict is Verdict.ALIGNED, str(found)


class Experts(nn.Module):
    """Experts that are told the choices, or choose by the scores."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(8, 32, 32) / 6), scale

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        at = chosen if self.scale is None else chosen.topk(2).indices
        return (self.scale or 1.0) * torch.einsum("th,tkhi->ti", x, self.weight[at])


class Mixture(nn.Module):
    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.experts, self.norm = nn.Linear(32, 8), Experts(scale), nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x)
        return self.norm(x + self.experts(x, scores.topk(2).indices if self.experts.scale is None else scores))


def test_what_experts_return_is_not_judged_where_one_side_alone_shows_their_choices(tmp_path: Path) -> None:
    x = torch.randn(256, 32)
    for name, model in (("a", Mixture()), ("b", Mixture(1.4))):
        with probe.capture(model.to(torch.bfloat16), tmp_path / f"{name}.h5", task="tensor"), torch.no_grad():
            model(x.to(torch.bfloat16))
            probe.step()
    assert probe.compare(tmp_path / "a.h5", tmp_path / "b.h5").verdict is Verdict.UNDECIDED
