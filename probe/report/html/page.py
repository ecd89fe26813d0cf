"""The file: the built page (``page.html``, made by scripts/build-report from ``app/``) with the document inside."""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Mapping
from importlib import resources

from probe.answer.comparison import Comparison
from probe.report.html.columns import in_runs
from probe.report.html.document import DETAILS, document
from probe.report.html.run_document import run_document
from probe.report.layout import file_names, harmless
from probe.report.left_out import qualification
from probe.store.reading.reader import Reader

_TITLE, _DATA, _DETAILS, _CONNECT = "<!--title-->", "<!--data-->", "<!--details-->", "<!--connect-->"


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
    title = f"{comparison.verdict.value}{qualification(comparison.verdict, comparison.left_out)}: {names}"
    return page(document(comparison, serving), title, may_ask=serving is not None)


def run_as_html(reader: Reader, step: int | None = None) -> str:
    """Return the page of one recording, of all of its steps or of one.

    Raises
    ------
    NotRecordedError
        it has no complete step, or not that one
    """
    return page(run_document(reader, step), f"{reader.path.name}: recorded")


def page(data: dict[str, object], title: str, *, may_ask: bool = False) -> str:
    """Return the page with a document inside, in two parts: JSON, deflated, in base64, so that nothing of it can be markup.

    Nothing allows it a request, unless it may ask the server that it came from.
    """
    built = resources.files("probe.report.html").joinpath("page.html").read_text(encoding="utf-8")
    before, _, rest = built.partition(_DATA)
    between, _, after = rest.partition(_DETAILS)
    before = before.replace(_CONNECT, "connect-src 'self'; " if may_ask else "", 1)
    before = before.replace(_TITLE, html.escape(harmless(title)), 1)
    return "".join(
        [
            before,
            *(text for part, end in zip(_parted(data), (between, after), strict=True) for text in (_packed(part), end)),
        ]
    )


def _parted(data: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return a document without the columns that are looked at one tensor at a time, and those: a large page is shown before they are unpacked."""
    tensors = data.get("tensors")
    if not isinstance(tensors, dict):
        return data, {}
    tensors = in_runs(tensors)
    if "answer" not in data:  # of one recording the tree shows them all
        return {**data, "tensors": tensors}, {}
    details = {name: tensors[name] for name in DETAILS}
    return {**data, "tensors": {name: column for name, column in tensors.items() if name not in details}}, details


def _packed(data: dict[str, object]) -> str:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode())).decode()
