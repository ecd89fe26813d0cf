"""An answer as a file or as text for stdout, for the commands that make one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from probe.errors import StoreError

if TYPE_CHECKING:
    from probe.comparison.answer import Comparison


def rendered(answer: Comparison, style: str, top: int) -> str:
    """Return the answer as JSON, HTML, CSV or text, which lists ``top`` further modules."""
    if style == "json":
        import json

        from probe.report.names import harmless_json

        return harmless_json(json.dumps(answer.as_json(), indent=2, ensure_ascii=False)) + "\n"
    if style == "html":
        from probe.report.html import as_html

        return as_html(answer)
    from probe.report import table, text

    return table.as_csv(answer) if style == "csv" else text.render(answer, top, verbose=True).plain + "\n"


def write(output: str, answer: Comparison, style: str, top: int = 0) -> None:
    """Write the answer into a file.

    Raises
    ------
    StoreError
        the file cannot be written
    """
    try:
        if style == "parquet":
            from probe.report import table

            table.write_parquet(answer, output)
        else:
            Path(output).write_text(rendered(answer, style, top), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {output}: {error.strerror or error}") from error
