"""``python -m benchmarks.trainings.unaided``: scripts without a line of probe, recorded by `probe.run`, by ``PROBE_RECORD`` and by callbacks.

`benchmarks/trainings/venv` makes an environment that has all libraries. Scripts whose libraries are missing are passed over.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import click
import numpy as np

import probe
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from tests.programs import hooked

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
RUN, VARIABLE, CALLBACK = "probe.run", "PROBE_RECORD", "callback"
EXPECTED_NOTES = re.compile("PaddlePaddle does not tell what one call contributes|computes its gradients in a closure")
"""what a framework, or a trainer that computes gradients inside the optimizer's step, never tells"""
Edit = tuple[str, str]


@dataclass(frozen=True)
class Trial:
    """A script, and what is planted in a copy of it."""

    name: str
    script: str
    fault: Edit
    place: str
    """pattern of the module's path that has to be named"""
    needs: tuple[str, ...]
    """packages"""
    callback: tuple[Edit, ...] = ()
    """what a user changes to record by a callback"""
    before: tuple[Edit, ...] = ()
    """what makes another script of it"""
    environment: str = ""
    """of the script's own, which `benchmarks/trainings/venv` makes; without it, the one that runs this"""
    stands_in: bool = False
    """the library is a stand-in of this benchmark"""
    ranks: int = 1
    steps: int = 3
    micros: int = 2
    ways: tuple[str, ...] = (RUN,)


@dataclass
class Outcome:
    """What came of a trial, one way; texts are empty where nothing fell."""

    fell: str = ""
    same: bool = True
    """losses and final weights, bit by bit"""
    steps: int = 0
    records: int = 0
    lacks: list[str] = field(default_factory=list)
    """what the recording should have and has not"""
    clean: str = ""
    """verdict of two recordings, where the script was recorded another way before"""
    named: str = ""
    """the place that the comparison with the faulty copy names"""
    is_right: bool = False
    seconds: tuple[float, float] = (0.0, 0.0)
    """without probe, and recorded"""

    @property
    def holds(self) -> bool:
        """Whether everything did."""
        return not self.fell and self.same and not self.lacks and self.clean in ("", "ALIGNED") and self.is_right


_TRANSFORMERS = (
    ("import numpy as np\n", "import numpy as np\nfrom probe.integrations.transformers import ProbeCallback\n"),
    ("eval_dataset=Words())", 'eval_dataset=Words(), callbacks=[ProbeCallback("a.h5")])'),
)
_LIGHTNING = (
    ("from torch import nn\n", "from torch import nn\nfrom probe.integrations.lightning import ProbeCallback\n"),
    ("callbacks = []", 'callbacks = [ProbeCallback("a.h5")]'),
)
_MINDSPORE = (
    (
        "from mindspore import nn\n",
        "from mindspore import nn\nfrom probe.integrations.mindspore import ProbeCallback\n",
    ),
    ("[LossMonitor()]", '[LossMonitor(), ProbeCallback("a.h5")]'),
)
_PADDLENLP = (
    ("from paddle import nn\n", "from paddle import nn\nfrom probe.integrations.paddlenlp import ProbeCallback\n"),
    ("callbacks=[]", 'callbacks=[ProbeCallback("a.h5")]'),
)
_TORCH = Trial(
    "plain torch", "plain_torch.py",
    ("model = wrapped = Model()", "model = wrapped = Model()\n    model.blocks[1].norm.eps = 1e-3"),
    r"(^|\.)blocks\.1\.norm$", ("torch",), ways=(RUN, VARIABLE),
)  # fmt: skip
_OF_LIGHTNING = Trial(
    "Lightning", "lightning_module.py", ("module = Module()", "module = Module()\nmodule.net[2].norm.eps = 1e-3"),
    r"(^|\.)2\.norm$", ("torch", "lightning"), callback=_LIGHTNING, ways=(RUN, CALLBACK),
)  # fmt: skip
_OF_PADDLENLP = Trial(
    "PaddleNLP's Trainer", "paddlenlp_trainer.py", ("model = Model()", "model = Model()\nmodel.blocks[1].norm._epsilon = 1e-3"),
    r"(^|\.)blocks\.1\.norm$", ("paddlenlp",), environment=".venv-paddlenlp", callback=_PADDLENLP, ways=(RUN, CALLBACK),
)  # fmt: skip
TRIALS = (
    _TORCH,
    Trial("plain torch, torchrun, 2 ranks", "plain_torch.py", _TORCH.fault, _TORCH.place, ("torch",), ranks=2, ways=(RUN, VARIABLE)),
    Trial(
        "transformers.Trainer", "hf_trainer.py",
        ("model = Qwen2ForCausalLM(config)\n", "model = Qwen2ForCausalLM(config)\nmodel.model.layers[1].self_attn.scaling *= 1.02\n"),
        r"layers\.1\.self_attn$", ("torch", "transformers", "accelerate"), callback=_TRANSFORMERS, ways=(RUN, CALLBACK),
    ),
    _OF_LIGHTNING,
    Trial(
        "pytorch_lightning", _OF_LIGHTNING.script, _OF_LIGHTNING.fault, _OF_LIGHTNING.place, ("torch", "pytorch_lightning"),
        callback=_LIGHTNING, before=(("from lightning import pytorch\n", "import pytorch_lightning as pytorch\n"),), ways=(RUN, CALLBACK),
    ),
    Trial(
        "PaddlePaddle", "paddle_loop.py", ("model = Model()", "model = Model()\nmodel.blocks[1].norm._epsilon = 1e-3"),
        r"(^|\.)blocks\.1\.norm$", ("paddle",),
    ),
    _OF_PADDLENLP,
    replace(_OF_PADDLENLP, name="PaddleNLP's Trainer, a stand-in", needs=("paddle",), environment="", stands_in=True),
    Trial(
        "MindSpore, Model.train", "mindspore_model.py", ("net = Net()", "net = Net()\nnet.blocks[1].norm.epsilon = 1e-3\nnet.blocks[1].norm.layer_norm.epsilon = 1e-3"),
        r"(^|\.)blocks\.1\.norm$", ("mindspore",), callback=_MINDSPORE, micros=1, ways=(RUN, CALLBACK),
    ),
    Trial(
        "MindSpore, value_and_grad", "mindspore_loop.py", ("net = Net()", "net = Net()\nnet.blocks[1].norm.epsilon = 1e-3\nnet.blocks[1].norm.layer_norm.epsilon = 1e-3"),
        r"(^|\.)blocks\.1\.norm$", ("mindspore",), micros=1,
    ),
)  # fmt: skip


def judged(trial: Trial, folder: Path) -> Iterator[tuple[str, Outcome]]:
    """Run a trial without probe, and recorded in each of its ways; yield what came of each."""
    text = edited((SCRIPTS / trial.script).read_text(encoding="utf-8"), trial.before)
    began = time.perf_counter()
    launched(trial, text, folder / "plain")
    seconds = time.perf_counter() - began
    first: Path | None = None
    for way in trial.ways:
        outcome = Outcome()
        try:
            _judge(trial, way, text, folder, outcome)
            outcome.seconds = (seconds, outcome.seconds[1])
            if first is not None:
                outcome.clean = probe.compare(_file(trial, first), _file(trial, folder / way)).verdict.name
            first = first or folder / way
        except (RuntimeError, OSError) as error:
            outcome.fell = f"{error!s:.2000}"
        yield way, outcome


def _judge(trial: Trial, way: str, text: str, folder: Path, outcome: Outcome) -> None:
    changed = edited(text, trial.callback) if way == CALLBACK else text
    began = time.perf_counter()
    launched(trial, changed, folder / way, way)
    outcome.seconds = (0.0, time.perf_counter() - began)
    launched(trial, edited(changed, [trial.fault]), folder / f"{way}-faulty", way)
    for rank in range(trial.ranks):
        plain, recorded = (np.load(folder / each / f"weights{rank}.npz") for each in ("plain", way))
        outcome.same &= sorted(plain) == sorted(recorded) and all(
            plain[k].tobytes() == recorded[k].tobytes() for k in plain
        )
        look(trial, _file(trial, folder / way, rank), outcome)
    answer = probe.compare(_file(trial, folder / way), _file(trial, folder / f"{way}-faulty"))
    outcome.named = answer.divergences[0].path if answer.divergences else answer.verdict.name
    outcome.is_right = re.search(trial.place, outcome.named) is not None


def launched(trial: Trial, text: str, folder: Path, way: str = "") -> None:
    """Run a script in a folder of its own; raise RuntimeError with what it said if it fails."""
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(text, encoding="utf-8")
    python = hooked(folder / "venv") if way == VARIABLE else python_of(trial)
    command = [str(python)]
    if trial.ranks > 1:
        command += [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(trial.ranks),
            "--master-port",
            str(29500 + os.getpid() % 1000),
        ]
    if way == RUN:
        command += ["-m", "probe.run", "-o", "a.h5"]
    words = ["--out"] if trial.script == "plain_torch.py" else []
    out = "weightsRANK.npz" if trial.ranks > 1 else "weights0.npz"
    paths = [str(ROOT), *([str(SCRIPTS / "standins")] if trial.stands_in else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "PROBE_QUIET": "1"}
    environment.pop("PROBE_RECORD", None)
    if way == VARIABLE:
        environment["PROBE_RECORD"] = "a.h5"
    done = subprocess.run(
        [*command, "train.py", *words, out], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(
            f"{way or 'without probe'}: exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )


def python_of(trial: Trial) -> Path:
    """Return the python by which a script is run."""
    own = ROOT / trial.environment / "bin" / "python"
    return own if trial.environment and own.exists() else Path(sys.executable)


def lacks(trial: Trial) -> list[str]:
    """Return the packages that a script needs and its environment has not."""
    code = "import sys, importlib.util as u; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
    done = subprocess.run([str(python_of(trial)), "-c", code, *trial.needs], capture_output=True, text=True, check=True)
    return done.stdout.split()


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return a text with each edit made once; raise ValueError where one finds nothing."""
    for old, new in edits:
        if old not in text:
            raise ValueError(f"the script has no {old!r}")
        text = text.replace(old, new, 1)
    return text


def _file(trial: Trial, folder: Path, rank: int = 0) -> Path:
    return folder / ("a.h5" if trial.ranks == 1 else f"a.rank{rank:05d}.h5")


def look(trial: Trial, path: Path, outcome: Outcome) -> None:
    """Note what a recording should have and has not: of every trained step, all that a step consists of."""
    with Reader(path) as reader:
        outcome.steps, outcome.records = len(reader.steps), outcome.records + len(reader.records)
        outcome.lacks += [text for _, _, text in reader.notes if not EXPECTED_NOTES.search(text)]
        trained = [index for index, each in enumerate(reader.parameters) if each.requires_grad and not each.is_buffer]
        records = reader.records
        scalars = {(step, name) for step, name, _ in reader.scalars}
        for step in range(trial.steps):
            mine = records[records["step"] == step]
            counts = {
                "gradients": (_count(mine, Phase.GRADIENT, Role.PARAM_GRAD), len(trained) * trial.micros),
                "updates": (_count(mine, Phase.UPDATE, Role.DELTA), len(trained)),
                "passes": (
                    len(set(mine["micro"][(mine["phase"] == Phase.FORWARD) & (mine["micro"] >= 0)])),
                    trial.micros,
                ),
            }
            outcome.lacks += [
                f"step {step}: {n} {name} of {wanted}" for name, (n, wanted) in counts.items() if n != wanted
            ]
            outcome.lacks += [f"step {step}: no {name}" for name in ("loss", "lr") if (step, name) not in scalars]
        if not trial.steps <= outcome.steps <= trial.steps + 1:  # an evaluation behind the last step is one of its own
            outcome.lacks.append(f"{outcome.steps} steps of {trial.steps}")


def _count(records: np.ndarray, phase: Phase, role: Role) -> int:
    return int(((records["phase"] == phase) & (records["role"] == role)).sum())


_HEAD = """\
# Trainings without a line of probe

Written by `{command}` on {system} with {versions}.

Each script ([benchmarks/trainings/scripts](../../benchmarks/trainings/scripts)) is trained without probe, recorded, and recorded once more in
a copy with a planted fault. `probe.run` and `PROBE_RECORD` run the script as it is; for a callback, the two lines are added that the guide shows.

* **same**: losses and final weights of every rank are bitwise those of the script without probe.
* **complete**: each of the 3 steps has all micro-batches, the gradient and update of every parameter, loss and learning rate, and no note says that something is missing.
* **equal**: the answer for this recording and the one that was made the way before.
* **fault**: the module that the comparison with the faulty copy names is the one in which the fault was planted.
* **seconds**: of the whole process, without probe and recorded (three small steps: mostly imports).

PaddleNLP 2.8.1 runs in an environment of its own, since it needs older versions of what it imports. Its stand-in, which calls the same events with the same arguments, is
what the tests use.

| script | way | ranks | same | complete | steps | records | equal | fault | seconds |
|---|---|---|---|---|---|---|---|---|---|
"""


def row(trial: Trial, way: str, found: Outcome) -> str:
    """Return an outcome as a row of the page's table."""
    if found.fell:
        return f"| {trial.name} | {way} | {trial.ranks} | **fell** | | | | | | |"
    yes = {True: "yes", False: "**no**"}
    fault = found.named if found.is_right else f"**{found.named}**"
    return (
        f"| {trial.name} | {way} | {trial.ranks} | {yes[found.same]} | {yes[not found.lacks]} | {found.steps} | {found.records:,} | "
        f"{found.clean or '–'} | {fault} | {found.seconds[0]:.1f}, {found.seconds[1]:.1f} |"
    )


@click.command()
@click.argument("words", nargs=-1)
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here.")
def main(words: tuple[str, ...], markdown: Path | None) -> None:
    """Run the trials that have one of the words in their names (all); exit status 1 if something does not hold."""
    rows, fell = [], 0
    for trial in TRIALS:
        lacking = lacks(trial)
        if lacking or (words and not any(word in trial.name for word in words)):
            print(f"left out  {trial.name}{': no ' + ', '.join(lacking) if lacking else ''}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as name:
            for way, outcome in judged(trial, Path(name)):
                rows.append(row(trial, way, outcome))
                fell += not outcome.holds
                print(
                    f"{'holds' if outcome.holds else 'FALLS'}  {trial.name}, {way}{'' if outcome.holds else f': {outcome}'}",
                    flush=True,
                )
    if markdown is not None:
        command = "benchmarks/trainings/venv && .venv-trainers/bin/python -m benchmarks.trainings.unaided --markdown docs/evidence/unaided.md"
        head = _HEAD.format(command=command, system=platform.system(), versions=_versions())
        markdown.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    print(f"{len(rows) - fell} of {len(rows)} hold")
    raise SystemExit(1 if fell else 0)


def _versions() -> str:
    from importlib import metadata

    names = ("torch", "transformers", "accelerate", "lightning", "paddlepaddle", "mindspore")
    return ", ".join(
        f"{name} {metadata.version(name)}" for name in names if importlib.util.find_spec(name.removesuffix("paddle"))
    )


if __name__ == "__main__":
    main()
