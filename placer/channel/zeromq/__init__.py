"""The transport over ZeroMQ sockets, between processes.

A node binds one PULL socket, on which everything arrives, and connects one PUSH socket
to each peer. A message passes the modules in this order:

1. `channel`: `_transmit` waits for credit in the mailbox, and encodes the header; large
   arrays are split into chunks without a copy (`payload`).
2. `link` numbers the message, stores it until the peer has it, and sends its frames on
   the PUSH socket of the peer. `frames` describes them.
3. `socket` receives the frames of all peers, and the payload straight into its place.
4. `receiver` classifies each piece of a message: next, duplicate, or beyond a gap; and
   assembles the next message in the arena, or in the `out` of the waiting `receive`.
5. `channel` delivers the whole message to the mailbox, and the program receives it.

Threads: any thread of the program may send; a lock in `link` guards the PUSH socket and
the stored messages. The session's thread owns the PULL socket and `receiver`: it
assembles messages, answers, and sends heartbeats. Threads that wait sleep in the mailbox.

Flow control: BEAT frames carry the bytes that the program has received (credit) and the
number of the last message that has arrived whole. A small message is acknowledged with
the next heartbeat, unless its source waits for room. Delivery: ZeroMQ drops frames when
a connection breaks. The receiver then sees a gap, or a BEAT that announces a number
that it does not have, and asks with RESEND. Incarnations tell a restarted node from the
one before, whose frames are refused. Failure: a peer that is silent for `lost_after`
seconds is lost, and one that restarts after `join` ends the run; ABORT brings the root
cause to every peer. An invalid frame is only counted, because any process can connect.
"""
