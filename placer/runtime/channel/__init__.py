"""Channels: how the nodes of a run pass arrays to each other.

`protocol` says what a channel promises; `memory` carries between the threads of one
process, `zeromq` between processes. `mailbox` is what both have in common.
"""
