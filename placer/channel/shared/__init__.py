"""The transport over shared memory, between processes of one machine.

Each pair of nodes has one unix socket and, for each direction with a large message, a
ring of chunks in memory that the sender writes and the receiver maps read-only. All
that a receiver relies on (types, sizes, chunk numbers) comes over the socket, so a peer
cannot change it after it was checked. A message passes the modules in this order:

1. `channel`: `send` checks the arrays, finds those that are in memory of `share`
   (`region`; they are passed as references, without a copy) and waits for credit.
2. `sender` puts the frames of the message in order: `header` encodes the header, with
   small payloads inline; `layout` divides large ones into chunks.
3. `ring` copies each chunk into a free place of the ring; a CHUNK frame announces it.
4. `stream` writes and reads whole frames (`frames`) on the socket.
5. `link` reads the frames of a peer and dispatches them. `receiver` assembles them.
6. `message` is the result: an `InlineMessage`, or a `MessageStream` whose chunks stay
   in the ring until the program consumes them or `detach` copies them into the arena.
   The mailbox delivers it to the program. Each consumed chunk goes back in a FREE
   frame.

Threads: there is none between a message and the program. Any thread of the program may
send; `sender` has locks for that. The thread that waits for a peer reads its socket
(one at a time, which the mailbox enforces). `event_loop` is the channel's own thread.
It connects the peers (`rendezvous`), sends heartbeats, reports failures, and reads
sockets and resumes senders only where no thread of the program does, so a node that
computes for minutes stays alive for its peers.

Flow control: `credits` bounds the bytes in flight; the eight chunks of a ring bound the
copies. Credit travels in BEAT and FREE frames. Failure: a lost peer is noticed by the
end of its socket or by silence; an invalid frame is a failure as well. The event loop
sends ABORT with the root cause to every peer, and an eventfd ends every wait for a
frame.
"""
