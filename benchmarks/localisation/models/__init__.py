"""The models of the pairs, by kind: how each is built, what it is given, and its ports to other code bases."""
