"""W2 with torch RPC (TensorPipe): servers have the rows of the keys, and the MLP.

Of S servers, server i has the keys that are i modulo S. A worker asks each for the rows of
its distinct keys, and pushes their gradients; the parameters of the MLP are as those of
torch_rpc.py. One message of a step has both kinds of gradients, and the keys of a later
step; its answer has parameters and rows. In the mode `sync` a server answers when the
gradients of all workers have come, with the rows of the next step. In the mode `async` it
applies them as they come, and a worker computes its next gradients while it waits: so the
keys are those of the step after the next one.

    python torch_sparse_rpc.py rows.npz 1000000 async --rank 0 --workers 2 --servers 2 \\
        --store FILE --steps 50 --warm 5

Ranks are first those of the workers, then those of the servers. A worker prints the times
when its steps after the first `--warm` ones began and ended.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass
from functools import reduce

import torch
import torch.distributed.rpc as rpc
from torch import nn
from torch.futures import Future
from torch_models import model, optimizer
from torch_sparse import batches, inputs, table

Tensors = list[torch.Tensor]


class Server:
    """One part of the MLP's parameters, and the rows of some keys."""

    def __init__(self, number: int, servers: int, workers: int, keys: int) -> None:
        self.parts = [
            part.detach()
            .flatten()
            .tensor_split(servers)[number]
            .clone()
            .requires_grad_()
            for part in model("w2").parameters()
        ]
        self.optimizer = optimizer("w2")(self.parts)
        self.table, self.table_optimizer = table(-(-keys // servers))
        self.workers = workers
        self.lock = threading.Lock()
        self.pushed: list[Push] = []
        self.answers: list[Future] = []

    def rows(self, keys: torch.Tensor) -> torch.Tensor:
        return self.table.weight.detach()[keys]

    def answer(self, keys: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        return [part.detach() for part in self.parts], self.rows(keys)

    def apply(self, pushes: list[Push]) -> None:
        for part, *gradients in zip(
            self.parts, *(push.gradients for push in pushes), strict=True
        ):
            part.grad = reduce(torch.add, gradients)
        keys = torch.cat([push.keys for push in pushes])
        rows = torch.cat([push.rows for push in pushes])
        weight = self.table.weight
        weight.grad = torch.sparse_coo_tensor(
            keys[None],
            rows,
            weight.shape,
            is_coalesced=len(pushes) == 1,  # the keys of a worker are sorted
        )
        self.optimizer.step()
        self.table_optimizer.step()

    def push(self, push: Push) -> Future:
        answer: Future = Future()
        with self.lock:
            self.pushed.append(push)
            self.answers.append(answer)
            if len(self.pushed) == self.workers:
                self.apply(self.pushed)
                for each, waiting in zip(self.pushed, self.answers, strict=True):
                    waiting.set_result(self.answer(each.asked))
                self.pushed, self.answers = [], []
        return answer

    def push_at_once(self, push: Push) -> tuple[Tensors, torch.Tensor]:
        with self.lock:
            self.apply([push])
            return self.answer(push.asked)


@dataclass(frozen=True)
class Push:
    """The gradients of a worker, and the keys whose rows it asks for.

    Attributes:
        gradients: those of the parts of the MLP's parameters.
        keys, rows: distinct keys in order, and the gradients of their rows.
        asked: the keys of another step.
    """

    gradients: Tensors
    keys: torch.Tensor
    rows: torch.Tensor
    asked: torch.Tensor


SERVER: list[Server] = []  # the one of this process


def look_up(keys: torch.Tensor) -> torch.Tensor:
    with SERVER[0].lock:
        return SERVER[0].rows(keys)


@rpc.functions.async_execution
def push_sync(push: Push) -> Future:
    return SERVER[0].push(push)


def push_async(push: Push) -> tuple[Tensors, torch.Tensor]:
    return SERVER[0].push_at_once(push)


@dataclass(frozen=True)
class Keys:
    """The distinct keys of a batch: those of each server, as the numbers of its rows; and
    where each key of the batch is among them all."""

    of_server: Tensors
    positions: torch.Tensor

    @classmethod
    def of(cls, number: torch.Tensor, servers: int) -> Keys:
        # Ordered by server, and for each by key.
        ordered = number % servers * (1 << 32) + number // servers
        distinct, positions = torch.unique(ordered, return_inverse=True)
        bounds = torch.arange(1, servers) * (1 << 32)
        split = torch.searchsorted(distinct, bounds).tolist()
        parts = distinct.tensor_split(split)
        return cls([part % (1 << 32) for part in parts], positions)


def work(options: argparse.Namespace) -> None:
    net = model("w2")
    data = batches(options.file, options.rank, options.workers)
    loss_of = nn.BCEWithLogitsLoss()
    servers = [f"node{options.workers + i}" for i in range(options.servers)]
    sync = options.mode == "sync"
    push, ahead = (push_sync, 1) if sync else (push_async, 2)
    parameters = list(net.parameters())

    def keys_of(step: int) -> Keys:
        return Keys.of(data[step % len(data)][0], options.servers)

    def send(keys: Keys, gradient: torch.Tensor, asked: Keys) -> list[Future]:
        parts = [p.grad.flatten().tensor_split(options.servers) for p in parameters]
        counts = [len(each) for each in keys.of_server]
        rows = gradient.split(counts)
        return [
            rpc.rpc_async(
                name,
                push,
                (
                    Push(
                        [part[i] for part in parts],
                        keys.of_server[i],
                        rows[i],
                        asked.of_server[i],
                    ),
                ),
            )
            for i, name in enumerate(servers)
        ]

    def receive(answers: list[Future]) -> torch.Tensor:
        """Take the parameters, and return the rows."""
        found = []
        with torch.no_grad():
            for i, answer in enumerate(answers):
                values, rows = answer.wait()
                found.append(rows)
                for parameter, part in zip(parameters, values, strict=True):
                    parameter.view(-1).tensor_split(options.servers)[i].copy_(part)
        return torch.cat(found)

    keys = [keys_of(step) for step in range(ahead)]  # of this step and the next one
    rows = []
    for each in keys:
        asked = zip(servers, each.of_server, strict=True)
        rows.append(torch.cat([rpc.rpc_sync(n, look_up, (k,)) for n, k in asked]))
    begin, answers = 0.0, []
    for step in range(options.warm + options.steps):
        if step == options.warm:
            begin = time.monotonic()
        _, dense, label = data[step % len(data)]
        net.zero_grad(set_to_none=True)
        own = rows.pop(0).requires_grad_()
        x = inputs(nn.functional.embedding(keys[0].positions, own), dense)
        (loss_of(net(x), label) / options.workers).backward()
        keys.append(keys_of(step + ahead))
        if not sync and answers:
            rows.append(receive(answers))
        answers = send(keys.pop(0), own.grad, keys[-1])
        if sync:
            rows.append(receive(answers))
    if not sync:
        receive(answers)
    print(begin, time.monotonic(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("keys", type=int)
    parser.add_argument("mode", choices=("sync", "async"))
    for name in ("rank", "workers", "servers", "steps", "warm"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.sparse.check_sparse_tensor_invariants.disable()
    number = options.rank - options.workers
    if number >= 0:
        SERVER.append(Server(number, options.servers, options.workers, options.keys))
    rpc.init_rpc(
        f"node{options.rank}",
        rank=options.rank,
        world_size=options.workers + options.servers,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{options.store}"
        ),
    )
    if number < 0:
        work(options)
    rpc.shutdown()


if __name__ == "__main__":
    main()
