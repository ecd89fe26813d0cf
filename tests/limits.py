"""How long tests wait."""

HANGS = 900
"""seconds after which what a test waits for is taken to hang: more than any of it takes, however loaded the machine is"""
SHOWS = 60
"""seconds that a way through a page waits for what it clicks: a page that lacks it is no hang, and has many such tests"""
