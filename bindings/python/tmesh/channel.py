# SPDX-License-Identifier: MIT
"""The asyncio side of Channel, by way of its descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ._tmesh import Channel, Tensor
from .errors import GoneError


async def recv(channel: Channel) -> bytes | Tensor | tuple[Tensor, bytes]:
    """What Channel.recv_async() does."""
    while True:
        message = channel._poll()
        if message is None:
            await _readable(channel)
        elif message is False:
            await _opened(channel)
        else:
            return message


class iterate(AsyncIterator[bytes | Tensor | tuple[Tensor, bytes]]):
    """What ``async for`` does, until nobody is left to send. No generator, which an error of one message would end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def __anext__(self) -> bytes | Tensor | tuple[Tensor, bytes]:
        try:
            return await recv(self._channel)
        except GoneError:
            raise StopAsyncIteration from None


async def send(channel: Channel, message: Any) -> None:
    """What Channel.send_async() does."""
    while not channel.try_send(message):
        await _readable(channel)


async def _opened(channel: Channel) -> None:
    """By another thread, since a message's owner may take its time. A task that is cancelled waits
    for that thread: the channel is not free before."""
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
    """Nobody else may use the channel meanwhile: a second reader of its descriptor would push out
    the first, and once it is closed nothing would wake us."""
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
