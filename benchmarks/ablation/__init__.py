"""Which functions of the comparison change an answer: what fires is traced, then left out, one function at a time."""
