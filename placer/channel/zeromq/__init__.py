"""Channels over ZeroMQ sockets, between any processes.

`wire` describes the frames. `link` is the connection to one peer, `inlet` the socket that
everything arrives on, `incoming` puts messages together; `channel` is a node's end of it
all.
"""
