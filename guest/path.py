#!/usr/bin/env python3
"""A network path that can be cut: forwards TCP connections to a port of this machine.

usage: path.py PORT_FILE TO_PORT      writes the port it listens on to PORT_FILE

It reads words from standard input, a line each, and answers each with the same word on standard output once it is so:
  cut      connections are reset, new ones refused
  stall    nothing is forwarded any more, as if packets were lost; new connections are accepted and stay silent
  restore  new connections are forwarded again
It ends with its standard input.
"""

import asyncio
import os
import socket
import struct
import sys

# Bytes read at a time.
PIECE = 256 << 10


class Path:
    def __init__(self, to_port):
        self.to_port = to_port
        self.open = set()
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.server = None
        self.port = 0

    async def listen(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", self.port, reuse_address=True)
        self.port = self.server.sockets[0].getsockname()[1]

    async def accept(self, reader, writer):
        self.open.add(writer)
        try:
            await self.flowing.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.to_port)
            self.open.add(far_writer)
            await asyncio.gather(self.pump(reader, far_writer), self.pump(far_reader, writer))
        except OSError:
            pass  # one side has gone: so does the other
        finally:
            self.end(writer)

    async def pump(self, reader, writer):
        try:
            while piece := await reader.read(PIECE):
                await self.flowing.wait()
                writer.write(piece)
                await writer.drain()
        finally:
            self.end(writer)

    def end(self, writer):
        self.open.discard(writer)
        writer.close()

    def cut(self):
        self.server.close()
        for writer in list(self.open):
            # No lingering: the peer sees a reset, as from a host that knows nothing of the connection.
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self.open.clear()

    async def restore(self):
        # What was stalled is lost, not late: bytes that arrive after the peers gave up belong to no connection.
        self.cut()
        self.flowing.set()
        await self.listen()


async def main(port_file, to_port):
    path = Path(int(to_port))
    await path.listen()
    with open(port_file + ".new", "w", encoding="ascii") as file:
        file.write(f"{path.port}\n")
    os.rename(port_file + ".new", port_file)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word = line.strip()
        if word == "cut":
            path.cut()
        elif word == "stall":
            path.flowing.clear()
        elif word == "restore":
            await path.restore()
        else:
            sys.exit(f"path.py: unknown word {word!r}")
        print(word, flush=True)


asyncio.run(main(*sys.argv[1:]))
