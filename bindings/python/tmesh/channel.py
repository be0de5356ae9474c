# SPDX-License-Identifier: MIT
"""The asyncio methods of Channel, by its descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ._tmesh import Channel, Tensor
from .errors import GoneError


async def recv(channel: Channel) -> bytes | Tensor | tuple[Tensor, bytes]:
    """Implement Channel.recv_async()."""
    while True:
        message = channel._poll()
        if message is None:
            await _readable(channel)
        elif message is False:
            await _opened(channel)
        else:
            return message


class iterate(AsyncIterator[bytes | Tensor | tuple[Tensor, bytes]]):
    """Implement ``async for``, which ends when no sender is left. An error of one message would end a generator, so
    this is none."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def __anext__(self) -> bytes | Tensor | tuple[Tensor, bytes]:
        try:
            return await recv(self._channel)
        except GoneError:
            raise StopAsyncIteration from None


async def send(channel: Channel, message: Any) -> None:
    """Implement Channel.send_async()."""
    while not channel.try_send(message):
        await _readable(channel)


async def _opened(channel: Channel) -> None:
    """Open a message's memory in another thread, since its owner may take long to answer. If the task is cancelled,
    wait for that thread: the channel is busy until it is done."""
    opening = asyncio.get_running_loop().run_in_executor(None, channel._prepare)
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        await asyncio.wait([opening])
        raise


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _readable(channel: Channel) -> None:
    """Wait until the channel's descriptor is readable. Mark the channel as busy: a second reader of the descriptor
    would replace the first, and if the channel were closed, this task would never wake up."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    fd = channel.fileno()
    channel._begin_wait()
    try:
        loop.add_reader(fd, _wake, ready)
        await ready
    finally:
        channel._end_wait()
        loop.remove_reader(fd)
