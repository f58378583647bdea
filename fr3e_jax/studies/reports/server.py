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
    """The page of a run, made again where the run has written a step since; a second request waits for the first."""

    def __init__(self, path: Path, render: Callable[[StoredRun], str]) -> None:
        self._path, self._render, self._lock, self.shown = path, render, threading.Lock(), ""
        self.shown = self.version()
        self._content = render(StoredRun.open(path)).encode()

    def version(self) -> str:
        """A text that changes when the run writes metrics, rollouts or its summary."""
        try:
            run = StoredRun.open(self._path)
            written = run.directory.metrics.stat().st_mtime_ns
        except (ConfigError, OSError):  # the run has no metrics yet, has just been moved, or is being resumed
            return self.shown
        return f"{written} {len(run.steps())} {len(run.steps('eval'))} {run.directory.summary.is_file()}"

    def content(self) -> bytes:
        """The page with all that is on disk; the former page if the run cannot be read just now."""
        with self._lock:
            if (version := self.version()) != self.shown:
                try:
                    self._content, self.shown = self._render(StoredRun.open(self._path)).encode(), version
                except (ConfigError, OSError) as error:
                    print(f"fr3e report: the page stays as it was: {error}", flush=True)
            return self._content


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
                self._answer("text/html; charset=utf-8", page.content())
            elif self.path == "/version":
                versions = {"shown": page.shown, "newest": page.version()}
                self._answer("application/json", json.dumps(versions).encode())
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
