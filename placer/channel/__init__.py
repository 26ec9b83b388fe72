"""Channels pass arrays between the nodes of a run.

`interface` has the interface, `Channel`. `in_process` connects nodes that are threads of one
process; `session` connects processes, over unix sockets and shared memory on one machine
and over TCP between machines, mixed in one run; `transport` chooses which. The threads of
such a process have a `thread_channel` each. In the order in which a message passes the
modules:

1. `payload` checks the arrays of a `send`; `region` finds those in memory of `share`.
2. `mailbox` waits until the credit of the peer covers the message; `credits` counts.
3. `link` numbers the message and sends its header, and its pieces as far as the peer
   allows: `outgoing` makes their frames, which are declared in `frames`. `contents` has
   the types of a message, `pieces` divides the payload, `pool` has the chunks of shared
   memory, `frame_socket` writes and reads the connection.
4. At the other end `link` assembles a `message`, and the `mailbox` delivers it.

How nodes connect: `endpoint` reads addresses, `resolver` looks up names, `connecting`
connects and checks who it is with `keys` and `tls`. What nodes know of each other:
`peers`. docs/channel.md has the invariants: who may write what, who wakes whom, and
what is freed when.
"""
