"""Runs `placer` as `python -m placer`."""

from placer.command import main

main()
