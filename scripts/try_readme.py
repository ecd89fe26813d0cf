"""What scripts/try-wheel asks of an installed probe: its files, its commands, and the lines of the README.

python scripts/try_readme.py files probe.whl probe.tar.gz < list of files
python scripts/try_readme.py commands yes|no
python scripts/try_readme.py recording yes|no
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
README = (REPO / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
RECORDED = [
    "probe-compare a.h5 b.h5",
    "probe-compare a.h5 b.h5 -o report.html",
    "probe-compare a.h5 b.h5 -o report.json",
    "probe info a.h5",
]
"""commands of the README that need two recordings and nothing else"""
PREPARED = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.randn(3, 5, 8)

def train_step(model, batch, optimizer):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""


def run(*command: str, status: int = 0) -> str:
    """Run a command of the environment that this Python is of; return what it printed."""
    done = subprocess.run([str(BIN / command[0]), *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode != status:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def of_readme(text: str) -> str:
    """Return a text that the README must have."""
    if text not in README:
        sys.exit(f"README.md no longer has {text!r}: change scripts/try_readme.py with it")
    return text


def try_files(*archives: str) -> None:
    """Every file of the package that git knows is in wheel and sdist, but what the HTML page and the loop are made of."""
    wanted = {line.strip() for line in sys.stdin if "/html/app/" not in line}
    for archive in archives:
        if archive.endswith(".whl"):
            found = set(zipfile.ZipFile(archive).namelist())
            expected = {
                re.sub("^layer_mappings/", "probe/layer_mappings/", name)
                for name in wanted
                if name[-2:] not in (".c", ".h")
            }
        else:
            found = {name.partition("/")[2] for name in tarfile.open(archive).getnames()}
            expected = wanted
        if expected - found:
            sys.exit(f"{archive} lacks {', '.join(sorted(expected - found))}")


def try_commands(compiled: str) -> None:
    """What can be done with nothing but probe; whether the compiled loop is there."""
    run("python", "-c", f"from probe.numbers import kernel; assert kernel.AVAILABLE is {compiled == 'yes'}")
    place = run("python", "-c", "import probe; print(probe.__file__)").strip()
    if not place.startswith(sys.prefix):
        sys.exit(f"this is not the installed probe: {place}")
    run(
        "python",
        "-c",
        "import probe, sys; [getattr(probe, name) for name in probe.__all__]; assert 'torch' not in sys.modules",
    )
    for command in ("probe demo", "probe --help", "probe --version", "probe-compare --help", "probe map list"):
        run(*command.split())
    of_readme("    probe demo")


def try_recording(compiled: str) -> None:
    """The README's three lines in two programs with torch, and what it says to do with their recordings."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    program = next(block for block in blocks if 'probe.start(model, "a.h5")' in block)
    for name in ("a.h5", "b.h5"):
        said = run("python", "-c", PREPARED + program.replace("a.h5", name))
        if said.count("no C compiler") != (compiled == "no"):
            sys.exit(f"compiled loop: {compiled} expected, but it said:\n{said}")
    for command in RECORDED:
        run(*of_readme(command).split())
    run("python", "-c", "import probe; assert probe.compare('a.h5', 'b.h5').first_divergence is None")


if __name__ == "__main__":
    {"files": try_files, "commands": try_commands, "recording": try_recording}[sys.argv[1]](*sys.argv[2:])
