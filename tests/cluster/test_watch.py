import asyncio

from roll.cluster.ray.environment import accepts_connections, wait_until_unreachable


def test_an_address_counts_as_unreachable_after_the_given_number_of_misses() -> None:
    async def run() -> tuple[bool, int]:
        heard = 0

        def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal heard
            heard += 1
            writer.close()

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        watching = asyncio.create_task(wait_until_unreachable(f"127.0.0.1:{port}", every_s=0.01, misses=3))
        while heard < 5:
            await asyncio.sleep(0.01)
        early = watching.done()
        server.close()
        async with asyncio.timeout(20):
            await watching
        return early, heard

    early, heard = asyncio.run(run())
    assert not early and heard >= 5


def test_an_invalid_address_accepts_no_connections() -> None:
    for address in ("nonsense", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:1"):
        assert not asyncio.run(accepts_connections(address, 1.0))
