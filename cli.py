"""Runs the command line from a checkout without installing it: `python cli.py compile
…`."""

from placer.command import main

if __name__ == "__main__":
    main()
