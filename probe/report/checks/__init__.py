"""The answers of checks in words: the reason first, then what it rests on."""
