"""Channels over shared memory, between processes of one machine.

Each pair of nodes has one unix socket (`rendezvous`), on which everything that is
believed travels: messages with their types, small payloads, notices and signs of life
(`frames`). Large payloads go through a ring of blocks that the sender writes and the
receiver maps read-only (`region`, `ring`, `layout`, `parcel`). `link` is one end of a
socket, `channel` a node's end of them all.
"""
