"""`Data` in words."""

from __future__ import annotations

from rich.text import Text

from probe.checks.data import Data
from probe.report.checks.frame import headed, room_of
from probe.report.layout import wrapped
from probe.report.names import LONGEST_LIST, plain


def render(result: Data, width: int | None = None, *, verbose: bool = False) -> Text:
    """Return the answer, and the samples as text where a tokenizer was given.

    Parameters
    ----------
    result
        what to show
    width
        columns of the terminal; None for what goes to none
    verbose
        whole samples, not their first 2,000 characters
    """
    out = headed(result, width)
    if result.samples:
        first = result.samples[0]
        out.append(f"\nSample {first.sample} of step {first.step} as text\n")
        for sample in result.samples:
            text = plain(sample.text, len(sample.text) if verbose else LONGEST_LIST)
            lead = f"  {sample.side} " if sample.side else "  "
            out.append(f"{wrapped(text, room_of(width), lead, ' ' * len(lead))}\n")
    out.rstrip()
    return out
