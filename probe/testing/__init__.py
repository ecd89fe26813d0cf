"""What adapters are tested with: a contract suite, strategies for arrays, a plain view of a recording.

A framework's tests subclass `AdapterContract`, say how the framework does the few things in
`probe.testing.kit.AdapterKit`, and inherit the tests. pytest and hypothesis are imported here and nowhere
else in probe, and nothing of probe imports this package.
"""

import pytest

for _part in ("arrays", "contract", "observations", "recording", "tensors"):
    pytest.register_assert_rewrite(f"probe.testing.{_part}")

from probe.testing.arrays import DTYPES, arrays, assert_stats_agree, sample  # noqa: E402
from probe.testing.contract import AdapterContract  # noqa: E402
from probe.testing.kit import AdapterKit  # noqa: E402
from probe.testing.recording import Recording, Seen  # noqa: E402

__all__ = ["DTYPES", "AdapterContract", "AdapterKit", "Recording", "Seen", "arrays", "assert_stats_agree", "sample"]
