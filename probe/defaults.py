"""What a command's help shows of its options: names to choose from and defaults, without what they stand for.

``probe-compare --help`` is there at once because it imports this in the place of the comparison.
"""

from __future__ import annotations

ALLCLOSE = "allclose"
METRICS = {ALLCLOSE: "ar", "max_abs": "a", "mean_abs": "a", "max_rel": "r", "rel_l2": "r", "cosine": "a"}
"""what an error can be measured by, and which tolerances it is held against: a for atol, r for rtol"""
PRESET_NAMES = (
    "r-forward", "p-forward", "p-forward-code", "p-forward-distributed", "paddlenlp/qwen2-0.5b", "paddlenlp/qwen2-1.5b",
    "paddlenlp/qwen2-7b", "paddlenlp/qwen1.5-14b",
)  # fmt: skip
"""the acceptance tables of `probe.answer.presets`"""
MIN_COVERAGE = 0.5
"""share of paired module calls below which nothing is called aligned"""
MIN_CONFIDENCE = 0.6
"""pairs of modules that were found without a mapping and are less sure are not compared"""
FRAMEWORKS = ("torch", "paddle", "mindspore")
"""frameworks whose weights can be converted"""
FORMATS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".html": "html", ".txt": "text"}
"""by the ending of a file's name"""
EXIT = {"aligned": 0, "diverged": 1, "undecided": 2}
"""exit status by verdict"""
