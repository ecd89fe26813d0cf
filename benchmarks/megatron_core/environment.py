"""A virtual environment with megatron-core, or another package, that takes torch and probe from the running one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

VERSION = "0.16.1"
REPO = Path(__file__).parents[2]


def environment(folder: Path | None = None, packages: Sequence[str] = (f"megatron-core=={VERSION}",)) -> Path:
    """Return the Python of an environment with packages; it is made once, without what the packages themselves require."""
    folder = folder or Path(tempfile.gettempdir()) / f"probe-megatron-core-{VERSION}"
    python, done = folder / "bin" / "python", folder / "made"
    if not done.exists():
        venv.create(folder, with_pip=True)
        place = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        shared = Path(place.stdout.strip()) / "shared.pth"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*install, *packages], check=True)
        shared.write_text("\n".join([str(REPO), *_packages_of_this(), ""]))
        done.touch()
    return python


def _packages_of_this() -> list[str]:
    """Return the folders of packages of the running environment, those that it shares with others included."""
    own = sysconfig.get_path("purelib")
    return list(dict.fromkeys([own, *(path for path in sys.path if path.endswith("site-packages"))]))
