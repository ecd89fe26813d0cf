"""The module tree: of a recording, and out of the text of `print(model)`."""
