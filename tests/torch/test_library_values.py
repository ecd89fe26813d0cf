"""Ready-made mappings on models that run with the same weights: what they pair has the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from benchmarks.matching.pairs import PAIRS  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.comparison.run import compare  # noqa: E402
from probe.mapping import library  # noqa: E402

AROUND_THE_ENCODER = {
    "TopLayer": {"embed": "bert.embeddings", "encoder": "bert.encoder", "pool": "bert.pooler.dense", "head": "classifier"},
    "Embeddings": {
        "tokens": "word_embeddings", "positions": "position_embeddings", "segments": "token_type_embeddings",
        "norm": "LayerNorm",
    },
}  # fmt: skip
MAPPINGS: dict[str, tuple[str, dict[str, Any], int]] = {
    "qwen2": ("megatron-core/qwen2", {}, 170),
    "mixtral": ("megatron-core/mixtral", {}, 120),
    "vit": ("timm/vit", {}, 229),
    "bert": ("torch/bert", AROUND_THE_ENCODER, 193),
    "llama-meta": ("meta/llama", {}, 182),
}


@pytest.mark.skipif(int(transformers.__version__.split(".")[0]) < 5, reason="transformers 5 has other names than 4")
@pytest.mark.parametrize("pair", MAPPINGS)
def test_what_is_paired_has_the_same_values(pair: str, tmp_path: Path) -> None:
    name, more, count = MAPPINGS[pair]
    mapping = {**yaml.safe_load(library()[name].read_text(encoding="utf-8")), **more}
    a, b = PAIRS[pair].record(tmp_path)
    result = compare(a, b, mapping)
    assert result.verdict is Verdict.ALIGNED
    counted = ("weights that were not compared", "recorded, and not compared", "could not be compared")
    assert all(text.startswith(counted) for text in result.warnings), result.warnings
    assert len(result.slots) >= count
