"""Each promise broken on purpose, and the test that must notice."""
