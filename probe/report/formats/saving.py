"""An answer, or a recording, as a file, or as text for stdout: the one place that knows the formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from probe.defaults import FORMATS
from probe.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from probe.answer.comparison import Comparison
    from probe.store.reading.reader import Reader

TOP = 20
"""further modules that a text lists"""


def format_of(path: str | Path) -> str:
    """Return the format that a file's name asks for by its ending.

    Raises
    ------
    ConfigError
        the ending is unknown
    """
    style = FORMATS.get(Path(path).suffix.lower())
    if style is None:
        raise ConfigError(f"cannot tell the format of {path}: expected {', '.join(FORMATS)}")
    return style


def rendered(answer: Comparison, style: str, top: int = TOP) -> str:
    """Return the answer as JSON, HTML, CSV or text, which lists ``top`` further modules."""
    if style == "json":
        import json

        from probe.report.layout import harmless_json

        return harmless_json(json.dumps(answer.as_json(), indent=2, ensure_ascii=False)) + "\n"
    if style == "html":
        from probe.report.html import as_html

        return as_html(answer)
    if style == "csv":
        from probe.report.table import as_csv

        return as_csv(answer)
    from probe.report import text

    return text.render(answer, top, verbose=True).plain + "\n"


def save(answer: Comparison, path: str | Path, style: str | None = None, top: int = TOP) -> Path:
    """Write the answer to a file, in a format or in the one that the file's name asks for; return the path.

    Raises
    ------
    ConfigError
        the ending is unknown, or a Parquet file needs what is not installed
    StoreError
        the file cannot be written
    """
    path, style = Path(path), style or format_of(path)
    if style == "parquet":
        from probe.report.table import write_parquet

        return _written(path, lambda: write_parquet(answer, path))
    text = rendered(answer, style, top)
    return _written(path, lambda: path.write_text(text, encoding="utf-8"))


def save_run(reader: Reader, path: str | Path, step: int | None = None) -> Path:
    """Write the page of a recording to a file; return the path.

    Raises
    ------
    ConfigError
        the file's name does not end in ``.html``
    NotRecordedError
        there is no complete step, or not that one
    StoreError
        the file cannot be written
    """
    from probe.report.html import run_as_html

    path = Path(path)
    if format_of(path) != "html":
        raise ConfigError(f"{path}: one recording is saved as .html")
    page = run_as_html(reader, step)
    return _written(path, lambda: path.write_text(page, encoding="utf-8"))


def _written(path: Path, write: Callable[[], object]) -> Path:
    try:
        write()
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def show(answer: Comparison) -> Path:
    """Write the page to a new folder and open it in the browser; return its path."""
    import tempfile
    import webbrowser

    path = save(answer, Path(tempfile.mkdtemp(prefix="probe-")) / "report.html")
    webbrowser.open(path.as_uri())
    return path
