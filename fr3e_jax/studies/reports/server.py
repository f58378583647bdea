"""A small server on the loopback interface that shows a run while it trains."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.stored_run import StoredRun

ADDRESS = "127.0.0.1"


class LivePage:
    """The newest page of a run. A newer one is made in the background after the run has written a step."""

    def __init__(self, path: Path, render: Callable[[StoredRun], str]) -> None:
        self.path, self.render = path, render
        self._lock = threading.Lock()
        self._state: Any = None
        self._builder: threading.Thread | None = None
        self.version = 0
        self.step = 0
        self.content = b""
        self._build()

    def refresh(self) -> None:
        """Begin to make a newer page, unless there are no newer steps or one is being made."""
        with self._lock:
            making = self._builder is not None and self._builder.is_alive()
            if making or self._on_disk() == self._state:
                return
            self._builder = threading.Thread(target=self._build_quietly, daemon=True)
            self._builder.start()

    def join(self) -> None:
        """Wait until no page is being made."""
        if self._builder is not None:
            self._builder.join()

    def _build_quietly(self) -> None:
        try:
            self._build()
        except (ConfigError, OSError) as error:  # the run has just been moved, or is being resumed
            print(f"fr3e report: the page stays as it was: {error}", flush=True)

    def _build(self) -> None:
        state, run = self._on_disk(), StoredRun.open(self.path)
        content = self.render(run).encode()
        with self._lock:
            self._state, self.content, self.version = state, content, self.version + 1
            self.step = max([record["step"] for record in run.records], default=0)

    def _on_disk(self) -> Any:
        """A value that changes when the run writes metrics or rollouts."""
        run = StoredRun.open(self.path)
        metrics = run.directory.metrics
        written = metrics.stat().st_mtime_ns if metrics.is_file() else 0
        return written, len(run.steps()), len(run.steps("eval")), run.directory.summary.is_file()


def make_server(page: LivePage, port: int) -> ThreadingHTTPServer:
    """A server of ``page`` that listens on the loopback interface only; port 0 takes a free one.

    A request must name the loopback interface as its host: a page from elsewhere whose name was made to point here
    (DNS rebinding) gets nothing.

    Raises:
      ConfigError: the port is in use.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fr3e", ""

        def do_GET(self) -> None:
            if not _names_loopback(self.headers.get("Host", "")):
                self.send_error(HTTPStatus.FORBIDDEN, "this server answers requests to 127.0.0.1 and localhost only")
            elif self.path in ("/", "/report.html"):
                page.refresh()
                self._answer("text/html; charset=utf-8", page.content)
            elif self.path == "/version":
                page.refresh()
                self._answer("application/json", json.dumps({"version": page.version, "step": page.step}).encode())
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, kind: str, content: bytes) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Write nothing: the terminal shows the address alone."""

    try:
        return ThreadingHTTPServer((ADDRESS, port), Handler)
    except OSError as error:
        raise ConfigError(f"port {port} of {ADDRESS} cannot be used ({error}); choose another with --port") from error


def _names_loopback(host: str) -> bool:
    name, _, port = host.rpartition(":") if ":" in host else (host, "", "")
    return name in (ADDRESS, "localhost") and (not port or port.isdecimal())


def serve(path: Path, render: Callable[[StoredRun], str], port: int) -> None:
    """Serve the page of a run until Ctrl-C."""
    with make_server(LivePage(path, render), port) as server:
        print(f"http://{ADDRESS}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
