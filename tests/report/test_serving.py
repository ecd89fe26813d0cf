"""The report from a server: who may ask, what may be written, what is compared then."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import probe
from probe.commands.cli import main
from probe.errors import ConfigError, ProbeError
from probe.mapping.adding import Line
from probe.report import serving
from probe.report.serving import Server, Session
from tests.fusing import apart, together
from tests.limits import HANGS
from tests.report.reading import MAPPING, document_in, recorded
from tests.toys import record

PARTIAL = """\
# by hand
TopLayer:
  embed: words     # the table
  layers: decoder
  norm: final
  head: output

Block:
  norm1: ln1
  attn: attention
"""
LINE = {"section": "Block", "key": "norm2", "target": "ln2"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return recorded(tmp_path_factory.mktemp("runs"))


class Client:
    """A served session, and requests to it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.server = Server(session)
        self.path = f"/{self.server.token}/"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def ask(
        self, method: str = "GET", path: str | None = None, body: bytes | str | None = None, **headers: str
    ) -> tuple[int, str]:
        """Return status and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=HANGS)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, self.path if path is None else path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def save(self, *lines: Any, **headers: str) -> tuple[int, str]:
        return self.ask(
            "POST", f"{self.path}pairs", json.dumps(lines), **{"Content_Type": "application/json", **headers}
        )


@pytest.fixture
def client(tmp_path: Path, runs: tuple[Path, Path]) -> Iterator[Client]:
    mapping = tmp_path / "map.yaml"
    mapping.write_text(PARTIAL, encoding="utf-8")
    # without guesses, so that a line that is saved adds pairs
    found = Client(Session(lambda chosen: probe.compare(*runs, mapping=chosen, min_confidence=1), str(mapping), None))
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_pairs_are_saved_and_compared(client: Client) -> None:
    status, text = client.ask()
    assert status == 200 and document_in(text)["serving"] == {"file": "map.yaml", "said": ""}
    assert "connect-src 'self'; " in text and document_in(text)["answer"]["coverage"]["only_a"] == 3
    assert client.save(LINE) == (200, "{}")
    assert client.session.file.read_text(encoding="utf-8") == PARTIAL + "  norm2: ln2\n"
    after = document_in(client.ask()[1])
    assert after["answer"]["coverage"]["only_a"] == 0 and after["findings"][0]["b"][0]["path"] == "decoder.1.ln2"
    assert after["serving"]["said"].startswith("Saved 1 line in map.yaml and compared again: still diverged; ")
    assert after["serving"]["said"].endswith(" 40 of 43 module calls compared before, 43 of 43 now.")


# Who may ask


@pytest.mark.parametrize(
    "path", ["/", "/pairs", "//", "/x/", "/{cut}/", "/{token}", "/{token}/pairs", "/{token}/../", "/{token}/map.yaml"]
)
def test_nothing_is_at_another_address(client: Client, path: str) -> None:
    token = client.server.token
    status, text = client.ask(path=path.format(token=token, cut=token[:-1]))
    assert (status, json.loads(text)) == (404, {"error": "there is nothing here"})


def test_nothing_is_saved_without_the_token(client: Client) -> None:
    for path in ("/pairs", f"/{'x' * len(client.server.token)}/pairs", client.path):
        assert client.ask("POST", path, json.dumps([LINE]), Content_Type="application/json")[0] == 404
    assert client.session.file.read_text(encoding="utf-8") == PARTIAL


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", ""]
)
def test_another_name_for_this_machine_is_refused(client: Client, host: str) -> None:
    """A page elsewhere may have its name point to 127.0.0.1: what it then asks has that name as host."""
    name = host.format(port=client.server.server_port)
    assert client.ask(Host=name) == (403, '{"error": "this report is for this machine alone"}')
    assert client.save(LINE, Host=name)[0] == 403
    assert client.ask(Host=f"localhost:{client.server.server_port}")[0] == 200


def test_another_page_is_refused(client: Client) -> None:
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{client.server.server_port + 1}"):
        assert client.save(LINE, Origin=origin) == (403, '{"error": "another page asked for it"}')
    assert client.save(LINE, Origin=f"http://127.0.0.1:{client.server.server_port}")[0] == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "CONNECT"])
def test_other_methods_are_refused(client: Client, method: str) -> None:
    assert client.ask(method)[0] == 501
    assert client.session.file.read_text(encoding="utf-8") == PARTIAL


def test_it_listens_on_this_machine_alone(client: Client) -> None:
    assert client.server.server_address[0] == "127.0.0.1" and len(client.server.token) >= 32
    assert client.server.token != Server(client.session).token


# What may be sent


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([], 400), (["norm2: ln2"], 400), ([{**LINE, "file": "/x.yaml"}], 400), ([{"section": "Block"}], 400),
        ([{**LINE, "target": ["ln2"]}], 400), ([{**LINE, "target": ["ln1", 3]}], 400), ([{**LINE, "target": ["x"] * 65}], 400),
        ([{**LINE, "key": ["a", "b"], "target": ["c", "d"]}], 400), ([{**LINE, "section": ["Block", "Port"]}], 400),
        ([{**LINE, "target": 3}], 400), ([{**LINE, "key": ""}], 400), ([{**LINE, "key": "x" * 20_001}], 400), ([LINE] * 1001, 400),
        ([LINE, LINE], 422), ([{**LINE, "key": "norm1"}], 422), ([{**LINE, "target": "{i}"}], 422),
    ],
)  # fmt: skip
def test_what_is_no_line_of_a_mapping_is_not_saved(client: Client, sent: list[Any], status: int) -> None:
    answered, text = client.save(*sent)
    assert answered == status and json.loads(text)["error"]
    assert client.session.file.read_text(encoding="utf-8") == PARTIAL


def test_what_is_too_much_or_no_json_is_refused(client: Client) -> None:
    json_type = {"Content_Type": "application/json"}
    where = "POST", f"{client.path}pairs"
    assert client.ask(*where, b"x", Content_Type="text/plain")[0] == 415, "a form of another page may send that"
    assert client.ask(*where, b"{", **json_type) == (400, '{"error": "expected JSON"}')
    assert client.ask(*where, b"[" * 100_000, **json_type)[0] == 400
    assert client.ask(*where, b"", **json_type, Content_Length="2000000") == (
        413,
        '{"error": "expected at most 1048576 bytes"}',
    )
    assert client.ask(*where, b"", **json_type, Content_Length="-1")[0] == 411
    assert client.ask(*where, iter([b"[]"]), **json_type, Transfer_Encoding="chunked")[0] == 411


def test_nothing_but_the_file_is_written(client: Client, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("# mine\n", encoding="utf-8")
    for line in (
        LINE,
        {**LINE, "section": str(other)},
        {**LINE, "section": "../other", "key": "a", "target": str(other)},
    ):
        client.save(line)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.yaml", "other.yaml"]
    assert other.read_text(encoding="utf-8") == "# mine\n"


def test_what_cannot_be_compared_is_taken_back(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    mapping = tmp_path / "map.yaml"
    mapping.write_text(PARTIAL, encoding="utf-8")
    comparisons = iter([lambda: probe.compare(*runs, mapping=str(mapping))])

    def compare(_: str | None) -> Any:
        chosen = next(comparisons, None)
        if chosen is None:
            assert "norm2" in mapping.read_text(encoding="utf-8")
            raise ConfigError("not with this")
        return chosen()

    session = Session(compare, str(mapping), None)
    client = Client(session)
    assert client.save(LINE) == (422, '{"error": "not with this"}')
    assert mapping.read_text(encoding="utf-8") == PARTIAL and len(list(tmp_path.iterdir())) == 1
    client.server.shutdown()


# Which file


def test_a_link_and_its_rights_stay(client: Client, tmp_path: Path, runs: tuple[Path, Path]) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    real = folder / "map.yaml"
    real.write_text(PARTIAL, encoding="utf-8")
    real.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(real)
    other = Client(Session(lambda chosen: probe.compare(*runs, mapping=chosen), str(link), None))
    assert other.save(LINE)[0] == 200
    assert link.is_symlink() and real.read_text(encoding="utf-8").endswith("  norm2: ln2\n")
    assert real.stat().st_mode & 0o777 == 0o640
    other.server.shutdown()


def test_a_new_file_begins_with_what_was_found(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    """A mapping that is begun says what was found; it is no guess any more."""
    file = tmp_path / "new.yaml"
    session = Session(lambda chosen: probe.compare(*runs, mapping=chosen), None, str(file))
    client = Client(session)
    pairs = session.comparison.coverage.paired
    before = document_in(client.ask()[1])["mapping"]["base"]
    assert before and not file.exists()
    assert client.save({"section": "TopLayer", "key": "of.a", "target": "of.b"})[0] == 200
    assert file.read_text(encoding="utf-8").startswith(before.rstrip().partition("\n")[0])
    assert "embed" in yaml.safe_load(file.read_text(encoding="utf-8"))["TopLayer"]
    assert session.comparison.coverage.paired >= pairs
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()
    client.server.shutdown()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("mapping", "save_to", "message"),
    [
        (None, None, "layer_mapping.yaml is there already: give it as -lm layer_mapping.yaml to add to it, or name a new file with --save-to"),
        ("megatron-core/qwen2", None, "layer_mapping.yaml is there already: give it as -lm layer_mapping.yaml to add to it, or name a new "
         "file with --save-to"),
        (None, "map.yaml", "map.yaml is there already: give it as -lm map.yaml to add to it, or name a new file"),
        ("megatron-core/qwen2", "map.yaml", "map.yaml is there already: give it as -lm map.yaml to add to it, or name a new file"),
        ("nosuch.yaml", "new.yaml", "there is no layer mapping nosuch.yaml: neither a file nor the name of one"),
        (None, "none/new.yaml", "cannot write "),
    ],
)  # fmt: skip
def test_which_file_may_be_written(
    mapping: str | None, save_to: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("layer_mapping.yaml", "map.yaml"):
        Path(name).write_text("# mine\n", encoding="utf-8")
    with pytest.raises(ProbeError) as raised:
        Session(lambda _: pytest.fail("nothing is compared yet"), mapping, save_to)
    assert str(raised.value).startswith(message)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "layer_mapping.yaml": "# mine\n",
        "map.yaml": "# mine\n",
    }


def test_without_a_file_a_new_one_is_written(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = Session(lambda used: probe.compare(*runs, mapping=used, min_confidence=1), None, None)
    assert session.file == tmp_path / "layer_mapping.yaml" and not session.file.exists()
    session.save([Line("TopLayer", "head", "output")])
    assert "head: output" in session.file.read_text(encoding="utf-8")
    session.file.unlink()
    assert Session(lambda _: session.comparison, "megatron-core/qwen2", None).file == session.file


@pytest.mark.parametrize("whole", ["a", "b"])
def test_several_parts_of_one_are_saved(whole: str, tmp_path: Path) -> None:
    models = (together(), apart()) if whole == "a" else (apart(), together())
    fused = [record(tmp_path / f"{name}.h5", model) for name, model in zip("ab", models, strict=True)]
    session = Session(
        lambda used: probe.compare(*fused, mapping=used, min_confidence=1), None, str(tmp_path / "new.yaml")
    )
    client = Client(session)
    names = [["q", "k", "v"], ["gate", "up"]]
    lines = (
        [
            {"section": "Together", "key": "qkv", "target": names[0]},
            {"section": "TogetherMLP", "key": "gate_up", "target": names[1]},
        ]
        if whole == "a"
        else [
            {"section": "Apart", "key": names[0], "target": "qkv"},
            {"section": "MLP", "key": names[1], "target": "gate_up"},
        ]
    )
    assert client.save(*lines) == (200, "{}")
    assert session.comparison.verdict.value == "aligned" and session.comparison.left_out == ()
    client.server.shutdown()


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    for options, message in (
        (["--serve", "-o", "x.html"], "--serve keeps no page: expected it or -o, not both"),
        (["--save-to", "x.yaml"], "--save-to and --port are for --serve"),
        (["-i", "compare.json"], "-i compare.json names both recordings: expected it, or A and B"),
    ):
        done = CliRunner().invoke(main, ["view", "a.h5", "b.h5", *options])
        assert done.exit_code == 3 and message in done.output
    done = CliRunner().invoke(main, ["view", "a.h5", "--serve", "--noise", "a2.h5", "--step", "1"])
    assert done.exit_code == 3
    assert "--noise, --serve: for two recordings, and one was given: expected probe view A B" in done.output


def test_view_takes_what_compare_takes() -> None:
    """But how a text is written, and what is shown in its place."""
    of = {name: {each.name for each in main.get_command(None, name).params} for name in ("compare", "view")}
    assert of["compare"] - of["view"] == {"style", "top", "verbose", "why"}


def test_view_passes_them_on(tmp_path: Path, runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER", "true")
    (tmp_path / "map.yaml").write_text(json.dumps(MAPPING), encoding="utf-8")
    command = ["view", *map(str, runs), "-lm", str(tmp_path / "map.yaml"), "-o", str(tmp_path / "x.html")]
    assert CliRunner().invoke(main, command).exit_code == 1
    assert CliRunner().invoke(main, [*command, "--steps", "7:0"]).exit_code == 2, "they have no step in common"


def test_a_port_that_is_taken(client: Client) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on port {client.server.server_port} of 127.0.0.1: "):
        Server(client.session, client.server.server_port)


@pytest.mark.thorough
def test_ctrl_c_ends_it(tmp_path: Path, runs: tuple[Path, Path]) -> None:
    """With the status of the last comparison, and nothing else on the screen."""
    (tmp_path / "map.yaml").write_text(json.dumps(MAPPING), encoding="utf-8")
    command = [sys.executable, "-m", "probe", "view", *map(str, runs), "-lm", "map.yaml", "--serve"]
    heeding = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # shells let background jobs ignore it
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": "true"},
        preexec_fn=heeding,
    )
    address = running.stderr.readline()
    assert address.startswith("http://127.0.0.1:")
    assert running.stderr.readline() == f"pairs are saved in {tmp_path.resolve() / 'map.yaml'}; Ctrl+C ends\n"
    with urllib.request.urlopen(address.strip(), timeout=HANGS) as answer:  # from then on it serves
        assert answer.status == 200
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=HANGS)[1] == "" and running.returncode == 1


def test_a_request_that_trickles_in_is_ended(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte now and then keeps no connection open."""
    monkeypatch.setattr(serving, "_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", client.server.server_port)) as connection:
        end = time.monotonic() + HANGS
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                connection.sendall(b"x")
                connection.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        assert time.monotonic() < end


def test_no_more_connections_than_there_is_room_for(client: Client) -> None:
    """Those beyond are closed at once, not when their time is up, and there is room again when others end."""
    address, began = ("127.0.0.1", client.server.server_port), time.monotonic()
    held = [socket.create_connection(address) for _ in range(serving._MOST_CONNECTIONS)]
    with socket.create_connection(address, timeout=HANGS) as connection:
        assert connection.recv(1) == b"" and time.monotonic() - began < serving._SECONDS
    for each in held:
        each.close()
    for _ in range(100):
        with contextlib.suppress(OSError, http.client.HTTPException):
            if client.ask()[0] == 200:
                break
        time.sleep(0.05)
    else:
        pytest.fail("no connection was let go")
