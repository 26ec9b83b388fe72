"""Runs the command line from a bare checkout: `python cli.py compile …`."""

from placer.command import main

if __name__ == "__main__":
    main()
