"""Print the source files that one publish runs through: `python publish_path.py PATH BODY`.

From the bytes of the request to the reply, with the server's modules as plain Python, for a queue
that does not wait for the disk. Compiled modules of other packages are not seen.
"""

import asyncio
import sys
from pathlib import Path
from types import FrameType

import penstock
from penstock.broker.settings import BrokerSettings
from penstock.server.configuration import Configuration
from penstock.server.server import Server
from penstock.server.settings import ServerSettings

SOURCE = Path(penstock.__file__).parent


async def main(data: str, path: str, body: bytes) -> None:
    queues = {"sync": "interval", "sync_interval_s": 60.0}
    settings = BrokerSettings(queues=queues)
    server = Server(Configuration(ServerSettings(data=data, port=0), settings))
    await server.start()
    await server.ready()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    seen: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    # A file is on the path if every publish runs through it. The first ones create the queue and
    # fill caches; timers (charts, ticks) fall into some of the others.
    every: set[str] | None = None
    for number in range(50):
        seen.clear()
        sys.setprofile(note)
        writer.write(request)
        reply = await reader.readuntil(b"\r\n\r\n")
        sys.setprofile(None)
        length = int(reply.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        assert reply.startswith(b"HTTP/1.1 20"), reply
        if number >= 10:
            every = set(seen) if every is None else every & seen
    assert every is not None
    files = sorted(
        str(Path(one).relative_to(SOURCE)) for one in every if SOURCE in Path(one).parents
    )
    print("\n".join(files))
    writer.close()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3].encode()))
