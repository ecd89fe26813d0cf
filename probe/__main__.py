"""``python -m probe``: the command `probe`."""

from probe.commands.cli import main

if __name__ == "__main__":
    main(prog_name="probe")
