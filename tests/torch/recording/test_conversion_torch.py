"""Converting what PyTorch saves; the class by which each of its parameters is laid out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import probe
from probe.adapters.torch.adapter import TorchAdapter
from probe.checkpoints import open_checkpoint
from probe.checkpoints.torch_pickle import write_tensor
from probe.conversion import convert_checkpoint
from probe.errors import ConversionError

Weights = dict[str, torch.Tensor]


class Net(nn.Module):
    """One of each class whose weights lie or are called otherwise elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 8)
        self.conv = nn.Linear(8, 8)
        self.bn = nn.BatchNorm1d(8)
        self.attn = nn.MultiheadAttention(8, 2)
        self.lstm = nn.LSTM(8, 4, 2, bidirectional=True)
        self.c1, self.ct = nn.Conv1d(8, 4, 3), nn.ConvTranspose2d(4, 6, 3)
        self.norm, self.act = nn.LayerNorm(8), nn.PReLU(3)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.emb.weight


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def net(request: pytest.FixtureRequest) -> Net:
    torch.manual_seed(0)
    return Net().to(request.param)


def same(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and torch.equal(a[n].view(torch.uint8) if a[n].ndim else a[n],
                                                 b[n].view(torch.uint8) if b[n].ndim else b[n]) for n in a
    )  # fmt: skip


def raw(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def raw_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())


@pytest.mark.parametrize("to", ["paddle", "mindspore"])
def test_a_state_dict_there_and_back(net: Net, to: str) -> None:
    state = net.state_dict()
    there = probe.convert_weights(state, to=to, source=net)
    back = probe.convert_weights(there, to="torch", source=to, like=net)
    assert back.keys() == state.keys()
    assert all(raw(back[name]) == raw_of(tensor) for name, tensor in state.items())


FORMATS: dict[str, dict[str, Any]] = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_what_torch_saves_is_read_bit_for_bit(tmp_path: Path, net: Net, options: dict[str, Any]) -> None:
    whole = torch.arange(12.0)
    state = {
        **net.state_dict(), "view": whole[2:8].view(2, 3).t(), "step": torch.tensor(3), "flag": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.float16), "none": torch.zeros(0, 4), "parameter": nn.Parameter(whole[::3]),
    }  # fmt: skip
    torch.save(state, tmp_path / "m.bin", **options)
    found = open_checkpoint(tmp_path / "m.bin")
    assert list(found.tensors) == list(state)
    for name, tensor in state.items():
        assert found.tensors[name].shape == tuple(tensor.shape)
        assert found.tensors[name].dtype.name == str(tensor.dtype).removeprefix("torch.")
        assert raw(found.read(name)) == raw_of(tensor), name


def test_new_dtypes_and_nested_state_dicts(tmp_path: Path) -> None:
    eight = torch.randn(4).to(torch.float8_e4m3fn)
    torch.save({"epoch": 3, "state_dict": {"w": eight, "u": torch.ones(2, dtype=torch.uint16)}}, tmp_path / "m.pt")
    found = open_checkpoint(tmp_path / "m.pt")
    assert raw(found.read("w")) == raw_of(eight) and found.read("u").tolist() == [1, 1]


def test_a_whole_model_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(
        ConversionError, match=r"does not hold weights alone: it refers to torch.nn.modules.linear.Linear"
    ):
        open_checkpoint(tmp_path / "m.pt")
    torch.save({"w": torch.ones(2).to_sparse()}, tmp_path / "s.pt")
    with pytest.raises(ConversionError, match="it refers to torch._utils._rebuild_sparse_tensor"):
        open_checkpoint(tmp_path / "s.pt")


def test_the_library_reads_what_probe_writes_and_the_other_way_round(tmp_path: Path, net: Net) -> None:
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    safetensors.torch.save_file(state, tmp_path / "a.safetensors", metadata={"format": "pt"})
    there, _ = convert_checkpoint(tmp_path / "a.safetensors", tmp_path / "b.safetensors", to="paddle", model=net)
    loaded = safetensors.torch.load_file(there)
    assert torch.equal(loaded["conv.weight"], state["conv.weight"].t())
    back, _ = convert_checkpoint(there, tmp_path / "c.safetensors", to="torch", model="paddle", like=net)
    assert same(safetensors.torch.load_file(back), state)
    net.load_state_dict(safetensors.torch.load_file(back))


def test_a_sharded_checkpoint_of_transformers_there_and_back(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                        max_position_embeddings=12)  # fmt: skip
    model = BertModel(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "bert", max_shard_size="4KB")
    with probe.capture(model, tmp_path / "bert.h5", task="structure"):
        pass
    # its classes are torch's own but for the names of the blocks, so one side is enough
    there, _ = convert_checkpoint(tmp_path / "bert", to="paddle", model=tmp_path / "bert.h5")
    assert there.name == "bert-paddle" and len(list(there.glob("*.safetensors"))) == 3
    assert '"dtype": "bfloat16"' in (there / "config.json").read_text()
    back, _ = convert_checkpoint(there, tmp_path / "back", to="torch", model="paddle", like=tmp_path / "bert.h5")
    again = BertModel.from_pretrained(back)
    assert same(again.state_dict(), model.state_dict())


def test_gpt2s_conv1d_is_a_linear_that_lies_like_paddles() -> None:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=6))
    axes = {named.names[0]: (named.axes, named.canonical) for named in TorchAdapter().parameters(model)}
    assert axes["h.0.attn.c_attn.weight"] == ((1, 0), "weight")
    assert axes["wte.weight"] == ((), "weight") and axes["h.0.attn.c_attn.bias"] == ((), "bias")


def test_recorded_weights_are_put_into_a_model_of_another_dtype(tmp_path: Path) -> None:
    torch.manual_seed(1)
    a, b = Net(), Net().to(torch.bfloat16)
    with probe.capture(a, tmp_path / "a.h5", task="tensor"):
        a.norm(torch.ones(2, 8))
    plan = probe.load_matching(b, tmp_path / "a.h5")
    assert len(plan.moves) == len(a.state_dict())
    for name, tensor in b.state_dict().items():
        assert torch.equal(tensor, a.state_dict()[name].to(tensor.dtype)), name
    assert b.head.weight is b.emb.weight
    c = Net().to(torch.bfloat16)
    with probe.capture(b, tmp_path / "b.h5", task="tensor"):
        b.norm(torch.ones(2, 8, dtype=torch.bfloat16))
    probe.load_matching(c, tmp_path / "b.h5")
    assert same(c.state_dict(), b.state_dict())


class Linear(nn.Module):
    """Somebody's own, which stores its weight as [in, out]."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))


def test_a_recording_tells_torchs_linear_from_somebody_elses(tmp_path: Path) -> None:
    for name, layer in (("torchs", nn.Linear(3, 3, bias=False)), ("mine", Linear())):
        with probe.capture(nn.Sequential(layer), tmp_path / f"{name}.h5", task="structure"):
            pass
    state = {"0.weight": torch.arange(9.0).view(3, 3)}
    there = probe.convert_weights(state, to="paddle", source=tmp_path / "torchs.h5")
    assert np.array_equal(there["0.weight"], state["0.weight"].t())
    with pytest.raises(
        ConversionError, match="does not know whether what Linear is in paddle stores it in the same order"
    ):
        probe.convert_weights(state, to="paddle", source=tmp_path / "mine.h5")


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float16", "float64", "int64", "int8", "uint8", "bool", "complex64", "complex128"]
)
def test_torch_reads_a_tensor_that_was_written_without_it(dtype: str, tmp_path: Path) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype))
    values = tensor.to(torch.float32).numpy().astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else tensor.numpy()
    for wanted, array in (
        (tensor, values),
        (tensor[0].T, values[0].T),
        (tensor[0, 1, 1], values[0, 1, 1]),
        (tensor[:0], values[:0]),
    ):
        write_tensor(tmp_path / "x.pt", np.asarray(array))
        found = torch.load(tmp_path / "x.pt", weights_only=True)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape and torch.equal(found, wanted)
