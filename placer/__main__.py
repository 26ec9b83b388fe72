"""`python -m placer` is `placer`."""

from placer.command import main

main()
