# SPDX-License-Identifier: MIT
"""A worker that allows this module waits longer for a client that does not read than any test for the others."""

from tmesh.worker import _server

_server.SEND_TIMEOUT_S = 3600
