"""Channels pass arrays between the nodes of a run.

`protocol` has the interface, `Channel`, and what all transports share. `memory` connects
nodes that are threads of one process. Between processes, `session` has all that does
not depend on how bytes move (start, heartbeats, failures, end), and `transport` opens a
channel over shared memory (`shared`), TCP (`tcp`) or ZeroMQ (`zeromq`). A new transport
is a subclass of `session.Session`, an entry of `transport.TRANSPORTS`, and an entry of
the fixtures of its tests. In the order in which a message passes the modules:

1. `payload` checks the arrays of a `send` and, for ZeroMQ, splits them into chunks.
2. `mailbox` checks the size in `reserve`, and waits until the credit of the peer covers
   the message; `credits` counts. Then the transport moves the bytes.
3. `frame_bodies` decodes and validates the msgpack bodies of the frames that arrive.
4. `message` is what the transport puts into the receiver's `mailbox`: a
   `Message`, whose chunks may still be arriving.
5. `mailbox` matches messages with calls of `receive` and `pieces`, which return them to
   the program and acknowledge them.

Threads: any thread of the program may call a channel. One lock in `Mailbox` guards all
that these threads share: queued messages, credits, waits, the root cause. A session has
one thread of its own; see the packages of the transports for which thread reads and
writes sockets.

Flow control: a node sends a peer at most `bound` bytes that the peer's program has not
received yet. `Mailbox._wait` acknowledges early where waiting could become a deadlock.
Heartbeats: `liveness` reports a peer as lost after a silence of `lost_after` seconds.
Failure: the first root cause wins; `abort` wakes every wait of this node and is sent to
every peer, where it does the same. Start: `endpoint` checks addresses, `Session.join`
waits until all peers are connected, and `Session.close`, after a failure, until they
have been informed of it.
"""
