"""Waiting no longer than one wants to: for plain code, for awaitable code, and for what was late before."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def within(seconds: float, function: Callable[[], T]) -> T:
    """Run a function and give its result, or raise TimeoutError; what is late ends unheard.

    It runs in a thread of its own, a daemon, so that even what never ends keeps no program from ending.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="hydrator-deadline")
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return results[0]


async def within_async(seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine and give its result, or raise TimeoutError; what is late is cancelled, not awaited.

    ``asyncio.wait_for`` would go on waiting for the cancelled, and a driver may take long to give up.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        task.cancel()
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    return task.result()


async def in_thread(function: Callable[[], T]) -> T:
    """Await a function that runs in a daemon thread of its own; see :func:`within`.

    A thread of asyncio's would be missing elsewhere while it is late, and keep ``asyncio.run`` from ending.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = function()
        except Exception as error:
            settle(answer.set_exception, error)
        else:
            settle(answer.set_result, result)

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        def set_if_awaited() -> None:
            if not answer.cancelled():
                set_outcome(outcome)

        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(set_if_awaited)

    threading.Thread(target=run, daemon=True, name="hydrator-deadline").start()
    return await answer


class Breaker:
    """Skips for a while what was late, then lets it try again.

    Parameters
    ----------
    seconds
        How long it is skipped.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0

    @property
    def remaining(self) -> float:
        """Seconds for which it is still skipped; 0 when it may try."""
        return max(self._until - time.monotonic(), 0.0)

    def trip(self) -> None:
        """Note that it was late."""
        self._until = time.monotonic() + self._seconds
