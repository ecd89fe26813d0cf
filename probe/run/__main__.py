"""``python -m probe.run``: runs a script, and records the model that it trains."""

from probe.run.command import main

if __name__ == "__main__":
    main()
