"""Reading a recording, whoever wrote it."""
