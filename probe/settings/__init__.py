"""Settings: what configurations and recordings say of a run, by one set of names, and where two of them differ.

`table` is the data: each setting with its names in every code base. `reading` takes a file apart, `resolving` makes the
settings of it, `comparing` holds two sides against each other, `advising` says what an environment lacks.
"""
