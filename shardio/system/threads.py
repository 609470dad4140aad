"""Work done by threads, and its results taken in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2  # items for each thread that are under way, or done and not yet taken


def in_order(work: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """`work` of each item, in the order of the items whatever is done first.

    A bounded number of results waits to be taken. What `work` raises is raised at its item's turn; what has not begun
    by then, or when the caller takes no more, is not begun.
    """
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
