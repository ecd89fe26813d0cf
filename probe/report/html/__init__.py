"""A comparison as one HTML file that opens from disk: a document of plain data, and the page that shows it."""

from probe.report.html.page import as_html

__all__ = ["as_html"]
