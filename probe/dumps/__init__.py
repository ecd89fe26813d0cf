"""Other tools' dumps, read as recordings: one reader a tool, `table` says what each dump holds."""
