"""What a type checker tells a user: snippets that are right pass ``mypy --strict``, and slips are errors in their lines."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import probe
from probe import records
from probe.answer.comparison import Comparison
from probe.answer.result import Divergence, SlotResult, SlotResults
from probe.answer.why import Why
from probe.config import Batch, Compression, RecordOptions
from probe.curve_comparison.result import CurveComparison, Finding, SeriesResult
from probe.defaults import FRAMEWORKS, METRICS, PRESET_NAMES
from probe.matching import Direction
from probe.recording import ModuleRecords, Observed, Recording
from probe.replaying.two_models import auto_diff
from probe.report import branch
from probe.report.plots import pair
from probe.reproducibility import perturbing

pytestmark = pytest.mark.thorough

REPO = Path(__file__).parents[2]
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONFIG = f"""
[mypy]
mypy_path = {REPO}
follow_imports = skip
ignore_missing_imports = true
[mypy-probe.*,numpy.*]
follow_imports = silent
"""
"""what is of others is Any"""
OWN_CODE = "# mypy: allow-untyped-defs, allow-untyped-calls, allow-subclassing-any\n"
"""what a snippet defines for itself need not be typed"""

SESSION = """
from pathlib import Path
from typing import Any, assert_type

import numpy as np

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Divergence, SlotResult, SlotResults, Verdict
from probe.answer.why import Why
from probe.curve_comparison import CurveComparison
from probe.recording import ModuleRecords, Observed, Recording
from probe.records import MetricName, Role, TaskName


def recorded(model: Any, task: TaskName = "tensor") -> Path | None:
    probe.seed_all(1)
    with probe.capture(model, "a.h5", task=task, steps=[0, "10-20"], phases=["forward", "backward"], batch="ids") as path:
        model(**probe.make_inputs({"x": "float32[8,64]", "y": {"shape": [8], "dtype": "int64", "vocab": 10}}, to=model))
        probe.log("rate", 0.1)
        probe.step(loss=1.0, lr=0.1)
    with probe.noise_run(model, Path("a2.h5"), seed=1, dtype="bfloat16", task="statistics", phases="forward"):
        pass
    return assert_type(path, Path | None)


def looked_into() -> None:
    with probe.open("a.h5") as run:
        assert_type(run, Recording)
        assert_type(run[0]["layers.0"].param["weight"], Observed)
        assert_type(run.sel(step=[0, 1])["layers.0"].sel(step=1, role="output"), ModuleRecords)
        probe.compare(run, "b.h5").assert_aligned()
        if "layers.0" in run and len(run) > 1:
            assert_type(list(run), list[str])
        for module in run:
            assert_type(module, str)
        for path, found in run.items():
            print(path.upper(), [tensor.shape for tensor in found.output])
        assert_type(run["layers.*"], ModuleRecords)
        assert_type(run.get("layers.0"), ModuleRecords | None)
        assert_type(run["layers.0"].of(Role.OUTPUT), ModuleRecords)
        assert_type(run["layers.0"].param_grad[-2:], ModuleRecords)
        output = run["layers.0"].output[0]
        assert_type(output, Observed)
        assert_type(output.shape, tuple[int, ...])
        assert_type(output.role, Role)
        column: np.ndarray[Any, Any] = run["layers.0"].output[0][:, 0]
        print(output[0][:, 0], float(output[0, 0]), column.shape, output[output.values() > 0], output[[0, 1]])
        assert_type(np.asarray(output).ndim, int)
        print(np.abs(output).mean(), len(output), [row for row in output])
        assert_type(run.scalars["loss"][0], float)
        assert_type(run.info.framework, str)
        assert_type(run.steps, list[int])
        print(run.batch(0)["input_ids"].shape)


def compared(metric: MetricName = "rel_l2") -> str:
    answer = probe.compare("a.h5", Path("b.h5"), {"Linear": {"a": "b"}}, rtol=1e-3, metric=metric, direction="b-to-a")
    assert_type(answer, Comparison)
    if answer.verdict is Verdict.DIVERGED and "layers.0" in answer:
        print(list(answer), len(answer))
    for module in answer:
        for slot in answer[module]:
            assert_type(slot, SlotResult)
            print(slot.role.label, slot.metrics.rel_l2, slot.verdict == "introduced")
    for path, found in answer.items():
        assert_type(path, str)
        assert_type(found, SlotResults)
    one = answer["layers.0"].output[0]
    a, b = one.values()
    print((a - b).shape)
    one.plot("error", axes=(0, 1))
    answer.plot()
    first = answer.first_divergence
    assert_type(first, Divergence | None)
    if first is not None:
        print(first.path, first.phase.label, first.confidence > 0.5, first.hint)
    assert_type(answer.why("layers.0"), Why)
    assert_type(answer.save("report.html").name, str)
    answer.open()
    return str(answer)


def of_models(model: Any, other: Any, optimizer: Any) -> list[Comparison]:
    with probe.inject(model, "a.h5", "layers.0", direction="a-to-b") as injected:
        assert_type(injected.outputs, dict[str, int])
    probe.load_matching(model, "a.h5", allow_missing=["*.bias"])
    state = probe.convert_weights(other.state_dict(), to="paddle", dtype="bfloat16", source=other)
    assert_type(list(state), list[str])
    return [
        probe.replay(model, "a.h5", weights="b"),
        probe.replay_gradients(model, optimizer, "a.h5", weights="a"),
        probe.auto_diff(other, model, {"x": 1}, phases="forward", compare_mode="mean", rtol=0.01),
        probe.auto_diff(other, model, {"x": 1}, auto_weights=True, options={"atol": 0.1}, diff_phase="backward"),
    ]


def of_runs() -> float:
    answer = probe.curves("a.h5", "b.h5", noise=["a2.h5"], metrics={"accuracy": 0.01})
    assert_type(answer, CurveComparison)
    answer.plot("curves.svg")
    print(answer.first_step, [finding.text for finding in answer.findings], answer["loss"].judgement)
    try:
        probe.compare_batches("a.npz", "b.npz")
    except (probe.errors.StoreError, probe.errors.FormatError) as error:
        print(error)
    return answer["loss"].mean_relative
"""

SLIPS = {
    'probe.start(model, "a.h5", task="tensors")': "task",
    'probe.start(model, "a.h5", phases=["forwards"])': "forwards",
    'probe.start(model, "a.h5", phases="backwards")': "phases",
    'probe.start(model, "a.h5", batch="id")': "batch",
    'probe.capture(model, "a.h5", task="tensors")': "task",
    'probe.capture(model, "a.h5", phases=["forwards"])': "forwards",
    'probe.capture(model, "a.h5", tasks="tensor")': "tasks",
    'probe.noise_run(model, "a.h5", task="value")': "task",
    'probe.noise_run(model, "a.h5", dtype="fp16")': "dtype",
    'probe.compare("a.h5", "b.h5", rtol=1.0, metric="rel_l1")': "metric",
    'probe.compare("a.h5", "b.h5", direction="b-a")': "direction",
    'probe.compare("a.h5", "b.h5", preset="forward")': "preset",
    'probe.curves("a.h5", "b.h5", direction="b-a")': "direction",
    'probe.convert_weights({}, to="jax")': "to",
    'probe.convert_weights({}, to="torch", dtype="int8")': "dtype",
    'probe.replay(model, "a.h5", weights="c")': "weights",
    'probe.auto_diff(model, model, phases="backward")': "phases",
    'probe.auto_diff(model, model, compare_mode="max")': "compare_mode",
    "probe.auto_diff(model, model, loss_func=None)": "loss_func",
    "probe.comparee": "comparee",
    "run.module": "module",
    'run["x"].outputs': "outputs",
    'run["x"].output[0].value': "value",
    'run["x"].output[0]["y"]': "",
    'run["x"].output[0][:, 0].shapes': "shapes",
    'run["x"].output[0].values().shapes': "shapes",
    "answer.first_divergance": "first_divergance",
    'answer["x"].grad_outputs': "grad_outputs",
    'answer["x"].output[0].metrics.rel_l3': "rel_l3",
    'answer["x"].output[0].plot("errors")': "plot",
    'answer["x"].output[0].verdict == "introduce"': "",
    "answer.first_divergence.path": "path",
    'answer["x"].output[0].values()[1].shapes': "shapes",
    'curves["loss"].pear': "pear",
}
"""what is wrong, and the name that the message has"""
HEAD = """
from typing import Any

import probe
from probe.answer.comparison import Comparison
from probe.curve_comparison import CurveComparison
from probe.recording import Recording

def slips(model: Any, run: Recording, answer: Comparison, curves: CurveComparison) -> None:
"""

Said = dict[str, dict[int, str]]
"""by file and line, what mypy says"""


# ---- the snippets of the pages


def blocks(page: Path) -> Iterator[str]:
    """Yield the pieces of Python of a page; one that breaks off inside a statement goes on in the next."""
    open_one = ""
    for block in FENCED.findall(page.read_text(encoding="utf-8")):
        open_one += block
        try:
            ast.parse(open_one)
        except SyntaxError:
            continue
        yield open_one
        open_one = ""
    assert not open_one, f"{page.name} has a piece of Python that never ends"


def names(code: str) -> tuple[set[str], set[str]]:
    """Return the names that a piece of code makes, and those that it takes from elsewhere."""
    nodes = list(ast.walk(ast.parse(code)))
    augmented = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}
    made = {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    made |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    found = [node for node in nodes if isinstance(node, ast.Name)]
    made |= {node.id for node in found if isinstance(node.ctx, ast.Store) and id(node) not in augmented}
    return made, {node.id for node in found} - made - set(dir(builtins))


def of_page(page: Path) -> str:
    """Return a module with a function for each piece of a page, with the pieces before that make what it takes."""
    functions: list[str] = []
    before: list[str] = []
    for block in blocks(page):
        code = block
        for each in reversed(before):
            code = each + code if names(each)[0] & names(code)[1] - {"probe", "np"} else code
        given = sorted(names(code)[1] - {"probe", "np"})
        before.append(block)
        head = f"def piece_{len(before)}({', '.join(f'{name}: Any' for name in given)}) -> None:\n"
        functions.append(head + textwrap.indent(code, "    "))
    defines = any(
        isinstance(node, (ast.FunctionDef, ast.ClassDef)) for each in before for node in ast.walk(ast.parse(each))
    )
    imports = "from typing import Any\n\nimport numpy as np\n\nimport probe\n\n\n"
    return (OWN_CODE if defines else "") + imports + "\n\n".join(functions)


def pages() -> dict[str, str]:
    """Return the modules of all pages that hold Python, by name."""
    found = {
        "page_" + re.sub(r"\W", "_", str(page.relative_to(REPO).with_suffix(""))).lower(): of_page(page)
        for page in PAGES
        if FENCED.search(page.read_text(encoding="utf-8"))
    }
    assert {"page_readme", "page_docs_guide_notebook", "page_docs_guide_curves"} <= set(found)
    return found


# ---- mypy


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What one run of mypy says of all snippets."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("types")
    lines = [f"    {slip}" for slip in SLIPS]
    sources = {**pages(), "session": SESSION, "slips": HEAD + "\n".join(lines) + "\n"}
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    (folder / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        "mypy.ini",
        "--cache-dir",
        "cache",
        "--no-pretty",
    ]
    command += ["--no-color-output", "--no-error-summary", *(f"{name}.py" for name in sources)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    found: Said = {name: {} for name in sources}
    for file, line, text in re.findall(r"^(\w+)\.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found[file][int(line)] = text
    assert done.stdout.count(": error: ") == sum(map(len, found.values())), done.stdout
    return found


@pytest.mark.parametrize("name", [*pages(), "session"])
def test_what_users_write_passes(said: Said, name: str) -> None:
    assert said[name] == {}


def test_each_slip_is_an_error_in_its_line(said: Said) -> None:
    first = HEAD.count("\n") + 1
    assert set(said["slips"]) == {first + at for at in range(len(SLIPS))}
    for at, (slip, named) in enumerate(SLIPS.items()):
        assert named in said["slips"][first + at], slip


# ---- the names, and what they stand for


@pytest.mark.parametrize(
    ("names", "table"),
    [
        (records.TaskName, [task.value for task in records.Task]),
        (records.PhaseName, [phase.label for phase in records.Phase]),
        (records.BatchName, [kind.value for kind in Batch]),
        (records.CompressionName, [kind.value for kind in Compression]),
        (records.MetricName, METRICS),
        (records.DirectionName, [each.value for each in Direction]),
        (records.PresetName, PRESET_NAMES),
        (records.JudgementName, ["", *sorted(branch._STATES)]),
        (records.PictureName, pair._KINDS),
        (records.FrameworkName, FRAMEWORKS),
        (records.AutocastName, perturbing._NARROWER),
        (records.CompareModeName, auto_diff._MODES),
    ],
)
def test_names_are_those_of_the_tables(names: Any, table: Any) -> None:
    assert set(get_args(names)) == set(table)


def test_roles_are_attributes_that_a_type_checker_sees() -> None:
    assert list(records.ByRole.__annotations__) == [role.label for role in records.Role]


def test_options_that_are_passed_on_are_those_of_start() -> None:
    hints = get_type_hints(probe.start)
    options = inspect.signature(probe.start).parameters.values()
    expected = {each.name: hints[each.name] for each in options if each.kind is each.KEYWORD_ONLY}
    assert get_type_hints(RecordOptions) == expected


def test_the_package_says_that_it_is_typed() -> None:
    """`tests/house/test_packaging.py` sees to it that every file is installed."""
    assert (REPO / "probe" / "py.typed").is_file()


ANSWERS = [
    Comparison,
    CurveComparison,
    Divergence,
    Finding,
    ModuleRecords,
    Observed,
    Recording,
    SeriesResult,
    SlotResult,
    SlotResults,
    Why,
]
OF_OTHERS = {
    "Comparison.plot",
    "Comparison.table",
    "ModuleRecords.to_xarray",
    "Observed.plot",
    "Observed.to_xarray",
    "Recording.plot",
    "Recording.table",
    "SlotResult.plot",
    "SlotResult.to_xarray",
    "SlotResults.to_xarray",
}
"""what returns an object of matplotlib, pandas or xarray, which need not be there"""


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions, and the methods of what they return."""
    yield from ((name, getattr(probe, name)) for name in probe.__all__ if name != "__version__")
    for answer in ANSWERS:
        for name, member in vars(answer).items():
            function = member.fget if isinstance(member, property) else getattr(member, "func", member)
            if not name.startswith("_") and inspect.isfunction(function):
                yield f"{answer.__name__}.{name}", function


@pytest.mark.parametrize(("name", "function"), list(public()))
def test_public_functions_say_what_they_take_and_return(name: str, function: Callable[..., Any]) -> None:
    signature = inspect.signature(function)
    assert [each.name for each in signature.parameters.values() if each.annotation is each.empty] in ([], ["self"])
    assert signature.return_annotation is not signature.empty
    assert (signature.return_annotation == "Any") == (name in OF_OTHERS)
