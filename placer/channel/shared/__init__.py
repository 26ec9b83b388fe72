"""The transport over shared memory, between processes of one machine.

Each pair of nodes has one unix socket and, for each direction with a large message, a
pool of chunks in memory that the sender writes and the receiver maps read-only. All
that a receiver relies on (types, sizes, chunk numbers) comes over the socket, so a peer
cannot change it after it was checked. A message passes the modules in this order:

1. `channel`: `_transmit` finds the arrays that are in memory of `share` (`region`; they
   are passed as references, without a copy) and waits for credit.
2. `sender` puts the frames of the message in order: `frames` encodes the header, with
   small payloads inline; `chunks` divides large ones.
3. `chunks` copies each chunk into a free place of the pool; a CHUNK frame announces it.
4. `frame_socket` writes and reads whole frames (`frames`) on the socket.
5. `link` reads the frames of a peer and dispatches them. `receiver` assembles them.
6. `message` is the result: an `InlineMessage`, or a `ChunkedMessage` whose chunks stay
   in the pool until the program consumes them or `detach` copies them into the arena.
   The mailbox delivers it to the program. Consumed chunks go back in a BEAT.

Threads: there is none between a message and the program. Any thread of the program may
send; `sender` has locks for that. The thread that waits for a peer reads its socket
(one at a time, which the mailbox enforces). The session's thread connects the peers
(`rendezvous`), sends heartbeats, reports failures, and reads sockets and resumes
senders only where no thread of the program does.

Flow control: `credits` bounds the bytes in flight; the eight chunks of a pool bound the
copies. Credit travels in BEAT frames. Failure: a lost peer is noticed by the
end of its socket or by silence; an invalid frame is a failure as well. ABORT brings the
root cause to every peer, and an eventfd ends every wait for a frame.
"""
