# SPDX-License-Identifier: MIT
"""A worker with this module waits only one second for a client that does not read, not ten."""

from tmesh.worker import _server

_server.SEND_TIMEOUT_S = 1
