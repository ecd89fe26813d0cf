"""A trainer's forward against an inference engine's, and token-by-token decoding against one forward."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import probe
from probe.answer.comparison import Comparison
from tests.cli.running import run as run_command
from tests.torch import served as vllm

# ---- A trainer's forward against an inference engine's: tokens in one row, fused residual norms, merged linears, no gradients.

MAPPING = "vllm/qwen2"
NUMBERS = re.compile(r"\d[\d.,]*(e[-+]\d+)?×?")


def compared(folder: Path, spoil: Callable[[torch.nn.Module], object] = bool, *, requests: int = 1, task: str = "statistics") -> Comparison:  # fmt: skip
    """Record both sides of a prefill and compare them."""
    torch.manual_seed(0)
    trained, served = vllm.trained(), vllm.qwen2_of_vllm(requests)
    served.load_weights(trained.state_dict())
    spoil(served)
    ids = torch.randint(0, vllm.CONFIG.vocab_size, (requests, 9))
    with probe.capture(served, folder / "served.h5", task=task):
        vllm.served(served, ids)
        probe.step()
    with probe.capture(trained, folder / "trained.h5", task=task), torch.no_grad():
        trained(input_ids=ids, position_ids=torch.arange(9).repeat(requests, 1))
        probe.step()
    return probe.compare(folder / "served.h5", folder / "trained.h5", MAPPING)


@pytest.mark.parametrize(("requests", "task"), [(1, "statistics"), (1, "tensor"), (3, "tensor"), (3, "statistics")])
def test_a_clean_pair_is_aligned(tmp_path: Path, requests: int, task: str) -> None:
    answer = compared(tmp_path, requests=requests, task=task)
    assert answer.verdict == "aligned", answer
    assert answer.coverage.share == 1.0 and answer.inputs.different == answer.inputs.only_a == ()
    judged = {slot.path_a for slot in answer.slots if slot.verdict in ("equal", "noise")}
    assert {"model.norm", "lm_head", "model.layers.2.mlp.down_proj", "model.layers.1.self_attn.qkv_proj"} <= judged


def eps(model: torch.nn.Module) -> None:
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-3


def residual_lost(model: torch.nn.Module) -> None:
    norm = model.model.layers[2].input_layernorm
    plain = norm.forward
    norm.forward = lambda x, residual: (plain(x), x + residual)


def shifted_positions(model: torch.nn.Module) -> None:
    turn = model.model.layers[1].self_attn.rotary_emb
    plain = turn.forward
    turn.forward = lambda positions, query, key: (plain(positions + 1, query, key)[0], plain(positions, query, key)[1])


def sees_ahead(model: torch.nn.Module) -> None:
    model.model.layers[0].self_attn.attn.is_causal = False


def gelu(model: torch.nn.Module) -> None:
    model.model.layers[1].mlp.act_fn.forward = lambda x: torch.nn.functional.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]


def halves_swapped(model: torch.nn.Module) -> None:
    weight = model.model.layers[2].mlp.gate_up_proj.weight
    weight.data = weight.data.roll(len(weight) // 2, 0)


def keys_for_values(model: torch.nn.Module) -> None:
    attention = model.model.layers[0].self_attn
    query, key, value = attention.qkv_proj.weight.data.split(attention.parts)
    attention.qkv_proj.weight.data = torch.cat([query, value, key])


def another_head(model: torch.nn.Module) -> None:
    torch.nn.init.normal_(model.lm_head.weight)


FAULTS = {
    eps: "model.layers.1.post_attention_layernorm",
    residual_lost: "model.layers.2.input_layernorm",
    shifted_positions: "model.layers.1.self_attn",
    sees_ahead: "model.layers.0.self_attn",
    gelu: "model.layers.1.mlp",
    halves_swapped: "model.layers.2.mlp.gate_up_proj",
    keys_for_values: "model.layers.0.self_attn.qkv_proj",
    another_head: "lm_head",
}


@pytest.mark.parametrize(
    ("fault", "requests", "task"),
    [(fault, *((1, "statistics"), (1, "tensor"), (3, "tensor"))[number % 3]) for number, fault in enumerate(FAULTS)],
    ids=lambda each: each.__name__ if callable(each) else str(each),
)
def test_a_fault_of_the_engine_is_named_and_nothing_else(
    tmp_path: Path, fault: Callable[[torch.nn.Module], None], requests: int, task: str
) -> None:
    answer = compared(tmp_path, fault, requests=requests, task=task)
    place = FAULTS[fault]
    assert {found.a[0].path for found in answer.divergences} == {place}, answer


@pytest.mark.parametrize(
    ("fault", "task"),
    [
        *((fault, task) for fault in (bool, shifted_positions) for task in ("statistics", "tensor")),
        (eps, "tensor"),
        pytest.param(
            eps,
            "statistics",
            marks=pytest.mark.xfail(
                strict=True,
                reason="of calls that are one there is no sketch, so that a residual cannot be added to them",
            ),
        ),
    ],
)
def test_generating_is_compared_with_one_forward(
    tmp_path: Path, fault: Callable[[torch.nn.Module], None], task: str
) -> None:
    torch.manual_seed(0)
    trained, served = vllm.trained(), vllm.qwen2_of_vllm(1)
    served.load_weights(trained.state_dict())
    fault(served)
    ids = torch.randint(0, vllm.CONFIG.vocab_size, (9,))
    with probe.capture(served, tmp_path / "served.h5", task=task):
        vllm.generated(served, ids, 4)
        probe.step()
    with probe.capture(trained, tmp_path / "trained.h5", task=task), torch.no_grad():
        trained(input_ids=ids[None], position_ids=torch.arange(9)[None])
        probe.step()
    answer = probe.compare(tmp_path / "served.h5", tmp_path / "trained.h5", MAPPING)
    assert [found.path for found in answer.divergences[:1]] == ([FAULTS[fault]] if fault in FAULTS else []), answer
    assert answer.verdict == ("diverged" if fault in FAULTS else "aligned")
    assert answer.coverage.share == 1.0


def eight_bits(model: torch.nn.Module) -> None:
    """Keep keys and values in eight bits, which single tokens read and a prefill does not."""
    for layer in model.model.layers:
        attention, plain = layer.self_attn.attn, layer.self_attn.attn.forward

        def forward(query, key, value, attention=attention, plain=plain):
            if len(query) == 1:
                attention.seen = [
                    tuple(each.to(torch.float8_e4m3fn).float() for each in pair) for pair in attention.seen
                ]
            return plain(query, key, value)

        attention.forward = forward


def test_the_guide_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    trained, (engine, caching) = vllm.trained(), (vllm.qwen2_of_vllm(1) for _ in range(2))
    ids = torch.randint(0, vllm.CONFIG.vocab_size, (24,))
    for served, spoil in ((engine, shifted_positions), (caching, eight_bits)):
        served.load_weights(trained.state_dict())
        spoil(served)
    with probe.capture(engine, "engine.h5"):
        vllm.served(engine, ids[None])
        probe.step()
    with probe.capture(caching, "decoded.h5", task="tensor"):
        vllm.generated(caching, ids, 20)
        probe.step()
    with probe.capture(trained, "trainer.h5", task="tensor"), torch.no_grad():
        trained(input_ids=ids[None], position_ids=torch.arange(24)[None])
        probe.step()
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "inference.md").read_text(encoding="utf-8")
    shown = [each.partition("\n```")[0].partition("\n") for each in guide.split("$ probe-compare ")[1:]]
    assert len(shown) == 2
    for command, _, lines in shown:
        printed = run_command("compare", *command.split()).stdout
        for part in lines.split("  …\n"):
            assert NUMBERS.sub("#", part) in NUMBERS.sub("#", printed), printed


# ---- Token-by-token decoding with a cache of keys and values against one full forward: joined along the sequence.

CONFIG = transformers.Qwen2Config(
    vocab_size=48, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    attn_implementation="eager",
)  # fmt: skip
LENGTH = 8


def made() -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(CONFIG).eval()


@torch.no_grad()
def decoded(model: torch.nn.Module, ids: torch.Tensor, prompt: int, is_embedded: bool = False) -> None:
    """Run the first tokens together and the others one by one; their embeddings may be made out of probe's sight."""
    cache = transformers.DynamicCache(config=CONFIG)
    bounds = [0, *range(prompt, LENGTH + 1)]
    for first, last in zip(bounds[:-1], bounds[1:], strict=True):
        positions = torch.arange(first, last).expand(len(ids), -1)
        given = {"input_ids": ids[:, first:last]}
        if is_embedded:
            given = {"inputs_embeds": model.get_input_embeddings().weight[ids[:, first:last]]}
        model(**given, position_ids=positions, past_key_values=cache, use_cache=True)


def compared_decoding(
    folder: Path, spoil: Callable[[torch.nn.Module], object] = bool, *, prompt: int = 3, requests: int = 2, task: str = "statistics",
    is_embedded: bool = False,
) -> Comparison:  # fmt: skip
    ids = torch.randint(0, CONFIG.vocab_size, (requests, LENGTH), generator=torch.Generator().manual_seed(1))
    model = made()
    with probe.capture(model, folder / "full.h5", task=task), torch.no_grad():
        given = {"inputs_embeds": model.get_input_embeddings()(ids)} if is_embedded else {"input_ids": ids}
        model(**given, position_ids=torch.arange(LENGTH).expand(requests, -1))
        probe.step()
    model = made()
    spoil(model)
    with probe.capture(model, folder / "decoded.h5", task=task):
        decoded(model, ids, prompt, is_embedded)
        probe.step()
    return probe.compare(folder / "full.h5", folder / "decoded.h5")


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(
    ("prompt", "requests", "is_embedded"), [(1, 1, False), (3, 2, False), (3, 2, True), (7, 2, False)]
)
def test_clean_decoding_is_aligned(tmp_path: Path, prompt: int, requests: int, is_embedded: bool, task: str) -> None:
    answer = compared_decoding(tmp_path, prompt=prompt, requests=requests, task=task, is_embedded=is_embedded)
    assert answer.verdict == "aligned" and (is_embedded or answer.coverage.share == 1.0), answer
    assert answer["lm_head"].output[0].shape_b == (requests, LENGTH, CONFIG.vocab_size)
    (said,) = [note for note in answer.notes if note.code == "evaluations-joined"]
    assert said.facts["count"] == LENGTH - prompt + 1


def offset(model: torch.nn.Module) -> None:
    """Turn what is decoded by the position behind its own."""
    plain = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: plain(x, position_ids + (x.shape[1] == 1))


def old_keys(model: torch.nn.Module) -> None:
    """Let one layer see only the last four tokens of its cache."""
    layer = model.model.layers[1].self_attn
    plain = layer.forward

    def forward(
        hidden_states: torch.Tensor, *args: object, attention_mask: torch.Tensor | None = None, **more: object
    ) -> object:
        if hidden_states.shape[1] == 1:
            count = (
                more.get("cache", more.get("past_key_values")).get_seq_length(1) + 1
            )  # its name in older and newer releases
            attention_mask = torch.zeros(1, 1, 1, count)
            attention_mask[..., : max(0, count - 4)] = -torch.inf
        return plain(hidden_states, *args, attention_mask=attention_mask, **more)

    layer.forward = forward


def values_scaled(model: torch.nn.Module) -> None:
    """Let a linear be another one where a single token is given."""
    linear = model.model.layers[2].self_attn.v_proj
    plain = linear.forward
    linear.forward = lambda x: plain(x) * (1.01 if x.shape[1] == 1 else 1.0)


FAULTS_DECODING = {
    offset: "model.rotary_emb", old_keys: "model.layers.1.self_attn", values_scaled: "model.layers.2.self_attn.v_proj",
}  # fmt: skip


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("fault", FAULTS_DECODING, ids=lambda fault: fault.__name__)
def test_a_fault_of_decoding_is_named(tmp_path: Path, fault: Callable[[torch.nn.Module], None], task: str) -> None:
    answer = compared_decoding(tmp_path, fault, task=task)
    assert [found.path for found in answer.divergences] == [FAULTS_DECODING[fault]], answer


@pytest.mark.parametrize(("task", "other"), [("tensor", "order"), ("tensor", "tokens"), ("statistics", "tokens")])
def test_what_was_given_other_tokens_is_not_joined(tmp_path: Path, task: str, other: str) -> None:
    ids = torch.randint(0, CONFIG.vocab_size, (2, LENGTH))
    for name, given in (("full", ids), ("decoded", ids.flip(0) if other == "order" else (ids + 1) % CONFIG.vocab_size)):
        model = made()
        with probe.capture(model, tmp_path / f"{name}.h5", task=task):
            decoded(model, given, LENGTH if name == "full" else 3)
            probe.step()
    answer = probe.compare(tmp_path / "full.h5", tmp_path / "decoded.h5")
    assert answer.verdict == "diverged" and answer.first_divergence.kind == "inputs", answer


def test_nothing_is_decided_where_the_last_logits_alone_were_made(tmp_path: Path) -> None:
    """`generate` asks for the logits of the last token of each pass."""
    found = {}
    for task in ("tensor", "statistics"):
        for factor in (1.0, 1.5):
            model = made()
            plain = model.lm_head.forward
            model.lm_head.forward = lambda x, plain=plain, factor=factor: plain(x) * factor
            files = tmp_path / f"generated-{task}-{factor}.h5", tmp_path / f"full-{task}-{factor}.h5"
            with probe.capture(model, files[0], task=task):
                ids = model.generate(torch.tensor([[3, 1, 4, 1]]), max_new_tokens=5, do_sample=False)
                probe.step()
            model = made()
            with probe.capture(model, files[1], task=task), torch.no_grad():
                model(ids[:, :-1])
                probe.step()
            found[task, factor] = probe.compare(*files)
    assert {answer.verdict.value for answer in found.values()} == {"undecided"}  # parts of an output are not compared


def test_what_runs_in_one_pass_alone_is_compared(tmp_path: Path) -> None:
    class Encoded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.encoder, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.kept: torch.Tensor | None = None

        def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
            if other is not None:
                self.kept = self.encoder(other)
            return self.head(x + self.kept)

    x, other = torch.randn(1, 6, 4), torch.randn(1, 1, 4)
    for factor, wanted in ((1.0, None), (1.01, "encoder")):
        whole, parts = Encoded(), Encoded()
        plain = parts.encoder.forward
        parts.encoder.forward = lambda x, plain=plain, factor=factor: plain(x) * factor
        with probe.capture(whole, tmp_path / "whole.h5", overwrite=True), torch.no_grad():
            whole(x, other)
            probe.step()
        with probe.capture(parts, tmp_path / "parts.h5", overwrite=True), torch.no_grad():
            parts(x[:, :3], other)
            for at in range(3, 6):
                parts(x[:, at : at + 1])
            probe.step()
        answer = probe.compare(tmp_path / "whole.h5", tmp_path / "parts.h5")
        assert (answer.first_divergence and answer.first_divergence.path) == wanted, answer


class Tower(torch.nn.Module):
    """Works token by token, on [positions] as engines do, and on [requests, positions]."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = torch.nn.Embedding(48, 16), torch.nn.LayerNorm(16)
        self.inner, self.head, self.factor = torch.nn.Linear(16, 16), torch.nn.Linear(16, 48), factor

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.inner(self.norm(self.embed(ids)) * (self.factor if ids.shape[-1] == 1 else 1.0))
        return self.head(x)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_all_tokens_in_a_row_against_tokens_of_one_request(tmp_path: Path, factor: float, task: str) -> None:
    ids = torch.randint(0, 48, (LENGTH,), generator=torch.Generator().manual_seed(1))
    whole, parts = Tower(), Tower(factor)
    with probe.capture(whole, tmp_path / "row.h5", task=task), torch.no_grad():
        whole(ids)
        probe.step()
    with probe.capture(parts, tmp_path / "decoded.h5", task=task), torch.no_grad():
        for first, last in ((0, 5), (5, 6), (6, 7), (7, 8)):
            parts(ids[None, first:last])
        probe.step()
    for answer in (
        probe.compare(tmp_path / "row.h5", tmp_path / "decoded.h5"),
        probe.compare(tmp_path / "decoded.h5", tmp_path / "row.h5"),
    ):
        said = [(found.path, found.kind.value) for found in answer.divergences]
        assert said == ([] if factor == 1 else [("", "introduced")]), answer
        assert answer.coverage.share == 1.0


def test_norms_of_passes_that_are_split_otherwise_are_no_divergence(tmp_path: Path) -> None:
    answer = compared_decoding(tmp_path, task="norms")
    assert answer.verdict == "undecided" and not answer.divergences, answer
