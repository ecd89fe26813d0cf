"""The file: the built page (``page.html``, made by scripts/build-report from ``app/``) with the document inside."""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Mapping
from importlib import resources

from probe.comparison.run import Comparison
from probe.report.html.document import document
from probe.report.html.run_document import run_document
from probe.report.names import file_names, harmless
from probe.store.reading.reader import Reader

_TITLE, _DATA, _CONNECT = "<!--title-->", "<!--data-->", "<!--connect-->"


def as_html(comparison: Comparison, serving: Mapping[str, str] | None = None) -> str:
    """Return one self-contained page; the two recordings are read again for their statistics and values.

    Parameters
    ----------
    comparison
        what to show
    serving
        of a page that may ask the server that it came from: see `probe.report.html.document.document`

    Raises
    ------
    StoreError, FormatError
        a recording is no longer where it was
    """
    names = " and ".join(file_names(comparison.path_a, comparison.path_b))
    return page(document(comparison, serving), f"{comparison.verdict.value}: {names}", may_ask=serving is not None)


def run_as_html(reader: Reader, step: int | None = None) -> str:
    """Return the page of one recording, of all of its steps or of one.

    Raises
    ------
    NotRecordedError
        it has no complete step, or not that one
    """
    return page(run_document(reader, step), f"{reader.path.name}: recorded")


def page(data: dict[str, object], title: str, *, may_ask: bool = False) -> str:
    """Return the page with a document inside: JSON, deflated, in base64, so that nothing of it can be markup.

    Nothing allows it a request, unless it may ask the server that it came from.
    """
    built = resources.files("probe.report.html").joinpath("page.html").read_text(encoding="utf-8")
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    before, _, after = built.partition(_DATA)
    before = before.replace(_CONNECT, "connect-src 'self'; " if may_ask else "", 1)
    return before.replace(_TITLE, html.escape(harmless(title)), 1) + packed + after
