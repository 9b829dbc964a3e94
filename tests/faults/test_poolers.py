"""A store of a URL behind PgBouncer in transaction mode, where each statement may have another session.

``HYDRATOR_TEST_POOLER=1 python -m pytest tests/integration`` sends all tests of the wrapper through one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from servers import pgbouncer, pooled, proxied
from targets import PATIENCE, done, over_async_url, over_url, run

from hydrator import MemoryStore, OutcomeUnknown

pytestmark = pytest.mark.skipif(pgbouncer() is None, reason="there is no pgbouncer on this machine")


@pytest.fixture(scope="module")
def pooled_url(url: str) -> Iterator[str]:
    with pooled(url, pool_size=2) as address:
        yield address


def test_many_clients_share_few_sessions(db: psycopg.Connection, pooled_url: str) -> None:
    together = threading.Barrier(6)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        # Each prepares other statements first: under one name they would be taken for one another.
        namespace = f"client {number}"
        try:
            with MemoryStore(pooled_url) as store:
                together.wait(PATIENCE)
                for step in range(10):
                    calls = [
                        lambda step=step: store.remember(
                            namespace, f"Memory {step}", embedding=[1, 0, 0, step]
                        ),
                        lambda step=step: store.count_live([namespace]),
                        lambda: store.hydrate_session([1, 0, 0, 0], [namespace]),
                        lambda: store.compact_index([namespace]),
                    ]
                    for call in calls[number % 4 :] + calls[: number % 4]:
                        call()
                assert store.count_live([namespace]) == 10
                with store.transaction() as inside:
                    kept = inside.remember(namespace, "Kept")
                    assert inside.count_live([namespace]) == 11
                [memory] = store.fetch_memories([namespace], [kept])
                assert memory.heading == "Kept"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert db.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)


@pytest.mark.parametrize("kind", [over_url, over_async_url], ids=lambda kind: kind.__name__)
def test_what_is_lost_behind_a_pooler(db: psycopg.Connection, pooled_url: str, kind: object) -> None:
    async def scenario() -> None:
        with proxied(pooled_url) as proxy:
            async with kind(proxy.url) as target:  # type: ignore[operator]
                await done(target.store.remember("acme", "Before"))
                proxy.cut()
                assert len(await done(target.store.compact_index(["acme"]))) == 1
                # As when the server behind the pooler is killed, or the pooler's session of it.
                db.execute(
                    "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )
                assert len(await done(target.store.compact_index(["acme"]))) == 1
                proxy.mute = True
                cutting = threading.Timer(0.2, proxy.cut)
                cutting.start()
                with pytest.raises(OutcomeUnknown):
                    await done(target.store.remember("acme", "Perhaps"))
                cutting.join()
                assert {entry.heading for entry in await done(target.store.compact_index(["acme"]))} == {
                    "Before",
                    "Perhaps",
                }

    run(scenario())
