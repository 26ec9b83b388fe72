"""Parameter servers with torch RPC (TensorPipe), as in torch's tutorial of batch updates.

A worker sends its gradients to all servers and gets their parameters back; each server has
an equal part of every parameter. In the mode `sync` a server answers when the gradients of
all workers have come. In the mode `async` it applies them as they come, and a worker
computes its next gradients while it waits for the answer.

    python torch_rpc.py w1 sync --rank 0 --workers 2 --servers 1 --store FILE --steps 50

Ranks are first those of the workers, then those of the servers. A worker prints the times
when its steps after the first `--warm` ones began and ended.
"""

from __future__ import annotations

import argparse
import threading
import time

import torch
import torch.distributed.rpc as rpc
from torch import nn
from torch.futures import Future
from torch_models import batches, model, optimizer


class Server:
    """One part of all parameters, and the gradients of the step so far."""

    def __init__(self, workload: str, number: int, servers: int, workers: int) -> None:
        self.parts = [
            part.detach().flatten().chunk(servers)[number].clone().requires_grad_()
            for part in model(workload).parameters()
        ]
        self.optimizer = optimizer(workload)(self.parts)
        self.workers = workers
        self.lock = threading.Lock()
        self.answer: Future = Future()
        self.pushed = 0

    def values(self) -> list[torch.Tensor]:
        return [part.detach() for part in self.parts]

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def add(self, gradients: list[torch.Tensor]) -> Future:
        with self.lock:
            for part, gradient in zip(self.parts, gradients, strict=True):
                if part.grad is None:
                    part.grad = gradient
                else:
                    part.grad += gradient
            self.pushed += 1
            answer = self.answer
            if self.pushed % self.workers == 0:
                self.apply()
                answer.set_result(self.values())
                self.answer = Future()
        return answer

    def add_at_once(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        with self.lock:
            for part, gradient in zip(self.parts, gradients, strict=True):
                part.grad = gradient
            self.apply()
            return self.values()


SERVER: list[Server] = []  # the one of this process


@rpc.functions.async_execution
def push_sync(gradients: list[torch.Tensor]) -> Future:
    return SERVER[0].add(gradients)


def push_async(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return SERVER[0].add_at_once(gradients)


def work(options: argparse.Namespace) -> None:
    net = model(options.workload)
    data = batches(options.workload, options.rank)
    loss_of = nn.CrossEntropyLoss()
    servers = [f"node{options.workers + i}" for i in range(options.servers)]
    push = push_sync if options.mode == "sync" else push_async
    parameters = list(net.parameters())

    def send() -> list[Future]:
        parts = [p.grad.flatten().chunk(options.servers) for p in parameters]
        return [
            rpc.rpc_async(name, push, ([part[i] for part in parts],))
            for i, name in enumerate(servers)
        ]

    def receive(answers: list[Future]) -> None:
        with torch.no_grad():
            for i, answer in enumerate(answers):
                for parameter, part in zip(parameters, answer.wait(), strict=True):
                    parameter.view(-1).chunk(options.servers)[i].copy_(part)

    begin, answers = 0.0, []
    for step in range(options.warm + options.steps):
        if step == options.warm:
            begin = time.monotonic()
        x, label = data[step % len(data)]
        net.zero_grad(set_to_none=True)
        (loss_of(net(x), label) / options.workers).backward()
        if options.mode == "async":
            receive(answers)
        answers = send()
        if options.mode == "sync":
            receive(answers)
    if options.mode == "async":
        receive(answers)
    print(begin, time.monotonic(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", choices=("w1", "w3"))
    parser.add_argument("mode", choices=("sync", "async"))
    for name in ("rank", "workers", "servers", "steps", "warm"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--store", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    number = options.rank - options.workers
    if number >= 0:
        SERVER.append(
            Server(options.workload, number, options.servers, options.workers)
        )
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
