"""``python -m probe``: the command `probe`."""

from probe.commands.cli import probe_main

if __name__ == "__main__":
    probe_main()
