"""Channels: how the nodes of a run pass arrays to each other.

`protocol` says what a channel promises. `memory` carries between the threads of one
process, `shared` between the processes of one machine, `zeromq` between any; `carrier`
chooses. `mailbox` is what all have in common.
"""
