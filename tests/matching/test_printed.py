"""Reading `print(model)`: modules, what the text tells of parameters, and what errors say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from probe.commands.cli import main
from probe.conversion.structure import structure_of
from probe.errors import FormatError
from probe.store.reading.reader import Reader
from probe.structure import printed as printed_module
from probe.structure.printed import NOTE, model_config_of, read_printed, record_printed
from tests.published.trees import DATA

TORCH = """N(
  (fc): Linear(in_features=3, out_features=4, bias=True)
  (seq): Sequential(
    (0): Conv2d(3, 4, kernel_size=(3, 5), stride=(1, 1), groups=1)
    (1): BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    (2): ReLU()
  )
  (e): Embedding(5, 6)
  (ln): LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=False)
  (l): ModuleList(
    (0-1): 2 x Block(
      (fc): Linear(in_features=2, out_features=2, bias=False)
      (norm): LlamaRMSNorm((2,), eps=1e-06)
    )
    (2): Block()
  )
  (p): ParameterList(
      (0): Parameter containing: [torch.float32 of size 3x4]
      (1): Parameter containing: [torch.bfloat16 of size ]
  )
  (pd): ParameterDict(  (a): Parameter containing: [torch.FloatTensor of size 2])
  (lora): lora.Linear(
    (base_layer): Linear(in_features=2, out_features=3, bias=False)
  )
  (lstm): LSTM(3, 4, num_layers=2, bidirectional=True)
  (t): ConvTranspose2d(4, 6, kernel_size=(2, 2), stride=(1, 1), groups=2)
  (c): Conv1D(nf=12, nx=4)
  (tp): ColumnParallelLinear(in_features=8, out_features=16, bias=False, TP=2)
)"""


def shapes(text: str, framework: str = "torch") -> dict[str, tuple[int, ...]]:
    return {p.names[0]: p.shape for p in read_printed(text, "m", framework).parameters}


def test_modules_and_parameters_of_a_torch_model() -> None:
    printed = read_printed(TORCH, "m")
    classes = {module.path: module.class_name for module in printed.modules}
    assert list(classes)[:8] == ["", "fc", "seq", "seq.0", "seq.1", "seq.2", "e", "ln"]
    assert classes["l.1.fc"] == "Linear" and classes["l.2"] == "Block" and classes["lora"] == "Linear"
    assert [printed.modules[m.parent].path for m in printed.modules if m.path == "l.1.fc"] == ["l.1"]
    assert {p.names[0]: p.shape for p in printed.parameters} == {
        "fc.weight": (4, 3), "fc.bias": (4,), "seq.0.weight": (4, 3, 3, 5), "seq.0.bias": (4,),
        "seq.1.weight": (4,), "seq.1.bias": (4,), "seq.1.running_mean": (4,), "seq.1.running_var": (4,),
        "seq.1.num_batches_tracked": (), "e.weight": (5, 6), "ln.weight": (4,),
        "l.0.fc.weight": (2, 2), "l.0.norm.weight": (2,), "l.1.fc.weight": (2, 2), "l.1.norm.weight": (2,),
        "p.0": (3, 4), "p.1": (), "pd.a": (2,), "lora.base_layer.weight": (3, 2),
        "lstm.weight_ih_l0": (16, 3), "lstm.weight_hh_l0": (16, 4), "lstm.bias_ih_l0": (16,), "lstm.bias_hh_l0": (16,),
        "lstm.weight_ih_l0_reverse": (16, 3), "lstm.weight_hh_l0_reverse": (16, 4),
        "lstm.bias_ih_l0_reverse": (16,), "lstm.bias_hh_l0_reverse": (16,),
        "lstm.weight_ih_l1": (16, 8), "lstm.weight_hh_l1": (16, 4), "lstm.bias_ih_l1": (16,), "lstm.bias_hh_l1": (16,),
        "lstm.weight_ih_l1_reverse": (16, 8), "lstm.weight_hh_l1_reverse": (16, 4),
        "lstm.bias_ih_l1_reverse": (16,), "lstm.bias_hh_l1_reverse": (16,),
        "t.weight": (4, 3, 2, 2), "t.bias": (6,), "c.weight": (4, 12), "c.bias": (12,),
    }  # fmt: skip
    assert {p.names[0] for p in printed.parameters if p.is_buffer} == {
        "seq.1.running_mean", "seq.1.running_var", "seq.1.num_batches_tracked",
    }  # fmt: skip
    assert [p.dtype for p in printed.parameters if p.names[0] == "p.1"] == ["bfloat16"]
    sizes = {module.path: module.n_params for module in printed.modules}
    assert (sizes["fc"], sizes["seq"], sizes["l"], sizes["l.2"]) == (16, 184 + 8, 12, 0)
    assert sizes[""] == sum(size for path, size in sizes.items() if path and "." not in path)


def test_a_paddle_model() -> None:
    text = """N(
  (fc): Linear(in_features=3, out_features=4, dtype=float32)
  (bn): BatchNorm2D(num_features=4, momentum=0.9, epsilon=1e-05)
  (ln): LayerNorm(normalized_shape=[4], epsilon=1e-05)
  (e): Embedding(5, 6, sparse=False, scale_grad_by_freq=False)
  (lstm): LSTM(3, 4
    (0): RNN(
      (cell): LSTMCell(3, 4)
    )
  )
  (last): ReLU()
)"""
    printed = read_printed(text, "m", "paddle")
    assert [module.path for module in printed.modules] == [
        "", "fc", "bn", "ln", "e", "lstm", "lstm.0", "lstm.0.cell", "last",
    ]  # fmt: skip
    found = {p.names[0]: (p.shape, p.canonical_slot, p.axes) for p in printed.parameters}
    assert found["fc.weight"] == ((3, 4), "weight", (1, 0)) and "fc.bias" not in found
    assert found["bn._mean"] == ((4,), "running_mean", ()) and found["e.weight"][0] == (5, 6)
    assert found["lstm.0.cell.weight_ih"][0] == (16, 3)


def test_the_linear_that_paconvert_writes_tells_of_its_bias() -> None:
    text = "N(\n  (fc): Linear(in_features=3, out_features=4, bias=True)\n)"
    found = {p.names[0]: (p.shape, p.axes) for p in read_printed(text, "m", "paddle").parameters}
    assert found == {"fc.weight": ((4, 3), ()), "fc.bias": ((4,), ())}


def test_a_mindspore_model_in_both_forms_of_its_print() -> None:
    gamma = "Parameter (name=ln.gamma, shape=(4,), dtype=Float32, requires_grad=True)"
    mean = "Parameter (name=ln.moving_mean, shape=(4,), dtype=Float32, requires_grad=False)"
    text = f"""N(
  (fc): Dense(input_channels=3, output_channels=4, has_bias=True)
  (conv): Conv2d(input_channels=3, output_channels=4, kernel_size=(3, 3), group=1, has_bias=False, weight_init=<x.Y object at 0x7f>)
  (ln): BatchNorm2d(num_features=4, gamma={gamma}, moving_mean={mean})
)"""
    old = """N<
  (fc): Dense<input_channels=3, output_channels=4, has_bias=True>
  (e): Embedding<vocab_size=5, embedding_size=6, use_one_hot=False>
  >"""
    assert shapes(text, "mindspore") == {
        "fc.weight": (4, 3), "fc.bias": (4,), "conv.weight": (4, 3, 3, 3), "ln.gamma": (4,), "ln.moving_mean": (4,),
    }  # fmt: skip
    assert shapes(old, "mindspore") == {"fc.weight": (4, 3), "fc.bias": (4,), "e.embedding_table": (5, 6)}
    assert [p.is_buffer for p in read_printed(text, "m", "mindspore").parameters] == [False] * 4 + [True]


def test_a_list_of_models() -> None:
    text = "[A(\n  (x): Linear(in_features=1, out_features=2, bias=False)\n), B(\n  (y): ReLU()\n), C()]"
    found = [(module.path, module.class_name) for module in read_printed(text, "m").modules]
    assert found == [("", "list"), ("0", "A"), ("0.x", "Linear"), ("1", "B"), ("1.y", "ReLU"), ("2", "C")]


AROUND = {
    "text before": "Loading (a) model ...\n>>> print(model)\nuse Foo(x) please\n{}",
    "text behind": "{}\nTraining begins (now)\nFoo(bar)\n>>>",
    "a fence": "```\n{}\n```\n",
    "a log's line": "2026-01-01 12:00:00,1 - INFO - model: {}\n1/2 (50 %)",
    "a notebook": "Out[3]: {}",
    "Windows": "{}\r\n",
}
MARKS = {"comments": "# ", "a rank": "[rank0]:", "a shell's": "[default0]: ", "blanks": "    "}


@pytest.mark.parametrize("case", AROUND)
def test_text_before_and_behind_a_model_is_left_out(case: str) -> None:
    assert read_printed(AROUND[case].format(TORCH), "m") == read_printed(TORCH, "m")


@pytest.mark.parametrize("mark", MARKS.values())
def test_a_mark_before_each_line_is_left_out(mark: str) -> None:
    lines = [f"{mark}{line}" for line in TORCH.splitlines()]
    text = "\n".join([f"{mark}the model".rstrip(), mark.rstrip(), *lines, f"{mark}and so on", "x = 1"])
    assert read_printed(text, "m") == read_printed(TORCH, "m")


def test_text_between_the_lines_of_a_model_is_left_out() -> None:
    lines = TORCH.splitlines()
    warned = "\n".join(f"{line}\nWARNING: x (y)) is old" if at in (2, 8, 13) else line for at, line in enumerate(lines))
    assert read_printed(warned, "m") == read_printed(TORCH, "m")
    ranks = "\n".join(f"[rank0]: {line}\n[rank1]: {line}" for line in lines)
    assert read_printed(ranks, "m") == read_printed(TORCH, "m")


def test_a_second_model_behind_text_is_no_part_of_the_first() -> None:
    with pytest.raises(FormatError, match="a second model"):
        read_printed(f"{TORCH}\nand\n{TORCH}", "m")


def test_the_published_trees() -> None:
    for file, count in (("mindspeed-mm-qwen25vl.txt", 433), ("llamafactory-qwen25vl.txt", 307)):
        assert len(read_printed((DATA / file).read_text(encoding="utf-8"), file).modules) == count


def test_text_over_several_lines_belongs_to_the_module_that_it_stands_in() -> None:
    text = "N(\n  (a): Odd(\n    width=3,\n    height=4\n  )\n  (b): Linear(\n    in_features=2, out_features=3,\n    bias=False\n    (act): ReLU()\n  )\n)"
    printed = read_printed(text, "m")
    assert [module.path for module in printed.modules] == ["", "a", "b", "b.act"]
    assert shapes(text) == {"b.weight": (3, 2)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "m: expected the text that print(model) shows, found no line of it"),
        ("\n\nhello\n", "m: expected the text that print(model) shows, found no line of it"),
        ("N(\n  (a): B(\n    (c): D()\n", "m, line 2: B does not end: expected the whole text that print(model) shows"),
        ("A()\nB()\n", "m, line 2: a second model; expected one, or a list of them in [ ]"),
        ("A()\nthat was it\n", "m, line 2: expected the end of the model, got 'that was it'"),
        ("A(\n  (0-3): 3 x B()\n)", "m, line 2: (0-3) are not 3 members"),
        ("A(\n  (0-2000000): 2000001 x B()\n)", "m, line 2: (0-2000000) are not 2000001 members"),
    ],
)
def test_what_is_no_printed_model(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=f"^{re.escape(message)}$"):
        read_printed(text, "m")


def test_members_of_members_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed_module, "_MOST_MODULES", 20_000)
    inner = "B()"
    for _ in range(4):
        inner = f"L(\n(0-99): 100 x {inner}\n)"
    with pytest.raises(FormatError, match="^m: more than 20,000 modules$"):
        read_printed(inner, "m")


@given(st.text(st.sampled_from("A(): x0-3[]<>\n,B="), max_size=80))
def test_any_text_is_a_model_or_an_error(text: str) -> None:
    try:
        printed = read_printed(text, "m")
    except FormatError:
        return
    assert printed.modules[0].path == "" and all(module.path for module in printed.modules[1:])


def test_a_recording_of_the_structure(tmp_path: Path) -> None:
    source, target = tmp_path / "model.txt", tmp_path / "tree.h5"
    source.write_bytes(b"\xef\xbb\xbf" + TORCH.replace("\n", "\r\n").encode())
    printed = record_printed(source, target, model_config={"num_query_groups": 2})
    with Reader(target) as reader:
        assert reader.modules == printed.modules and reader.parameters == printed.parameters
        assert reader.info.model_config == {"num_query_groups": 2} and reader.info.closed
        assert reader.info.config["task"] == "structure" and [text for _, _, text in reader.notes] == [NOTE]
    known = structure_of(target)
    assert {w.names[0]: w.shape for w in known.weights} == shapes(TORCH)


def test_the_command(tmp_path: Path) -> None:
    source, target, config = tmp_path / "model.txt", tmp_path / "tree.h5", tmp_path / "config.json"
    source.write_text("N(\n  (fc): Linear(in_features=3, out_features=4, dtype=float32)\n)\n", encoding="utf-8")
    config.write_text('{"num_key_value_heads": 2}', encoding="utf-8")
    words = ["map", "tree", str(source), "-o", str(target), "--framework", "paddle", "--config", str(config)]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.output) == (
        0, f"2 modules and the shapes of 1 parameters and buffers are in {target}\n"
    )  # fmt: skip
    with Reader(target) as reader:
        assert (reader.info.framework, reader.info.model_config) == ("paddle", {"num_key_value_heads": 2})
        assert [p.shape for p in reader.parameters] == [(3, 4)]
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 3 and "exists" in again.stderr


def test_files_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "model.txt"
    with pytest.raises(FormatError, match="cannot read .*model.txt: No such file"):
        record_printed(file, tmp_path / "out.h5")
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match="model.txt is no text: expected what print"):
        record_printed(file, tmp_path / "out.h5")
    with file.open("wb") as out:
        out.truncate((64 << 20) + 1)
    with pytest.raises(FormatError, match="has more than 67108864 bytes: expected the text of print"):
        record_printed(file, tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


def test_a_models_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"num_key_value_heads": 2}', encoding="utf-8")
    assert model_config_of(file) == {"num_key_value_heads": 2}
    file.write_text("[1]", encoding="utf-8")
    with pytest.raises(FormatError, match="expected a JSON object with the model's configuration, got list"):
        model_config_of(file)
    file.write_text("{", encoding="utf-8")
    with pytest.raises(FormatError, match="expected a model's configuration as JSON"):
        model_config_of(file)
