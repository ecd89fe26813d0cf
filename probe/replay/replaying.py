"""`replay`: B's modules run alone with what A's were given."""
