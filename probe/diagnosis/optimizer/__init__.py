"""By which settings two optimizers differ, read off the numbers of one step."""
