"""One file per pair of public packages; each has a `PAIR`, and the file's name is the pair's."""
