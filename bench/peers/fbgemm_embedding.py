"""FBGEMM's table with exact Adagrad, on one core: ns of CPU per key.

python fbgemm_embedding.py ROWS BATCH DIM
"""

import sys

import torch
from drawn_ids import show_times, use_one_core
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)


def main(rows: int, batch: int, dim: int) -> None:
    use_one_core()
    torch.set_num_threads(1)
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ADAGRAD,
        learning_rate=0.1,
    )
    offsets, gradient = torch.arange(batch + 1), torch.randn(batch, dim)

    def train(ids):
        table(torch.from_numpy(ids), offsets).backward(gradient)

    show_times(rows, batch, lambda ids: table(torch.from_numpy(ids), offsets), train)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
