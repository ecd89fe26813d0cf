"""The files of many ranks, made by one process, and what it costs to compare them."""
