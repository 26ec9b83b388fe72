"""Channels pass arrays between the nodes of a run.

`interface` defines `Channel`. `in_process` connects nodes that are threads of one process.
`session` connects processes: over unix sockets and shared memory on one machine, over TCP
between machines. `transport` chooses between them. If such a process has several nodes, each of
its threads has a `thread_channel`. A message passes the modules in this order:

1. `payload` checks the arrays of a `send`; `region` finds arrays in memory of `share`.
2. `mailbox` waits until the credit of the peer covers the message; `credits` counts the bytes.
3. `link` numbers the message and sends its header, and its pieces as far as the peer allows.
   `outgoing` makes the frames that `frames` declares. `contents` describes the types of a
   message, `pieces` divides the payload, `pool` manages chunks of shared memory, and
   `frame_socket` writes and reads the connection.
4. At the other end, `link` assembles a `message`, and the `mailbox` delivers it.

To connect nodes, `endpoint` reads addresses, `resolver` looks up names, and `connecting` opens
connections and checks the identity of peers with `keys` and `tls`. `peers` tracks the state of
peers. docs/about/channel.md states the invariants: who may write which memory, who wakes whom, and when
memory is freed.
"""
