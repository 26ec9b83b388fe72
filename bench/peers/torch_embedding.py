"""torch's EmbeddingBag with its sparse Adagrad, on one core: ns of CPU per key.

python torch_embedding.py ROWS BATCH DIM
"""

import sys

import torch
from drawn_ids import show_times, use_one_core


def main(rows: int, batch: int, dim: int) -> None:
    use_one_core()
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    bag = torch.nn.EmbeddingBag(rows, dim, sparse=True, mode="sum")
    rule = torch.optim.Adagrad(bag.parameters(), lr=0.1)
    offsets, gradient = torch.arange(batch), torch.randn(batch, dim)

    def train(ids):
        bag(torch.from_numpy(ids), offsets).backward(gradient)
        rule.step()
        rule.zero_grad()

    show_times(rows, batch, lambda ids: bag(torch.from_numpy(ids), offsets), train)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
