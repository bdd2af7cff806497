"""A job whose driver is on one of several nodes of this machine: `on_node.py IP PROGRAM FLAGS`.

Ray looks for the raylet of a driver's machine among all processes there are, and takes the head's before others.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from ray._private import services

_CHOOSE = services.get_node_to_connect_for_driver


def main(ip: str, program: str) -> None:
    """Run the program, whose flags follow, on the node of this address."""

    def choose(client: Any, **wanted: Any) -> Any:
        return _CHOOSE(client, **{**wanted, "node_ip_address": ip})

    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(program).parent)
    with mock.patch.object(services, "get_node_to_connect_for_driver", choose):
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:3])
