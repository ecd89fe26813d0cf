"""A pass through B: its modules run one by one with what A's were given, forwards and backwards."""
