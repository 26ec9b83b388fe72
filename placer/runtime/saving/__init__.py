"""What a run keeps: checkpoints, parameters, and how it starts from them."""
