"""A mapping of which every second line is left out names what the whole one names, or less: never another place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import probe  # noqa: E402
from benchmarks.localisation.models.registry import ARCHITECTURES, MAPPINGS  # noqa: E402
from benchmarks.localisation.pairs.pair import Setup  # noqa: E402
from benchmarks.localisation.pairs.registry import PAIRS  # noqa: E402
from benchmarks.localisation.tools import suite  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402

FAULTS = {
    "megatron-qwen2": "hf-qwen2/megatron-qwen2/fp32/eps/pre_mlp_layernorm/1e-05",
    "own-mixtral": "hf-mixtral/own-mixtral/fp32/scaled/moe/3e-06",
    "nano-gpt2": "hf-gpt2/nano-gpt2/fp32/gelu/gelu",
    "own-gemma2": "hf-gemma2/own-gemma2/fp32/scaled/mlp/3e-06",
    "flat-bert": "hf-bert/flat-bert/fp32/eps/norm1/1e-05",
    "own-vit": "hf-vit/own-vit/fp32/softmax_narrow/attn",
    "own-t5": "hf-t5/own-t5/fp32/eps/norm2/1e-05",
    "own-whisper": "hf-whisper/own-whisper/fp32/gelu_tanh/1",
    "own-mamba": "hf-mamba/own-mamba/fp32/shifted/out/1e-05",
    "own-convnext": "hf-convnext/own-convnext/fp32/gelu_tanh/act",
}
"""a fault of each port"""

Line = tuple[str, ...]
"""section, key and, below ``params``, the parameter"""
Recorded = Callable[[Setup], Path]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("ports")
    return lambda setup: suite.record(setup, "statistics", folder, "x")


@pytest.mark.parametrize("port", FAULTS)
def test_a_right_pair_is_never_diverged_and_its_calls_are_paired(port: str, recorded: Recorded) -> None:
    a, b = recorded(Setup(ARCHITECTURES[port].baseline)), recorded(Setup(port))
    whole, none = probe.compare(a, b, MAPPINGS[port]), probe.compare(a, b)
    least = min(each.coverage.share for each in (whole, none))
    for partial in halves(MAPPINGS[port]):
        found = probe.compare(a, b, partial)
        assert found.verdict is Verdict.ALIGNED, f"{partial}: {found}"
        assert found.coverage.share >= 0.9 * least, partial


@pytest.mark.parametrize("port", FAULTS)
def test_a_fault_is_named_as_by_the_whole_mapping_or_less(port: str, recorded: Recorded) -> None:
    pair = PAIRS[FAULTS[port]]
    a, b = recorded(pair.a), recorded(pair.b)
    whole = probe.compare(a, b, MAPPINGS[port]).first_divergence
    assert whole is not None and pair.truth is not None and pair.truth.names(whole.path)
    for partial in halves(MAPPINGS[port]):
        answer = probe.compare(a, b, partial)
        found = answer.first_divergence
        if found is None:
            assert answer.verdict is Verdict.UNDECIDED, partial
        else:
            around = whole.path == found.path or not found.path or whole.path.startswith(f"{found.path}.")
            assert around and found.phase is whole.phase, f"{partial}: {answer}"


def halves(mapping: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a mapping without its even lines, and without its odd ones."""
    lines = list(lines_of(mapping))
    yield kept(mapping, set(lines[::2]))
    yield kept(mapping, set(lines[1::2]))


def lines_of(mapping: Mapping[str, Any]) -> Iterator[Line]:
    for section, body in mapping.items():
        for key, value in body.items() if isinstance(body, Mapping) else ():
            yield from ((section, key, name) for name in value) if key == "params" else [(section, key)]


def kept(mapping: Mapping[str, Any], lines: set[Line]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for section, body in mapping.items():
        if not isinstance(body, Mapping):
            found[section] = body
            continue
        own = {key: value for key, value in body.items() if (section, key) in lines}
        params = {name: value for name, value in body.get("params", {}).items() if (section, "params", name) in lines}
        found[section] = {**own, **({"params": params} if params else {})}
    return {section: body for section, body in found.items() if body}
