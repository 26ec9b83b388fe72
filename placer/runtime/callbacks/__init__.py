"""Events of a run, and the objects of the user's that receive them."""
