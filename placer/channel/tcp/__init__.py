"""The transport over TCP: one connection for each pair of nodes.

A message passes the modules in this order:

1. `channel`: `_transmit` waits for credit.
2. `link` numbers the message and sends its header, with a small payload inline; large
   ones follow in pieces, as far as the receiver allows. `frames` encodes them.
3. `frame_socket` writes frames straight from the sender's arrays, and reads them; the
   body of a piece is read straight to where its message wants it.
4. `message` is the result: an `InlineMessage`, or a `PiecedMessage`, which the mailbox
   delivers to the program as soon as its header has arrived.

Who does what, so that nothing waits for a tick:

- Frames of one `put` are contiguous, and those of all `put`s are in order. The header of
  a message is put, in the order of the numbers, before the message is in `_outgoing`.
- A piece is sent by the thread that has `_advance_lock`. It looks again after it has
  released it, so that a thread that found it taken loses nothing. The thread that makes
  a piece ready calls `advance`: the one that sends the message, that reads the BEAT which
  allows more pieces, or that has made room in the socket.
- Room in the socket is noticed by the thread that waits for a frame of this peer, if
  there is one, and else by the session's thread. That one is woken once per `watch`; who
  leaves something behind calls `watch` last: `_transmit`, `_on_event`, and a thread of
  the program when it stops reading.
- One thread at a time reads (`mailbox.being_read`). Only it touches `_incoming`, and
  calls `room` and `add` of a message; the program's thread calls the other methods.
- Arrays that are sent are referred to until the peer has acknowledged the message. The
  buffer of a piece is reused when the program asks for the next piece, and that of an
  inline message is freed with its last view.
- A connection that breaks is opened again, until the peer counts as lost. `ended` is set
  by the thread that reads, after the last frame; from then on what was received is final,
  and only the session's thread sets another socket, with both locks of the sender held.
  What the peer has not received is sent again, from its next message and piece on. That
  may be memory of a table, which has not been updated since: an update needs a gradient,
  and that the message.
- Each side waits for the end of the other one before it closes its socket.
"""
