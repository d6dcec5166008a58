"""Measuring in interleaved rounds: every contender has a turn in every round, so that what else the
machine does hits all of them alike."""

import gc
import math
import time
from dataclasses import dataclass, field

TURN = 0.05           # seconds of a turn, at least one call
LEAST_ROUNDS, MOST_ROUNDS = 7, 20
BUDGET = 6.0          # seconds for all rounds of a scene, if the least number of rounds allows
WARM = 0.002          # seconds of calls before a turn, at least one, to fill the caches again


@dataclass
class Times:
    """Seconds of every call; `busiest` is the most processor time per second of a turn."""

    calls: list = field(default_factory=list)
    busiest: float = 0.0

    def at(self, share):
        return sorted(self.calls)[int(share * (len(self.calls) - 1))]

    @property
    def median(self):
        return self.at(0.5)

    @property
    def least(self):
        return min(self.calls)


def settle(limit=2.0):
    """Waits until no thread of this process runs any more: some pools look for more work for a
    while before they sleep, and that shall not be in the next one's turn."""
    step, deadline = 0.001, time.perf_counter() + limit
    while time.perf_counter() < deadline:
        busy, wall = time.process_time(), time.perf_counter()
        time.sleep(step)
        if time.process_time() - busy < 0.1 * (time.perf_counter() - wall):
            return
    raise RuntimeError("a pool of threads keeps running without work")


def turn(contender, times, seconds=TURN):
    """Calls one after the other for that long, after a few that do not count."""
    run, clock = contender.run, time.perf_counter
    contender.prepare()
    settle()
    end = clock() + WARM
    run()
    while clock() < end:
        run()
    calls = []
    busy, begin = time.process_time(), clock()
    last, end = begin, begin + seconds
    while not calls or last < end:
        run()
        now = clock()
        calls.append(now - last)
        last = now
    times.busiest = max(times.busiest, (time.process_time() - busy) / (last - begin))
    times.calls += calls


def fastest(contenders):
    """The contender whose turns are the shortest, by a short look."""
    if len(contenders) == 1:
        return contenders[0]
    seen = [Times() for _ in contenders]
    for _ in range(3):
        for contender, times in zip(contenders, seen):
            turn(contender, times)
    return min(zip(contenders, seen), key=lambda pair: pair[1].median)[0]


def measure(contenders, between):
    """Times of each contender. `between` is called once a round, with nothing else running."""
    everyone = [Times() for _ in contenders]
    gc.collect()
    gc.disable()
    begin, done, rounds = time.perf_counter(), 0, MOST_ROUNDS
    while done < rounds:
        first = done % len(contenders) # nobody always follows the same one
        for index in (*range(first, len(contenders)), *range(first)):
            turn(contenders[index], everyone[index])
        settle()
        between()
        done += 1
        if done == 1:
            each = time.perf_counter() - begin
            rounds = min(MOST_ROUNDS, max(LEAST_ROUNDS, math.floor(BUDGET / each)))
    gc.enable()
    return everyone
