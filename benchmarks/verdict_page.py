"""`python -m benchmarks.verdict_page`: the tables of the verdict, as docs/reference/verdict.md lists them."""

from __future__ import annotations

from pathlib import Path

from probe.comparison.exemptions.table import EXEMPTIONS, REFITS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "verdict.md"
BEGIN, END = "<!-- begin: python -m benchmarks.verdict_page -->", "<!-- end -->"


def made(page: str) -> str:
    """Return the page with its generated part as the tables are now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{_tables()}{END}{after}"


def _tables() -> str:
    refits = "".join(f"| `{code}` | {sentence} |\n" for code, sentence in REFITS.items())
    exemptions = "".join(f"| `{code}` | {sentence} |\n" for code, sentence in EXEMPTIONS.items())
    return (
        f"\nTried, in this order, on a value of the forward pass that differs by more than its sources explain:\n\n| code | what |\n|---|---|\n{refits}"
        f"\nNot judged:\n\n| code | why |\n|---|---|\n{exemptions}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(made(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
