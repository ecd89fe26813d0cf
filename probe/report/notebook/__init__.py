"""What a notebook shows of results and recordings: short pieces of HTML in the colours of its theme."""
