"""A virtual environment with megatron-core that takes torch and probe from the running one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

VERSION = "0.16.1"
REPO = Path(__file__).parents[2]


def environment(folder: Path | None = None) -> Path:
    """Return the Python of an environment with megatron-core; it is made once, without megatron-core's own requirements."""
    folder = folder or Path(tempfile.gettempdir()) / f"probe-megatron-core-{VERSION}"
    python, done = folder / "bin" / "python", folder / "made"
    if not done.exists():
        venv.create(folder, with_pip=True)
        packages = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        shared = Path(packages.stdout.strip()) / "shared.pth"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*install, f"megatron-core=={VERSION}"], check=True)
        shared.write_text("\n".join([str(REPO), *_packages_of_this(), ""]))
        done.touch()
    return python


def _packages_of_this() -> list[str]:
    """Return the folders of packages of the running environment, those that it shares with others included."""
    own = sysconfig.get_path("purelib")
    return list(dict.fromkeys([own, *(path for path in sys.path if path.endswith("site-packages"))]))
