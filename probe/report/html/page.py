"""The file: the built page (``page.html``, made by scripts/build-report from ``app/``) with the document inside."""

from __future__ import annotations

import base64
import html
import json
import zlib
from importlib import resources
from pathlib import Path

from probe.comparison.divergence import Comparison
from probe.report.html.document import document
from probe.report.text import harmless

_TITLE, _DATA = "<!--title-->", "<!--data-->"


def as_html(comparison: Comparison) -> str:
    """Return one self-contained page; the two recordings are read again for their statistics and values.

    Raises
    ------
    StoreError, FormatError
        a recording is no longer where it was
    """
    names = " and ".join(Path(path).name for path in (comparison.path_a, comparison.path_b))
    return page(document(comparison), f"{comparison.verdict.value}: {names}")


def page(data: dict[str, object], title: str) -> str:
    """Return the page with a document inside: JSON, deflated, in base64, so that nothing of it can be markup."""
    built = resources.files("probe.report.html").joinpath("page.html").read_text(encoding="utf-8")
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    before, _, after = built.partition(_DATA)
    return before.replace(_TITLE, html.escape(harmless(title)), 1) + packed + after
