"""The pace of a store: its measured speed sets the length of requests and the number of bytes under way at once.

Too few bytes leave the network idle between an answer and the next request; too many make what is needed now wait
behind what is needed later. Enough is a little more than bandwidth times latency, both as they were seen lately, as
TCP's BBR does it (Cardwell et al. 2016).
"""

import threading
import time
from collections import deque
from typing import final

from ..format.pieces import PIECE

SHORTEST_RUN, LONGEST_RUN = 32, 128  # pieces; shorter ones cost more processor time than they save
_AHEAD = 2.0  # times bandwidth times latency
_WINDOW = 0.25  # seconds over which bytes are counted
_WINDOWS = 20  # of which the fastest one counts
_LATENCY_SECONDS = 10.0  # after which the shortest answer is looked for anew


@final
class Pace:
    """The bandwidth and latency of a store, from the requests of this process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun, self._bytes = time.monotonic(), 0
        self._rates: deque[float] = deque(maxlen=_WINDOWS)
        self._latency: tuple[float, float] | None = None  # the shortest answer, and when it came

    def answered(self, size: int, seconds: float) -> None:
        """Note that a request of `size` bytes took so long."""
        now = time.monotonic()
        with self._lock:
            if self._latency is None or seconds < self._latency[0] or now > self._latency[1] + _LATENCY_SECONDS:
                self._latency = seconds, now
            self._bytes += size
            if now > self._begun + _WINDOW:
                self._rates.append(self._bytes / (now - self._begun))
                self._begun, self._bytes = now, 0

    @property
    def bandwidth(self) -> float:
        """Bytes per second: the fastest quarter of a second lately; 0 if nothing is known yet."""
        with self._lock:
            return max(self._rates, default=0.0)

    @property
    def latency(self) -> float:
        """Seconds of the shortest answer lately; 0 if nothing is known yet."""
        return 0.0 if self._latency is None else self._latency[0]

    @property
    def longest_run(self) -> int:
        """The most pieces of one request: what comes in about one latency."""
        return min(LONGEST_RUN, max(SHORTEST_RUN, round(self.bandwidth * self.latency / PIECE)))

    @property
    def bytes_under_way(self) -> int:
        """The number of bytes that may be under way at once ahead of time."""
        run = self.longest_run * PIECE
        return max(4 * run, round(_AHEAD * self.bandwidth * self.latency) + 2 * run)
