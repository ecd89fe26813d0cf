"""A comparison, or one recording, as one HTML file that opens from disk: a document of plain data, and the page that shows it."""

from probe.report.html.page import as_html, run_as_html

__all__ = ["as_html", "run_as_html"]
