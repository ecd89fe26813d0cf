"""Every form in which people keep a configuration is read, and what is none is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.errors import ConfigError, StoreError
from probe.settings.reading.files import read
from probe.settings.reading.printed import printed_arguments
from probe.settings.reading.shell import script
from probe.settings.resolving import resolved
from probe.settings.setting import Dialect, Part
from probe.settings.source import Form, Names, flattened

# ---- shell scripts -------------------------------------------------------------------------------

SCRIPTS = {
    "continued lines": ("python train.py --num-layers 24 \\\n  --swiglu", {"num_layers": 24, "swiglu": True}),
    "equals signs": ("python train.py --lr=1e-4 --name='a b'", {"lr": 1e-4, "name": "a b"}),
    "negative numbers": ("python train.py --window -1 --low -.5", {"window": -1, "low": -0.5}),
    "several values": ("python train.py --betas 0.9 0.95", {"betas": [0.9, 0.95]}),
    "the last one counts": ("python train.py --lr 1 --lr 2", {"lr": 2}),
    "a variable": ("L=24\npython train.py --num-layers $L", {"num_layers": 24}),
    "a variable in braces": ("L=24\npython train.py --num-layers ${L}", {"num_layers": 24}),
    "a default": ("python train.py --num-layers ${L:-12}", {"num_layers": 12}),
    "a default that is not taken": ("L=3\npython train.py --num-layers ${L:-12}", {"num_layers": 3}),
    "a sum": ("G=8\nN=2\npython train.py --world $(($G*$N + 1))", {"world": 17}),
    "an array": ("A=(\n  --lr 1 # why\n  --swiglu\n)\npython train.py ${A[@]}", {"lr": 1, "swiglu": True}),
    "a quoted array": ('A=(--name "a b" --lr 1)\npython train.py "${A[@]}"', {"name": "a b", "lr": 1}),
    "an array that grows": ("A=(--lr 1)\nA+=(--swiglu)\npython train.py ${A[@]}", {"lr": 1, "swiglu": True}),
    "an array in an array": ("A=(--lr 1)\nB=(${A[@]} --swiglu)\npython train.py ${B[@]}", {"lr": 1, "swiglu": True}),
    "a string of options": ('A=" \\\n  --lr 1 \\\n  --swiglu \\\n"\npython train.py $A', {"lr": 1, "swiglu": True}),
    "options alone": ('A="--lr 1 --swiglu"', {"lr": 1, "swiglu": True}),
    "a launcher": ("torchrun --nproc_per_node 8 train.py --lr 1", {"lr": 1}),
    "what it is piped to": ("python train.py --lr 1 | tee --append log", {"lr": 1}),
    "no-options": ("python train.py --no-rope-fusion", {"no_rope_fusion": True, "rope_fusion": False}),
    "what only a shell knows": ("python train.py --lr 1 --data $(ls) --rank $RANK --path $1", {"lr": 1, "data": True,
                                                                                               "rank": True,
                                                                                               "path": True}),
    "a condition that holds": ('M=1\nif [ "$M" = 1 ]; then\n  L=2\nelse\n  L=3\nfi\npython train.py --num-layers $L',
                               {"num_layers": 2}),
    "a condition that does not": ('M=0\nif [ "$M" = 1 ]; then\n  L=2\nelse\n  L=3\nfi\npython train.py --num-layers $L', {"num_layers": 3}),
    "a condition on something unknown": ("L=2\nif [ -n \"$WANDB\" ]; then\n  L=3\nfi\npython train.py --num-layers $L",
                                         {"num_layers": 2}),
    "the command with most options": ("python prepare.py --lr 9\npython train.py --lr 1 --swiglu", {"lr": 1,
                                                                                                    "swiglu": True}),
    "JSON": ("vllm serve m --hf-overrides '{\"rope_theta\": 5.0}'", {"hf_overrides": {"rope_theta": 5.0}}),
    "a hash inside of quotes": ("python train.py --name 'a#b' # --lr 2", {"name": "a#b"}),
    "variables before the command": ("OMP_NUM_THREADS=1 python train.py --lr 1", {"lr": 1}),
    "a comment that ends in a backslash": ("A=(\n  --lr 1\n  # --wd 2 \\\n  --swiglu\n)\npython train.py ${A[@]}",
                                           {"lr": 1, "swiglu": True}),
    "a command after such a comment": ("# the 7B \\\nL=2\npython train.py --num-layers $L", {"num_layers": 2}),
    "a quote in a comment": ("python train.py --lr 1  # don't change\nB=2  # the model\"s\npython t.py --lr 1 --wd $B",
                             {"lr": 1, "wd": 2}),
    "quotes inside of a command": ('D="$(cd "$(dirname "$0")" && pwd)"  # "\npython train.py --lr 1', {"lr": 1}),
    "a quoted sign": ("python train.py --name a\\ b --at 'it'\"'\"'s'", {"name": "a b", "at": "it's"}),
    "an else": ('if [[ "$M" == 1 && -d x ]]; then L=2; else L=3; fi\nM=1\n[ $M = 1 ] && L=4\npython t.py --lr $L',
                {"lr": 4}),
    "a case": ("M=7B\ncase $M in\n  1B) L=2 ;;\n  7B|8B)\n    L=3\n    ;;\n  *) exit 1 ;;\nesac\npython t.py --lr $L",
               {"lr": 3}),
    "a loop over arguments": ("Z=0\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    -z) Z=$2; shift ;;\n  esac\ndone\n"
                              "python t.py --zero $Z --lr 1", {"zero": 0, "lr": 1}),
    "a here-document": ("read -r -d '' cmd <<EOF\nt.py --lr 1 \\\n  --wd 2\nEOF\n# --lr 3\npython $cmd", {"lr": 1, "wd": 2}),
    "a command in a string": ('C="cd x && python t.py --lr 1 --wd 2 | tee log"\nsrun --nodes 2 bash -c "$C"',
                              {"lr": 1, "wd": 2}),
    "overrides of Hydra": ("python -m main --config-name=c data.size=8 +a.lr=1e-4 name=x",
                           {"config_name": "c", "data.size": 8, "a.lr": 1e-4, "name": "x"}),
    "variables of the environment that hold options": ("python t.py --lr 1 --swiglu $EXTRA_ARGS", {"lr": 1, "swiglu": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", SCRIPTS)
def test_options_of_a_script(case: str) -> None:
    text, expected = SCRIPTS[case]
    found = script(text).options
    unknown = {name for name, value in expected.items() if value is True and name in ("data", "rank", "path")}
    assert {name: value for name, value in found.items() if name not in unknown} == {
        name: value for name, value in expected.items() if name not in unknown
    }
    assert not {name for name in unknown if found.get(name) not in (None, True)}, "what is not known is not made up"


UNKNOWN = {
    "what a command prints": "LR=$(python pick.py)\npython t.py --lr $LR --wd 1",
    "a variable of the environment": "python t.py --lr $LR --wd 1",
    "an argument of the script": "LR=${1}\npython t.py --lr $LR --wd 1",
    "one of several values": "python t.py --lr 1 $B/x --wd 1",
    "another value where an unknown condition holds": "LR=1\nif grep -q x y; then\n  LR=2\nfi\npython t.py --lr $LR --wd 1",
    "what a loop leaves": "for LR in 1 2; do\n  python t.py --lr $LR --wd 1\ndone",
    "what follows a command that may fail": "LR=1\nnvidia-smi && LR=2\npython t.py --lr $LR --wd 1",
    "a part of a name": "LR=${MODEL%%-*}\npython t.py --lr $LR --wd 1",
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_only_a_shell_knows_is_unknown(case: str, tmp_path: Path) -> None:
    found = script(UNKNOWN[case])
    assert (found.options, found.unknown) == ({"wd": 1}, {"lr"})


def test_an_unknown_value_has_no_default(tmp_path: Path) -> None:
    command = "python p.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --lr-decay-style cosine"
    values = [
        resolved(read(written(tmp_path, f"{number}.sh", text))).values
        for number, text in enumerate((command, f"{command} --norm-epsilon $E", f"source x.sh\n{command} $MORE_ARGS"))
    ]
    assert [("norm_eps" in each, "rope_scaling" in each) for each in values] == [
        (True, True),
        (False, True),
        (False, False),
    ]


@pytest.mark.parametrize(
    "text",
    ["$(" * 9000, '"' * 9001, "a=(" * 9000, "`" * 9000, "${a:-" * 9000 + "}" * 9000, "(" * 9000 + ")" * 9000, "cat <<EOF\n" * 900,
     "if true; " + "then " * 9000, "if [ 1 = 1 ]; then\n" * 900, "case a in " * 900, "A=x\n" + 'A="$A$A"\n' * 60, "then fi esac ;; in ) &&"],
)  # fmt: skip
def test_any_script_is_read(text: str) -> None:
    assert script(f"{text}\npython t.py --lr 1").is_complete


@given(st.text(st.sampled_from("$(){}[]\"'`\\ \n;&|<>#=ab-1"), max_size=60))
def test_any_text_is_a_script(text: str) -> None:
    script(text)


def test_a_file_beside_the_script_is_read(tmp_path: Path) -> None:
    written(tmp_path, "model.sh", "MODEL_ARGS=(--num-layers 2 --swiglu)")
    script_file = written(
        tmp_path, "run.sh", 'D="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nsource "$D/model.sh"\n'
        "python p.py ${MODEL_ARGS[@]} --lr 1",
    )  # fmt: skip
    assert read(script_file).keys == {"num_layers": 2, "swiglu": True, "lr": 1}


def test_a_script_runs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "made"
    script(
        f"touch {file}\nA=$(touch {file})\nB=`touch {file}`\npython train.py --a $A --b $B --c $((__import__('os')))"
    )
    assert not file.exists()


def test_exported_variables_are_told_from_others() -> None:
    found = script("export NVIDIA_TF32_OVERRIDE=0\nX=1\nCUDA_LAUNCH_BLOCKING=1 python train.py --lr 1\n")
    assert found.variables == {"NVIDIA_TF32_OVERRIDE": "0", "CUDA_LAUNCH_BLOCKING": "1"}


# ---- printed arguments ---------------------------------------------------------------------------

PRINTED = {
    "Megatron": "  lr .......... 0.001\n  swiglu ...... True\n  bf16 ........ False\n  load ........ None",
    "Megatron, with ranks and times": "[rank0]:   lr ..... 0.001\n0: 12:01 swiglu ..... True\n0:   bf16 ... False\n0:   load ... None",
    "Namespace": "args: Namespace(lr=0.001, swiglu=True, bf16=False, load=None)\nnext line",
    "TrainingArguments": "TrainingArguments(\nlr=0.001,\nswiglu=True,\nbf16=False,\nload=None,\n)",
    "a dict": "{'lr': 0.001, 'swiglu': True, 'bf16': False, 'load': None}",
    "a configuration": 'LlamaConfig {\n  "lr": 0.001,\n  "swiglu": true,\n  "bf16": false,\n  "load": null\n}\n',
    "lines": "lr: 0.001\nswiglu: True\nbf16: False\nload: None\n",
    "assignments": "lr = 0.001\nswiglu = True\nbf16 = False\nload = None\n",
}  # fmt: skip


@pytest.mark.parametrize("case", PRINTED)
def test_arguments_as_they_are_printed(case: str) -> None:
    assert printed_arguments(PRINTED[case]) == {"lr": 0.001, "swiglu": True, "bf16": False, "load": None}


def test_what_python_cannot_read_stays_text() -> None:
    found = printed_arguments("Namespace(lr=1, dtype=torch.bfloat16, f=<function gelu at 0x7f>, n=2)")
    assert found == {} or found["lr"] == 1
    found = printed_arguments("Namespace(lr=1, dtype=torch.bfloat16, size=(1, 2), n=2)")
    assert found == {"lr": 1, "dtype": "torch.bfloat16", "size": (1, 2), "n": 2}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 1 loss 2.5\nstep 2 loss 2.4\n",
        "Traceback (most recent call last):\n  File 'x'",
        "{",
        "(" * 5000,
        "Namespace(" * 3000,
    ],
)
def test_other_texts_are_no_arguments(text: str) -> None:
    assert printed_arguments(text) == {}


# ---- files ---------------------------------------------------------------------------------------


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


LLAMA = json.dumps(
    {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "rms_norm_eps": 1e-5}
)
FILES = {
    "config.json": (LLAMA, Form.CONFIG_JSON, Dialect.TRANSFORMERS, {Part.MODEL}),
    "args.json": ('{"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "swiglu": true, "lr": 1e-3}',
                  Form.ARGUMENTS_JSON, Dialect.MEGATRON,
                  {Part.MODEL, Part.TRAINING}),
    "training.json": ('{"learning_rate": 1e-3, "per_device_train_batch_size": 1, "lr_scheduler_type": "cosine"}',
                      Form.ARGUMENTS_JSON, Dialect.TRANSFORMERS,
                      {Part.TRAINING}),
    "paddle.json": ('{"model_type": "llama", "hidden_size": 64, "tensor_parallel_degree": 2}', Form.CONFIG_JSON,
                    Dialect.PADDLENLP, {Part.MODEL}),
    "m.yaml": ("model:\n  model_config:\n    type: LlamaConfig\n    num_layers: 2\noptimizer:\n  type: AdamW\n",
               Form.YAML, Dialect.MINDFORMERS,
               {Part.MODEL, Part.TRAINING}),
    "run.sh": ("python p.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --norm-epsilon 1e-6", Form.SHELL,
               Dialect.MEGATRON, {Part.MODEL}),
    "run": ("#!/bin/bash\npython p.py --num-layers 2 --swiglu", Form.SHELL, Dialect.MEGATRON, set()),
    "train.log": ("loading\n  num_layers ...... 2\n  swiglu .......... True\n  norm_epsilon .... 1e-05\n",
                  Form.PRINTED, Dialect.MEGATRON, set()),
    "params.json": ('{"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "multiple_of": 32, "norm_eps": 1e-5, '
                    '"vocab_size": 8}', Form.ARGUMENTS_JSON, Dialect.META, {Part.MODEL}),
    "mistral.json": ('{"dim": 64, "n_layers": 2, "head_dim": 16, "hidden_dim": 96, "n_heads": 4, "n_kv_heads": 2, '
                     '"norm_eps": 1e-5, "vocab_size": 8}', Form.ARGUMENTS_JSON, Dialect.META, {Part.MODEL}),
    "conformer.yaml": ("encoder:\n  n_layers: 2\n  n_heads: 4\noptim:\n  lr: 1\n", Form.YAML, Dialect.TRANSFORMERS, set()),
    "serve.sh": ("vllm serve m --dtype half --max-model-len 8", Form.SHELL, Dialect.VLLM, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_taken_for_what_it_is(name: str, tmp_path: Path) -> None:
    text, form, dialect, parts = FILES[name]
    source = read(written(tmp_path, name, text))
    assert (source.form, source.dialect, set(source.parts)) == (form, dialect, parts)


def test_a_folder_is_its_config(tmp_path: Path) -> None:
    written(tmp_path, "config.json", LLAMA)
    assert read(str(tmp_path)).keys["hidden_size"] == 64


def test_params_json_says_what_a_config_says(tmp_path: Path) -> None:
    names = (
        "num_layers",
        "hidden_size",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "norm_eps",
        "gated_mlp",
    )
    meta, mistral = (
        resolved(read(written(tmp_path, name, FILES[name][0]))) for name in ("params.json", "mistral.json")
    )
    assert [meta.known(name) for name in names] == [2, 64, 2, 16, 192, 1e-5, True]
    assert [mistral.known(name) for name in names] == [2, 64, 2, 16, 96, 1e-5, True]
    assert (meta.known("rope_theta"), mistral.known("rope_theta")) == (10000, None)


def test_one_side_may_be_in_two_files(tmp_path: Path) -> None:
    files = [written(tmp_path, name, FILES[name][0]) for name in ("config.json", "training.json")]
    settings = resolved(read("+".join(files)))
    assert (settings.known("norm_eps"), settings.known("lr"), settings.known("adam_beta2")) == (1e-5, 1e-3, 0.999)


def test_two_files_of_two_code_bases_are_no_side(tmp_path: Path) -> None:
    files = [written(tmp_path, name, FILES[name][0]) for name in ("config.json", "run.sh")]
    with pytest.raises(ConfigError, match="files of one code base"):
        read("+".join(files))


REFUSED = {
    "a.json": ("[1, 2]", "expected an object"), "b.json": ("{", "is no JSON"), "c.yaml": ("- 1", "expected sections"),
                                                           "d.yaml": ("a: [", "is no YAML"),
    "e.txt": ("hello", "no settings that can be read"), "f.json": ('{"colour": "red"}', "none of its 1 entries"),
    "g.sh": ("ls -l", "no settings"),
    "h.json": ("", "is no JSON"), "i.yaml": ("", "holds a NoneType"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_configuration_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    text, expected = REFUSED[name]
    with pytest.raises(ConfigError, match=expected) as caught:
        read(written(tmp_path, name, text))
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot read .*nothing.json: No such file"):
        read(str(tmp_path / "nothing.json"))


# ---- names ---------------------------------------------------------------------------------------


def test_names_are_found_in_sections_but_not_in_those_of_other_models() -> None:
    keys = flattened(
        {
            "model": {"model_config": {"num_layers": 2}},
            "vision_config": {"num_layers": 9, "hidden_size": 8},
            "text_config": {"hidden_size": 4},
        }
    )
    names = Names(keys)
    assert (names.get("num_layers"), names.get("hidden_size"), names.get("vision_config.num_layers")) == (2, 4, 9)
    assert names.get("layers") is None


def test_the_outermost_of_several_counts() -> None:
    assert Names(flattened({"a": {"b": {"x": 1}}, "c": {"x": 2}})).get("x") == 2


def test_deep_nesting_stays_whole() -> None:
    deep: dict[str, object] = {"x": 1}
    for _ in range(3000):
        deep = {"a": deep}
    assert len(flattened(deep)) == 1
