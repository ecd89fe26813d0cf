"""Recordings on disk: the schema, the writer, the reader."""
