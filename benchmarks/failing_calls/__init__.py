"""Each system call of the writer failing, at each of its occurrences."""
