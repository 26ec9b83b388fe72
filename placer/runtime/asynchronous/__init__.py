"""Tables without lockstep: the ends of workers and servers."""
