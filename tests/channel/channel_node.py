"""A node of a test run: joins, says so, then waits for a message that never comes.

Usage: python channel_node.py NODE ADDRESSES-AS-JSON OPTIONS-AS-JSON. Its last line is
the failure that ended the wait.
"""

from __future__ import annotations

import json
import sys

from placer.errors import RunError
from placer.runtime.channel.protocol import Key
from placer.runtime.channel.zeromq import ZeroMQChannel


def main(node: str, addresses: str, options: str) -> None:
    endpoints = json.loads(addresses)
    channel = ZeroMQChannel(node, endpoints, "test job", **json.loads(options))
    channel.join()
    print("joined", flush=True)
    others = [name for name in sorted(endpoints) if name != node]
    try:
        channel.receive(others[0], Key(1, 1))
    except RunError as error:
        print(error, flush=True)
    channel.close()


main(*sys.argv[1:])
