"""Pictures of results and recordings; matplotlib is imported only when one is drawn."""
