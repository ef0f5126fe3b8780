"""Probes of health over HTTP: a process that lives, one that serves, and one that hangs."""

from __future__ import annotations

import asyncio
import threading

from stratalog.server.metrics.health_probes import LIVE_PATH, READY_PATH, HealthProbes

SHORT_S = 0.05


def code(probes: HealthProbes, path: str) -> int:
    answer = probes.answer(path)
    assert answer is not None
    return int(answer.status.split()[0])


async def test_a_live_process_serves_or_does_not() -> None:
    reason = "nothing listens"
    probes = HealthProbes(asyncio.get_running_loop(), lambda: reason)
    assert probes.answer("/metrics") is None
    assert await asyncio.to_thread(code, probes, LIVE_PATH) == 200
    answer = await asyncio.to_thread(probes.answer, READY_PATH)
    assert answer is not None
    assert (answer.status.split()[0], answer.text) == ("503", reason)
    reason = ""
    assert await asyncio.to_thread(code, probes, READY_PATH) == 200
    assert await asyncio.to_thread(code, probes, LIVE_PATH) == 200


async def test_a_process_whose_event_loop_hangs_or_has_ended_is_not_live() -> None:
    probes = HealthProbes(asyncio.get_running_loop(), lambda: "", SHORT_S)
    codes: list[int] = []
    asking = threading.Thread(
        target=lambda: codes.extend(code(probes, path) for path in (LIVE_PATH, READY_PATH))
    )
    asking.start()
    # The loop takes no turn meanwhile.
    asking.join()
    assert codes == [503, 503]
    ended = asyncio.new_event_loop()
    ended.close()
    assert code(HealthProbes(ended, lambda: ""), LIVE_PATH) == 503
