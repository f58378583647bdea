"""Tokens a second of `fr3e serve` with several clients, beside sampling in one call; memory over many requests.

    .venv/bin/python benchmarks/serving.py [--model warm_starts/order] [--clients 1,16,64] [--requests 10000]

Each client asks again as soon as it has its answer, with another prompt each time. A warm-up of the same kind comes
first, so that nothing is compiled within a figure. `CPU s` are those of the server's process, without the clients'.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


def prompts():
    draw = random.Random(0)
    while True:
        numbers, signs = [draw.randrange(10) for _ in range(5)], draw.choices("+-*", k=4)
        yield "".join(f"{n}{s}" for n, s in zip(numbers, [*signs, ">"], strict=True))


async def client(port: int, bodies, ends: float, counts: list[int], after_each=lambda: None) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < ends and (body := next(bodies, None)) is not None:
        content = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(headers.split("content-length: ")[1].split("\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        counts[0] += 1
        counts[1] += answer["usage"]["completion_tokens"]
        after_each()
    writer.close()


async def clients(port: int, number: int, bodies, seconds: float, after_each=lambda: None) -> tuple[int, int, float]:
    """Requests, tokens and seconds."""
    counts, start = [0, 0], time.monotonic()
    await asyncio.gather(*(client(port, bodies, start + seconds, counts, after_each) for _ in range(number)))
    return counts[0], counts[1], time.monotonic() - start


def served(arguments: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "fr3e_jax", "serve", arguments.model, "--port", "0", *arguments.settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline().split(":")[2].split("/")[0])
        bodies = ({"prompt": prompt, "max_tokens": arguments.tokens} for prompt in prompts())
        print("| clients | requests | tokens/s | tokens a CPU s | memory, MB |\n|---|---|---|---|---|")
        for number in map(int, arguments.clients.split(",")):
            asyncio.run(clients(port, number, bodies, arguments.seconds))
            before = cpu_seconds(process.pid)
            requests, tokens, seconds = asyncio.run(clients(port, number, bodies, arguments.seconds))
            cpu = cpu_seconds(process.pid) - before
            memory = resident_mb(process.pid)
            print(f"| {number} | {requests} | {tokens / seconds:.0f} | {tokens / cpu:.0f} | {memory:.0f} |", flush=True)
        few = itertools.islice(({"prompt": p, "max_tokens": 4} for p in prompts()), arguments.requests)
        done = itertools.count(1)

        def watch() -> None:
            if (count := next(done)) % max(1, arguments.requests // 10) == 0:
                print(f"after {count} requests: {resident_mb(process.pid):.1f} MB", flush=True)

        asyncio.run(clients(port, 64, few, 3600, watch))
    finally:
        process.send_signal(signal.SIGTERM)
        print(f"exit code {process.wait()}")


def sampled(arguments: argparse.Namespace) -> None:
    import fr3e_jax as fr3e

    policy = fr3e.load_policy(arguments.model, overrides=arguments.settings)
    for count in (1, 64, 512):
        texts = list(itertools.islice(prompts(), count))
        options = dict(max_tokens=arguments.tokens, keep_caches=False)
        policy.sample(texts, **options)
        cpu, start = time.process_time(), time.monotonic()
        tokens = sum(len(answer) for _ in range(3) for answer in policy.sample(texts, **options))
        cpu, seconds = time.process_time() - cpu, time.monotonic() - start
        print(
            f"{count} prompts in one call of Policy.sample: {tokens / seconds:.0f} tokens/s, {tokens / cpu:.0f} a CPU s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="warm_starts/order")
    parser.add_argument("--clients", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=64, help="the longest answer")
    parser.add_argument("--seconds", type=float, default=10, help="of a warm-up, and of a figure")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("settings", nargs="*")
    arguments = parser.parse_args()
    sampled(arguments)
    served(arguments)


if __name__ == "__main__":
    main()
