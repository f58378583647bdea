"""A small server on the loopback interface that shows a run while it trains."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.stored_run import StoredRun

ADDRESS = "127.0.0.1"
SECONDS = 30  # that a client may say nothing


class LivePage:
    """The page of a run, made again where the run has written a step since; a second request waits for the first."""

    def __init__(self, path: Path, render: Callable[[StoredRun], str]) -> None:
        self._path, self._render, self._lock, self._said = path.absolute(), render, threading.Lock(), ""
        self.shown = ""
        self.shown = self.version()
        self._content = render(StoredRun.open(path)).encode()

    def version(self) -> str:
        """A text that changes when the run writes metrics, rollouts or its summary."""
        try:
            run = StoredRun.open(self._path)
            written = run.directory.metrics.stat().st_mtime_ns if run.directory.metrics.exists() else 0
            return f"{written} {len(run.steps())} {len(run.steps('eval'))} {run.directory.summary.is_file()}"
        except (ConfigError, OSError) as error:  # the run has just been moved, or is being resumed
            self._say(error)
            return self.shown

    def content(self) -> bytes:
        """The page with all that is on disk; the former page if the run cannot be read just now."""
        with self._lock:
            if (version := self.version()) != self.shown:
                try:
                    self._content, self.shown = self._render(StoredRun.open(self._path)).encode(), version
                except Exception as error:  # whatever it is, the former page is still true
                    self._say(error)
            return self._content

    def _say(self, error: Exception) -> None:
        """Print why the page stays as it was, once."""
        if str(error) != self._said:
            self._said = str(error)
            print(f"fr3e report: the page stays as it was: {error}", flush=True)


class _Server(ThreadingHTTPServer):
    """A thread for each connection; a failure is a line."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Name an error in a line; a client that has gone is none."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"fr3e report: a request failed: {type(error).__name__}: {error}", flush=True)


def make_server(page: LivePage, port: int) -> ThreadingHTTPServer:
    """A server of ``page`` that listens on the loopback interface only; port 0 takes a free one.

    A request must name the loopback interface as its host: a page from elsewhere whose name was made to point here
    (DNS rebinding) gets nothing.

    Raises:
      ConfigError: the port is in use.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version, timeout = "fr3e", "", SECONDS

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
        return _Server((ADDRESS, port), Handler)
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
