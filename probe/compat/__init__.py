"""Other tools' configuration and calls, done by probe (docs/reference/other-tools.md)."""
