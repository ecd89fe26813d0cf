"""Configurations of mindstudio-probe and MindSpore's Dump as options of `probe.start`; docs/reference/other-tools.md is made from the table."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import probe
from probe import dump_settings
from probe.compat.compare_json import read_compare_json
from probe.config import RecordConfig
from probe.dump_settings import DUMP, FIELDS, LEVELS, MINDSTUDIO, TASK_SECTION, TASKS
from probe.errors import ConfigError, ProbeWarning, StoreError
from probe.records import Phase, Task
from tests.cli.running import net, record, run
from tests.toys import gpt

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "other-tools.md"
EXAMPLE = json.loads((Path(__file__).parents[1] / "data" / "msprobe-config.json").read_text())
"""of the guide for MindSpeed and LLaMA-Factory"""
DUMP_EXAMPLE = {
    "common_dump_settings": {
        "op_debug_mode": 0, "dump_mode": 0, "path": "/absolute_path", "net_name": "ResNet50", "iteration": "0|5-8|100-120",
        "saved_data": "tensor", "input_output": 0, "kernels": ["Default/Conv-op12"], "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
    },
    "e2e_dump_settings": {"enable": True, "trans_flag": True},
}  # fmt: skip
"""of the precision guide of MindFormers"""
IN_2620 = {
    "": "task dump_path rank step level dump_enable extra_info async_dump precision risk_level custom_op_namespaces load",
    TASK_SECTION: "scope list data_mode slice request_id summary_mode diff_nums bench_path tensor_list white_list black_list "
    "error_data_path device file_format check_mode",
}
"""what mindstudio-probe 26.2.0 reads (core/dump/common_config.py, pytorch/dump/pt_config.py, mindspore) or its documentation names"""


def section(**fields: Any) -> dict[str, Any]:
    return {"task": "tensor", "level": "L0", "tensor": fields}


def meant(config: dict[str, Any], **options: Any) -> RecordConfig:
    return RecordConfig.from_options(config, **options)


@pytest.fixture(autouse=True)
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROBE_DUMP", raising=False)
    yield
    probe.stop()


# ---- fields --------------------------------------------------------------------------------------------


def test_the_examples_of_the_guides() -> None:
    config = meant(EXAMPLE)
    assert (config.task, config.steps, config.ranks, config.modules, config.phases) == (
        Task.STATISTICS, (range(0, 1),), None, None, None,
    )  # fmt: skip
    assert config.folder == "/home/data_dump"
    assert (config.level, config.said) == ("mix", "")
    config = meant(DUMP_EXAMPLE)
    assert (config.task, config.ranks, config.folder, config.said) == (Task.TENSOR, None, "/absolute_path", "")
    assert [step for step in range(200) if config.wants_step(step)] == [0, 5, 6, 7, 8, *range(100, 121)]


def test_options_override_a_foreign_configuration() -> None:
    config = meant(EXAMPLE, steps="0|5-6", task="tensor")
    assert config.task is Task.TENSOR and config.steps == (range(0, 1), range(5, 7))


CLASSES = {"": "Net", "net": "Stem", "net.relu": "ReLU", "net.mlp": "MLP", "net.mlp.fc": "Linear", "head": "PReLU"}


@pytest.mark.parametrize(
    "fields, kept",
    [
        ({"list": []}, [*CLASSES]),
        ({"list": ["relu"]}, ["net.relu"]),
        ({"list": ["ReLU"]}, ["net.relu", "head"]),
        ({"list": ["Module.net.mlp.MLP.forward.0"]}, ["net.mlp", "net.mlp.fc"]),
        ({"list": ["Cell.head.PReLU.backward.1", "Torch.relu.3.backward"]}, ["head"]),
        ({"scope": ["Module.net.relu.ReLU.forward.0", "Module.net.mlp.fc.Linear.forward.0"]}, ["net", "net.relu", "net.mlp", "net.mlp.fc"]),
        ({"scope": ["Module.net.relu.ReLU.forward.0", "Module.head.PReLU.forward.0"]}, [*CLASSES]),
        ({"scope": ["Tensor.add.0.forward", "Functional.square.2.forward"], "list": ["fc"]}, ["net.mlp.fc"]),
    ],
)  # fmt: skip
def test_which_modules(fields: dict[str, Any], kept: list[str]) -> None:
    config = meant(section(**fields))
    assert [path for path, name in CLASSES.items() if config.wants_module(path, name)] == kept
    assert ("scope" in fields) == ("scope: all of" in config.said)


def test_tensor_list_is_what_is_recorded_in_full() -> None:
    config = meant({"task": "statistics", "level": "L0", "statistics": {"tensor_list": ["relu"]}})
    assert [path for path, name in CLASSES.items() if config.wants_values(path, name)] == ["net.relu"]
    assert config.wants_module("net.mlp", "MLP")


FORWARD, BACKWARD = {Phase.INIT, Phase.FORWARD, Phase.LOSS}, {Phase.INIT, Phase.BACKWARD, Phase.GRADIENT}


@pytest.mark.parametrize(
    "modes, phases, is_said",
    [
        ([], None, False), (["all"], None, False), (["forward"], FORWARD, False), (["backward"], BACKWARD, False),
        (["forward", "input"], FORWARD, True), (["output"], None, True), (["forward", "backward", "input", "output"], None, False),
    ],
)  # fmt: skip
def test_data_mode(modes: list[str], phases: set[Phase] | None, is_said: bool) -> None:
    config = meant(section(data_mode=modes))
    assert config.phases == phases
    assert ("data_mode: inputs and outputs are both recorded" in config.said) == is_said


def test_only_the_section_of_the_task_counts() -> None:
    config = meant({"task": "structure", "level": "L0", "tensor": {"list": ["a"]}, "statistics": {"list": ["b"]}})
    assert (config.task, config.modules, config.said) == (Task.STRUCTURE, None, "")


def test_what_is_not_done_is_said_in_one_line() -> None:
    said = meant(
        {"level": "L1", "dump_enable": True, "statistics": {"slice": [{"dim": 0}], "bench_path": "x", "lisst": ["a"]}}
    ).said
    assert said == (
        "mindstudio-probe: dump_enable: the file is not watched for changes; "
        "bench_path: record both sides, then probe compare; slice: whole tensors are recorded; unknown field lisst: ignored "
        "(docs/reference/other-tools.md)"
    )


@pytest.mark.parametrize(
    "config, text",
    [
        ({"task": "acc_check", "rank": []}, "task='acc_check' of mindstudio-probe: probe has no such task: it runs single operations again"),
        ({"task": "free", "dump_path": "x"}, "task='free' of mindstudio-probe: expected one of statistics, tensor, "),
        ({"level": "L2"}, "level='L2' of mindstudio-probe: probe records modules and operations, not kernels"),
        ({"dump_enable": False}, "dump_enable=False of mindstudio-probe: it would record nothing"),
        ({"rank": [0, "6-4"]}, """rank=[0, '6-4'] of mindstudio-probe: '6-4' is no rank; expected for example [0, "4-6"]"""),
        ({"rank": 0}, "rank=0 of mindstudio-probe: expected a list; [] means all"),
        ({"step": 0}, "step=0 of mindstudio-probe: expected a list; [] means all"),
        ({"step": ["4-x"]}, "steps=['4-x']: '4-x' is no step"),
        ({"dump_path": 3}, "dump_path=3 of mindstudio-probe: expected a folder"),
        ({"load": {"path": "x"}, "level": "L0"}, "load={'path': 'x'} of mindstudio-probe: it replaces inputs of modules"),
        ({"step": [0], "modules": ["a"]}, "'modules' is an option of probe, 'step' of another tool: use one form"),
        ({"statistics": ["a"]}, "statistics=['a'] of mindstudio-probe: expected an object"),
        (section(list=["Torch.relu.3.backward"]), "list=['Torch.relu.3.backward'] of mindstudio-probe: Torch.relu.3.backward is an operation"),
        (section(list="relu"), "list='relu' of mindstudio-probe: expected a list; [] means all"),
        (section(scope=["a"]), "scope=['a'] of mindstudio-probe: expected the names of two modules"),
        (section(data_mode=["both"]), "data_mode=['both'] of mindstudio-probe: 'both' is not known"),
        ({"common_dump_settings": {"dump_mode": 1}}, "dump_mode=1 of MindSpore's Dump: probe records modules, not kernels"),
        ({"common_dump_settings": {"saved_data": "all"}}, "saved_data='all' of MindSpore's Dump: expected one of tensor, statistic, full"),
        ({"common_dump_settings": {"initial_iteration": 5}}, "initial_iteration=5 of MindSpore's Dump: steps count from 0"),
        ({"common_dump_settings": {"iteration": "0|x"}}, "steps='0|x': 'x' is no step"),
    ],
)  # fmt: skip
def test_what_would_be_another_recording_is_an_error(config: dict[str, Any], text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    for given, where in ((config, ""), (file, f"{file}: ")):
        with pytest.raises(ConfigError) as caught:
            RecordConfig.from_options(given)  # type: ignore[arg-type]
        assert str(caught.value).startswith(("" if text.startswith("steps=") else where) + text)


def test_ranks_are_numbers_and_ranges() -> None:
    config = meant({"rank": [1, "4-6"], "level": "L0"})
    assert [rank for rank in range(8) if config.wants_rank(rank)] == [1, 4, 5, 6]


def test_the_level_debug_records_what_is_saved_alone() -> None:
    config = meant({"level": "debug", "dump_path": "x"})
    assert not any(config.wants_module(path, name) for path, name in CLASSES.items())


# ---- probe.start ---------------------------------------------------------------------------------------


def test_dump_path_is_a_folder_that_is_made(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**EXAMPLE, "dump_path": "some/where"}))
    with pytest.warns(ProbeWarning, match="level='mix': numpy shows no operations") as caught:
        path = probe.start(gpt(), config="config.json")
    assert len(caught) == 1
    assert path is not None and path.parent == Path("some/where") and re.fullmatch(r"probe-[\d-]+\.h5", path.name)
    probe.stop()
    with pytest.warns(ProbeWarning, match="level='mix'"):
        assert probe.start(gpt(), "mine.h5", config="config.json") == Path("mine.h5")


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreError, match="cannot create taken: File exists"):
        probe.start(gpt(), config={"level": "L0", "dump_path": "taken"})


# ---- compare.json --------------------------------------------------------------------------------------


def compare_json(**fields: Any) -> str:
    Path("compare.json").write_text(json.dumps(fields))
    return "compare.json"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    for side, wrong in (("bench", ()), ("npu", (1,))):
        (tmp_path / side).mkdir()
        record(tmp_path / side / "probe-1.h5", net(wrong=wrong))
    return tmp_path


@pytest.mark.parametrize(
    "inside", ["", "/", "/probe-1.h5", "/dump.json", "/step0", "/step0/rank/dump.json", "/step12/rank3"]
)
@pytest.mark.usefixtures("dumps")
def test_a_compare_json_leads_to_the_recordings(inside: str) -> None:
    file = compare_json(
        npu_path=f"./npu{inside}", bench_path=f"bench{inside}", stack_path="x", is_print_compare_log=True
    )
    found = read_compare_json(file)
    assert (found.a, found.b, found.ignored) == (Path("bench/probe-1.h5"), Path("npu/probe-1.h5"), ())


def test_the_command_takes_it_in_the_place_of_both(dumps: Path) -> None:
    file = compare_json(npu_path="npu/step0/rank0/dump.json", bench_path="bench/step0/rank0/dump.json", rank_id=0)
    named = run("compare", "-i", file)
    assert named.exit_code == 1
    plain = run("compare", str(dumps / "bench/probe-1.h5"), str(dumps / "npu/probe-1.h5"))
    assert named.stdout == plain.stdout and "compare.json: ignored: rank_id" in named.stderr
    both = run("compare", "-i", file, "a.h5")
    assert both.exit_code == 3 and "-i compare.json names both recordings" in both.stderr
    none = run("compare", "a.h5")
    assert none.exit_code == 3 and "Missing argument 'B'" in none.stderr


def test_of_several_ranks_the_one_that_the_path_names(dumps: Path) -> None:
    for side in ("npu", "bench"):
        (dumps / side / "probe-1.h5").rename(dumps / side / "probe-1.rank00000.h5")
        (dumps / side / "probe-1.rank00003.h5").write_bytes(b"")
    found = read_compare_json(compare_json(npu_path="npu/step0/rank3/dump.json", bench_path="bench/step0/rank0"))
    assert (found.a.name, found.b.name) == ("probe-1.rank00000.h5", "probe-1.rank00003.h5")
    with pytest.raises(
        StoreError, match=r"bench holds 2 recordings \(probe-1\.rank00000\.h5, probe-1\.rank00003\.h5\); name one"
    ):
        read_compare_json(compare_json(npu_path="npu/step0/rank3", bench_path="bench"))


def test_a_dump_of_mindstudio_itself_stands_for_that_dump(tmp_path: Path) -> None:
    (tmp_path / "old/step0/rank0").mkdir(parents=True)
    (tmp_path / "old/step0/rank0/dump.json").write_text("{}")
    for path in ("old", "old/step0", "old/step0/rank0/dump.json"):
        assert read_compare_json(compare_json(npu_path=path, bench_path=path)).b == Path(path)


@pytest.mark.parametrize(
    "content, text",
    [
        ('{"npu_path": "a"}', "compare.json: bench_path=None; expected a recording, or the folder that holds it"),
        ('{"npu_path": 3, "bench_path": "no"}', "bench_path='no': there is no no; expected a .h5 file there"),
        ("[1]", 'compare.json: expected {"npu_path": ..., "bench_path": ...}'),
        ("{", "compare.json is not valid JSON"),
    ],
)
def test_a_compare_json_that_cannot_be_used(content: str, text: str) -> None:
    Path("compare.json").write_text(content)
    with pytest.raises((ConfigError, StoreError)) as caught:
        read_compare_json("compare.json")
    assert text in str(caught.value)


# ---- the page ------------------------------------------------------------------------------------------

HEAD = """# Other tools' configuration and calls

`probe.start(model, config="config.json")` takes the configuration of mindstudio-probe or of MindSpore's Dump as it is, told by its fields
([how to use it](../guide/recording.md#other-tools-configuration)). Arguments of `probe.start` come first. One warning names what is not done (*named* below); what would
record something else than was meant is an error. The page ends with scripts that call mindstudio-probe, reprod_log or PaDiff.

The tables are made from `probe/dump_settings.py` (`OVERWRITE_GOLDEN=1 python -m pytest tests/compat/test_other_tools.py`).
They have every field of mindstudio-probe 26.2.0 and earlier, and of MindSpore 2.10.
"""


def table(*head: str, rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"


def page() -> str:
    """Return the page up to what is written by hand."""
    out = [HEAD, "## mindstudio-probe: config.json\n"]
    for title, tool, where in (
        ("At the top:", MINDSTUDIO, ""), ("In the section that is named after the task:", MINDSTUDIO, TASK_SECTION),
    ):  # fmt: skip
        out += [f"{title}\n", fields_of(tool, where)]
    tasks = [
        (f"`{name}`", f"{f'`{task}`' if task else 'an error'}: {remark}") for name, (task, remark) in TASKS.items()
    ]
    out += [table("task", "becomes", rows=tasks)]
    levels = [
        (f"`{name}`", f"{f'`{level}`' if level else 'an error'}: {LEVEL_WORDS[name]}") for name, level in LEVELS.items()
    ]
    out += [table("level", "becomes", rows=levels)]
    out += ["## MindSpore: Dump\n"]
    for where in ("common_dump_settings", "e2e_dump_settings"):
        out += [f"In `{where}`:\n", fields_of(DUMP, where)]
    return "\n".join(out)


LEVEL_WORDS = {
    "L0": "the same",
    "L1": "operations, and what the model itself is given and returns",
    "mix": "modules and the operations inside them",
    "debug": "only what `PrecisionDebugger.save` or `probe.log` is given is recorded",
    "L2": "kernels are not recorded",
}


def fields_of(tool: str, where: str) -> str:
    found = [row for row in FIELDS if (row.tool, row.section) == (tool, where)]
    alike = groupby(found, lambda row: row.remark if row.becomes == "–" else f"{row.becomes}: {row.remark}")
    rows = [(", ".join(f"`{row.name}`" for row in group), said) for said, group in alike]
    return table("field", "becomes, or why not", rows=rows)


def test_the_page_is_what_the_table_says() -> None:
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    by_hand = text[text.find("## Calls of mindstudio-probe") :]
    if os.environ.get("OVERWRITE_GOLDEN"):
        PAGE.write_text(f"{page()}\n{by_hand}", encoding="utf-8")
    assert f"{page()}\n{by_hand}" == PAGE.read_text(encoding="utf-8"), "OVERWRITE_GOLDEN=1 writes it anew"


def test_no_cell_is_blank_and_no_field_is_missing() -> None:
    assert all(row.becomes.strip() and row.remark.strip() for row in FIELDS)
    for where, names in IN_2620.items():
        known = {row.name for row in FIELDS if (row.tool, row.section) == (MINDSTUDIO, where)}
        assert set(names.split()) <= known
    assert {name for name in dump_settings._TELLING if name not in TASKS} <= {row.name for row in FIELDS}
    assert len({(row.tool, row.section, row.name) for row in FIELDS}) == len(FIELDS)
