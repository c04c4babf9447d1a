"""Workloads of the schedules benchmark. Each runs in its own process, started by `measure.Runner`.

The figure is the processor time of the process as a share of the time that passes for the queue.
`virtual` moves a clock by itself and lets the queue do what it does by then, in steps no longer
than its timer sleeps. `real` opens the queue as a program does, and waits.
"""

import time
from datetime import UTC, datetime

from measure import Figures, run_workload

import penstock
from penstock.clock import ManualClock
from penstock.queue.opening import open_core
from penstock.queue.queue import Queue

PAYLOAD = bytes(range(28, 128))
STEP_S = 30.0  # the longest sleep of a timer
START = datetime(2026, 3, 28, tzinfo=UTC)  # clocks change the next day


def _put(queue: Queue, count: int, cron: str, every_s: float) -> None:
    for number in range(count):
        name = f"schedule-{number}"
        if cron:
            times = {"cron": cron, "time_zone": "Europe/Berlin"}
            queue.put_schedule(penstock.Schedule(name, PAYLOAD, **times))  # type: ignore[arg-type]
        else:
            queue.put_schedule(penstock.Schedule(name, PAYLOAD, every_s=every_s))


def virtual(directory: str, count: int, cron: str, every_s: int, hours: int) -> Figures:
    """Let hours pass on a virtual clock."""
    clock = ManualClock(now_s=START.timestamp())
    queue = Queue(open_core(directory, {"sync": "never"}, clock=clock, own_timer=False))
    _put(queue, count, cron, every_s)
    queue.stats()
    began = time.process_time()
    for _ in range(round(hours * 3600 / STEP_S)):
        clock.advance(STEP_S)
        while True:
            with queue.core.lock, queue.core.change:
                queue.core.tick()
                if queue.core.next_wake_ns():
                    break
    cpu_s = time.process_time() - began
    fired = sum(one.fired for one in queue.schedules())
    queue.close()
    return {"rate": 100 * cpu_s / (hours * 3600), "messages": float(fired)}


def real(directory: str, count: int, every_s: int, seconds: int) -> Figures:
    """Let seconds pass on the clock of the machine, while a thread publishes."""
    queue = Queue(open_core(directory, {"sync": "never"}))
    _put(queue, count, "", every_s)
    queue.stats()
    began = time.process_time()
    time.sleep(seconds)
    cpu_s = time.process_time() - began
    fired = sum(one.fired for one in queue.schedules())
    queue.close()
    return {"rate": 100 * cpu_s / seconds, "messages": float(fired)}


if __name__ == "__main__":
    run_workload({"virtual": virtual, "real": real})
