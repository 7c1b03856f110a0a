"""Asks for /health again and again, as a load balancer's prober does: on one connection that is kept.

`python -m bench.prober PORT SECONDS PERIOD` is a process of its own, so that what else is measured does not delay it;
prints the times and failures as one JSON object.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time


class Prober:
    """Asks for /health all the time in a thread of its own, between `with` and its end."""

    def __init__(self, port: int, period_s: float = 0.02) -> None:
        self.times_s: list[float] = []
        self.failures: list[str] = []
        self._port = port
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        while not self._stop.wait(self._period_s):
            begin = time.perf_counter()
            try:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
                continue
            self.times_s.append(time.perf_counter() - begin)
            if answer.status != 200:
                self.failures.append(f"status {answer.status}")


def main() -> None:
    port, seconds, period = sys.argv[1:4]
    with Prober(int(port), float(period)) as prober:
        time.sleep(float(seconds))
    print(json.dumps({"times_s": prober.times_s, "failures": prober.failures}))


if __name__ == "__main__":
    main()
