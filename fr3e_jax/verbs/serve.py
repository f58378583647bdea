"""``fr3e serve``: an OpenAI-compatible endpoint on the branching decoder."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fr3e_jax.cli.arguments import declare_print_config, declare_run_to_read, positive
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import locate_policy, print_config
from fr3e_jax.configuration import Config, ConfigError

if TYPE_CHECKING:
    from fr3e_jax.serving.answers import Limits
    from fr3e_jax.serving.app import Server

KEY = "FR3E_SERVE_KEY"


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default 127.0.0.1: this machine alone)")
    parser.add_argument("--port", type=int, default=8000, help="port to bind (default 8000; 0: any free one)")
    parser.add_argument("--name", metavar="NAME", help="name of the model (default: as given)")
    parser.add_argument("--key", metavar="KEY", help=f"that clients must send (default: ${KEY}, else none)")
    parser.add_argument("--lanes", type=positive, default=64, help="answers decoded side by side (default 64)")
    parser.add_argument(
        "--context", type=positive, metavar="TOKENS", help="of a prompt and its answer (default: as the network has)"
    )
    parser.add_argument("--answers", type=positive, default=128, metavar="N", help="of a request (default 128)")
    parser.add_argument("--queue", type=positive, default=1024, metavar="N", help="answers that wait (default 1024)")
    parser.add_argument(
        "--body-bytes", type=positive, default=1 << 20, metavar="N", help="of a request's body (default 1 MiB)"
    )
    parser.add_argument(
        "--grace", type=positive, default=30, metavar="SECONDS", help="to finish answers after SIGTERM (default 30)"
    )
    declare_run_to_read(parser, "serve")
    declare_print_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve the weights that the arguments name until a signal comes; return the exit code.

    Raises:
      ConfigError: starlette or uvicorn is missing; the weights cannot be used; the address cannot be bound.
    """
    config, run_dir = locate_policy(arguments)
    if print_config(arguments, config):
        return 0
    try:
        import uvicorn
    except ImportError as error:
        raise ConfigError(f"fr3e serve needs {error.name}; install it with: pip install 'fr3e_jax[serve]'") from error
    from fr3e_jax.serving.answers import Limits

    names = [arguments.run or arguments.recipe, Path(arguments.run or arguments.recipe).name]
    names = list(dict.fromkeys([arguments.name or names[0], *names]))
    key = arguments.key if arguments.key is not None else os.environ.get(KEY, "")
    with _bound(arguments.host, arguments.port) as listener:
        limits = Limits(arguments.context or 0, arguments.answers, arguments.queue, arguments.body_bytes, key)
        server, stopping = None, lambda: server is not None and server.should_exit
        application = open_server(
            config,
            run_dir,
            names,
            limits,
            lanes=arguments.lanes,
            stopping=stopping,
        ).application()
        settings = uvicorn.Config(
            application, access_log=False, log_level="warning", ws="none", timeout_graceful_shutdown=arguments.grace
        )
        server = uvicorn.Server(settings)
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        print(f"{names[0]} is served at {address}; Ctrl-C or SIGTERM ends it", flush=True)
        if not key and not ipaddress.ip_address(host).is_loopback:
            print(f"fr3e: other machines reach it, and no key is needed: set {KEY} or --key", flush=True)
        with _quiet_signals():
            server.run(sockets=[listener])
    return 0


def open_server(
    config: Config,
    run_dir: Path | None,
    names: Sequence[str],
    limits: Limits,
    *,
    lanes: int = 64,
    stopping: Callable[[], bool] = lambda: False,
) -> Server:
    """The server of a model, or of a run's newest checkpoint.

    Args:
      config: its settings; ``rollout`` has what a request leaves open. Tools are not called.
      run_dir: the run; None: the model that ``config`` names.
      names: of the model in requests; the first one stands in answers.
      limits: of requests; a context of 0: the positions of the network.
      lanes: the most answers that are decoded side by side.
      stopping: see `Server`.

    Raises:
      ConfigError: the weights cannot be used, or the context is beyond the network's positions.
    """
    from fr3e_jax.api.policy import Policy
    from fr3e_jax.serving.answers import Exchanges
    from fr3e_jax.serving.app import Server
    from fr3e_jax.serving.decoder import ServingDecoder
    from fr3e_jax.session.run_weights import refused_weights

    config.tools.kind = "none"
    policy = Policy(config, run_dir)
    codec, positions = policy.texts.codec, policy.positions
    if limits.context > positions:
        raise ConfigError(f"--context={limits.context}; the network has {positions} positions")

    def decoder(post):
        return ServingDecoder(
            policy.sampler.engine.programs,
            policy.weights,
            lanes=lanes,
            chunk=config.rollout.decode_chunk,
            pad_id=codec.pad_id,
            stops=len(codec.stop_ids),
            post=post,
        )

    exchanges = Exchanges(policy.texts, config, names, limits._replace(context=limits.context or positions))
    server = Server(exchanges, decoder, stopping)
    with refused_weights(config.model, run_dir, policy.step):
        server.decoder.warm_up()
    return server


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{host}:{port} cannot be bound ({error}); name another --host or --port") from error


@contextlib.contextmanager
def _quiet_signals() -> Iterator[None]:
    """A block in which uvicorn alone heeds SIGTERM and SIGINT; it raises them again when it has ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


VERB = Verb("fr3e serve warm_starts/order --port 8000", declare, run)
