"""The file itself, the command that writes it, the run that ends with it, and the server."""

import base64
import hashlib
import http.client
import json
import re
import socket
import struct
import threading
from typing import get_args

import pytest
from reported_runs import HOSTILE, STEPS, write_reported_run

from fr3e_jax.cli import main
from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.metrics import MetricsWriter
from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.figure import Figure, Series, TextTable
from fr3e_jax.studies.analysis.finding_content import finding_content
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports import run_page as run_page_module
from fr3e_jax.studies.reports.embedding import asset
from fr3e_jax.studies.reports.outcome_marks import MARKS
from fr3e_jax.studies.reports.run_data import RunData
from fr3e_jax.studies.reports.run_page import SCRIPTS, PageAtTheEnd, run_page, write_report
from fr3e_jax.studies.reports.server import LivePage, make_server
from fr3e_jax.verdict import Outcome


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "<b>run"
    write_reported_run(path, hostile=True)
    return path


@pytest.fixture(scope="module")
def page(hostile):
    return run_page(StoredRun.open(hostile))


def test_texts_of_a_run_are_nowhere_in_the_markup(page):
    for text in [*HOSTILE, "<img src=x onerror=alert(1)>", "<b>x</b>", "<i>order</i>", "question 11"]:
        assert text not in page
    assert "<title>&lt;b&gt;run: report</title>" in page
    assert page.isprintable() or not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\u2066]", page.split("<script>")[0])


def test_policy_of_the_page_allows_its_own_script_and_style_and_no_address(page):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    for name in ("script", "style"):
        (inline,) = re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "connect-src" not in policy and "http" not in policy
    assert re.findall(r'(?:src|href)="([^"]*)"', re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)) == [
        "data:,"
    ]


def test_page_shows_the_findings_of_all_analyses(hostile, monkeypatch):
    shown = []
    monkeypatch.setattr(
        run_page_module, "collect", lambda run, figures, limits: shown.append(list(figures)) or RunData({})
    )
    run = StoredRun.open(hostile)
    run_page(run)
    run_page(run, [])
    assert shown == [findings(run), []] and {"pass_at_k", "advantages_over_steps"} <= {one.name for one in shown[0]}


def test_page_shows_the_findings_that_needed_the_model(tmp_path, monkeypatch):
    path = tmp_path / "run"
    write_reported_run(path)
    table = TextTable(name="intervention_groups", title="Groups", columns=["tokens", "replaced"], cells=[["random", 3]])
    series = [Series("mean", ["random"], [0.4], [0.3], [0.5])]
    effects = Figure(name="interventions", title="Effects", kind="bars", x_label="tokens", y_label="I_t", series=series)
    (path / "interventions").mkdir()
    for finding in (table, effects):
        (path / "interventions" / f"{finding.name}.json").write_bytes(finding_content(finding))
    shown = []
    monkeypatch.setattr(run_page_module, "collect", lambda run, found, limits: shown.extend(found) or RunData({}))
    run_page(StoredRun.open(path))
    assert [one.title for one in shown[-2:]] == [table.title, effects.title]
    assert shown[-2].cells == table.cells and shown[-1].series == series
    (path / "interventions" / "interventions.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"interventions\.json is no finding"):
        run_page(StoredRun.open(path))


def test_each_outcome_of_a_verdict_has_a_mark_of_its_own_word():
    assert set(get_args(Outcome)) <= MARKS.keys()
    assert len({mark["word"] for mark in MARKS.values()}) == len(MARKS)


def test_no_asset_makes_markup_or_programs_from_text():
    own = "".join(asset(name) for name in [*SCRIPTS[1:], "page/live.js", "page/comparison.js"])
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", own) == []
    assert not re.search("</script|<!--", own + asset(SCRIPTS[0]), re.IGNORECASE)  # would end the script's element


def test_report_verb_writes_the_page_into_the_run_or_where_it_is_told(hostile, tmp_path, capsys):
    assert main(["report", str(hostile)]) == 0
    assert "report.html" in capsys.readouterr().out and (hostile / "report.html").is_file()
    assert main(["report", str(hostile), "--output", str(tmp_path / "mine.html")]) == 0
    assert (tmp_path / "mine.html").read_bytes() == (hostile / "report.html").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "absent"], "absent holds no run"),
        (["report", ".", "--serve", "--output", "x"], "leave out --output"),
        (["report", ".", "--port", "70000"], "not a port"),
    ],
)
def test_a_mistake_costs_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_damaged_file_is_named_and_leaves_the_former_page(tmp_path, capsys):
    path = tmp_path / "run"
    write_reported_run(path)
    former = write_report(path).read_bytes()
    file = path / "rollouts" / "step_000002.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-30])
    assert main(["report", str(path)]) == 2
    assert "step_000002.jsonl.gz" in capsys.readouterr().err and (path / "report.html").read_bytes() == former


def test_a_finished_run_gets_its_page_and_a_failure_is_one_line(hostile, tmp_path, capsys):
    def end(run_dir, state="finished"):
        page = PageAtTheEnd("plain")
        page.on_start(run_dir, 0)
        page.on_end(state, "")
        return capsys.readouterr()

    assert end(hostile) == (f"writing the report\nreport: {hostile / 'report.html'}\n", "")
    assert end(hostile, "stopped") == ("", "")
    error = end(tmp_path / "gone").err
    assert error.startswith("fr3e: the report was not written") and error.count("\n") == 1


def _get(server, path, host):
    connection = http.client.HTTPConnection(*server.server_address, timeout=20)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_server_answers_the_loopback_interface_alone_and_shows_newer_steps(tmp_path):
    path = tmp_path / "run"
    write_reported_run(path)
    page = LivePage(path, lambda run: f"steps {len(run.training)}")
    with make_server(page, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        assert server.server_address[0] == "127.0.0.1"
        assert _get(server, "/", f"127.0.0.1:{port}") == (200, f"steps {STEPS}")
        versions = json.loads(_get(server, "/version", f"localhost:{port}")[1])
        assert versions["shown"] == versions["newest"]
        for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", ""):
            assert _get(server, "/", host)[0] == 403
        assert _get(server, "/../config.yaml", f"localhost:{port}")[0] == 404
        metrics = MetricsWriter(StoredRun.open(path).directory, resume_step=STEPS)
        metrics.write(STEPS + 1, {"reward/mean": 1.0})
        newer = json.loads(_get(server, "/version", f"localhost:{port}")[1])
        assert newer["shown"] == versions["shown"] != newer["newest"]
        assert _get(server, "/", f"localhost:{port}") == (200, f"steps {STEPS + 1}")
        (path / "config.yaml").rename(tmp_path / "config.yaml")
        assert _get(server, "/", f"localhost:{port}") == (200, f"steps {STEPS + 1}")
        server.shutdown()


def test_server_outlives_clients_that_go_bad_lines_and_a_moved_run(tmp_path, capfd):
    path = tmp_path / "run"
    write_reported_run(path)
    page = LivePage(path, lambda run: f"steps {len(run.training)} " + "x" * 10**6)
    with make_server(page, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"localhost:{server.server_address[1]}"
        for content in (
            f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(),
            b"GET /",
            b"\0\xff" * 50,
            b"\x16\x03\r\n\r\n",
        ):
            with socket.create_connection(server.server_address) as client:
                client.sendall(content)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by a reset
        for line in (b"[1]\n", b'{"step": "x", "kind": "train"}\n'):
            (path / "metrics.jsonl").write_bytes((path / "metrics.jsonl").read_bytes() + line)
            assert _get(server, "/", host)[1].startswith(f"steps {STEPS} ")
        path.rename(tmp_path / "moved")
        for place in ("/", "/version", "/"):
            assert _get(server, place, host)[0] == 200
        server.shutdown()
    said = capfd.readouterr()
    assert said.err == "" and said.out.count("the page stays as it was") == said.out.count("\n") == 2
