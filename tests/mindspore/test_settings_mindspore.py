"""Settings of MindSpore: its context, and a model's configuration."""

from __future__ import annotations

from pathlib import Path

import mindspore
from mindspore import nn

import probe
from probe.adapters.mindspore.environment import environment
from probe.settings.reading.recordings import recorded
from probe.settings.resolving import resolved


class Config:
    """As MindFormers has them: plain values, dtypes, and ``to_dict``."""

    def to_dict(self) -> dict[str, object]:
        return {
            "n_kv_heads": 2, "num_heads": 4, "hidden_size": 8, "rms_norm_eps": 1e-5, "theta": 500000.0, "compute_dtype": mindspore.bfloat16,
            "softmax_compute_type": mindspore.float32, "parallel_config": nn.Dense(1, 1),
        }  # fmt: skip


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.out = nn.Dense(2, 2)

    def construct(self, x: mindspore.Tensor) -> mindspore.Tensor:
        return self.out(x)


def test_a_models_configuration_is_recorded(tmp_path: Path) -> None:
    model = Net()
    with probe.capture(model, tmp_path / "a.h5"):
        model(mindspore.ops.ones((1, 2)))
        probe.step()
    settings = resolved(recorded(tmp_path / "a.h5"))
    known = {
        name: settings.known(name)
        for name in ("num_key_value_heads", "norm_eps", "rope_theta", "compute_dtype", "softmax_dtype")
    }
    assert known == {
        "num_key_value_heads": 2,
        "norm_eps": 1e-5,
        "rope_theta": 5e5,
        "compute_dtype": "bfloat16",
        "softmax_dtype": "float32",
    }


def test_the_context_is_recorded() -> None:
    facts = environment()
    assert (facts["device_target"], facts["mode"]) == ("CPU", mindspore.PYNATIVE_MODE)
    assert facts["deterministic"] == mindspore.get_context("deterministic"), (
        "another test may have set it: it is set once"
    )
