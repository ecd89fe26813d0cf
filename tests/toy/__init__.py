"""A small framework on numpy with an adapter, registered as anybody else's would be: a second implementation in place of mocks."""

from probe.adapters.frameworks import Framework, register

register(Framework("numpy", "tests.toy.nn", "tests.toy.nn:Module", "tests.toy", "Numpy"))
