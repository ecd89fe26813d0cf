"""An answer as a file: its name's ending says how."""

from __future__ import annotations

import json
import tempfile
import webbrowser
from pathlib import Path

from probe.comparison.answer import Comparison
from probe.errors import ConfigError
from probe.report import table, text
from probe.report.html import as_html
from probe.report.names import harmless_json

FORMATS = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".html": "html", ".txt": "text"}
TOP = 20
"""further modules that a text lists"""


def style_of(path: str | Path) -> str:
    """Return the format that a file's name asks for.

    Raises
    ------
    ConfigError
        its ending is none that is known
    """
    style = FORMATS.get(Path(path).suffix.lower())
    if style is None:
        raise ConfigError(f"cannot tell the format of {path}: expected {', '.join(FORMATS)}")
    return style


def rendered(answer: Comparison, style: str, top: int = TOP) -> str:
    """Return the answer as the text of a file; ``top`` further modules are listed where it is for people."""
    if style == "json":
        return harmless_json(json.dumps(answer.as_json(), indent=2, ensure_ascii=False)) + "\n"
    if style == "html":
        return as_html(answer)
    return table.as_csv(answer) if style == "csv" else text.render(answer, top, verbose=True).plain + "\n"


def save(answer: Comparison, path: str | Path, style: str = "", top: int = TOP) -> Path:
    """Write the answer in a format, or in the one that the file's name asks for; return the path."""
    path, style = Path(path), style or style_of(path)
    if style == "parquet":
        table.write_parquet(answer, path)
    else:
        path.write_text(rendered(answer, style, top), encoding="utf-8")
    return path


def show(answer: Comparison) -> Path:
    """Write the page into a folder of its own and open it in the browser."""
    path = save(answer, Path(tempfile.mkdtemp(prefix="probe-")) / "report.html")
    webbrowser.open(path.as_uri())
    return path
