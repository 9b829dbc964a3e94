"""Servers that the tests start beside the run's own, and what breaks them: kills, proxies, poolers, standbys."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hydrator.embedded import EmbeddedServer

PATIENCE = 20


def in_memory() -> Path | None:
    """A folder whose files stay in memory, if there is room: a database is cloned ten times faster there."""
    folder = Path("/dev/shm")
    room = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 * 2**30
    return folder if room else None


@contextmanager
def folder(parent: Path | None = None) -> Iterator[Path]:
    """Make a folder that other system users can pass through, and remove it."""
    path = Path(tempfile.mkdtemp(prefix="hydrator-tests-", dir=parent or in_memory()))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def own_server(
    settings: Mapping[str, str] | None = None, parent: Path | None = None
) -> Iterator[EmbeddedServer]:
    """Give a server that may be broken, not yet started, and stop it."""
    with folder(parent) as path:
        server = EmbeddedServer(path / "server", settings={"fsync": "off", **(settings or {})})
        try:
            yield server
        finally:
            server.stop()


def kill(server: EmbeddedServer) -> None:
    """Kill a server and all its processes, as a crash of its machine would, and wait for their end."""
    # Again, for what was forked meanwhile: an orphan may wait for ever for what a killed one held.
    while processes := list(_processes(server.folder / "cluster")):
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes, timeout=PATIENCE)


def _processes(cluster: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["name"]):
        with suppress(OSError, psutil.Error):
            if process.info["name"] == "postgres" and cluster.samefile(f"/proc/{process.pid}/cwd"):
                yield process


class Proxy:
    """Stands between clients and a server: cuts their connections, or swallows what one side says."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = conninfo_to_dict(url)
        self._server = (str(parts["host"]), int(parts["port"]))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        # What is said meanwhile in that direction never arrives.
        self.deaf = self.mute = False
        self.swallowed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()
        return make_conninfo(self._url, host=host, port=port)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = self._connect()
                except OSError:
                    client.close()
                    continue
                self._pairs.append((client, server))
                for pair, name in (((client, server), "deaf"), ((server, client), "mute")):
                    threading.Thread(target=self._pump, args=[*pair, name], daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = self._server
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        line = socket.socket(socket.AF_UNIX)
        line.connect(f"{host}/.s.PGSQL.{port}")
        return line

    def _pump(self, source: socket.socket, target: socket.socket, swallowing: str) -> None:
        with suppress(OSError):
            while said := source.recv(65536):
                if getattr(self, swallowing):
                    self.swallowed.set()
                else:
                    target.sendall(said)
        for line in (source, target):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Cut all connections there are; new ones go through again."""
        pairs, self._pairs = self._pairs, []
        self.deaf = self.mute = False
        self.swallowed.clear()
        for line in (line for pair in pairs for line in pair):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


@contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()


def pgbouncer() -> str | None:
    """Give the program, if it is on this machine."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def pooled(url: str, *, pool_size: int = 20) -> Iterator[str]:
    """Give the address of a PgBouncer in transaction mode before a server; any database goes through it."""
    program = pgbouncer()
    assert program is not None
    parts = conninfo_to_dict(url)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    server = {name: parts[name] for name in ("host", "port", "user", "password") if parts.get(name)}
    identity: dict[str, Any] = {}
    with folder() as path:
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        settings = path / "pgbouncer.ini"
        settings.write_text(
            "[databases]\n"
            f"* = {make_conninfo(**server)}\n"
            "[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {port}\n"
            "unix_socket_dir =\n"
            "auth_type = any\n"
            "pool_mode = transaction\n"
            f"default_pool_size = {pool_size}\n"
            "max_client_conn = 500\n"
            # A database that is made anew under an old name is another one.
            "server_idle_timeout = 1\n"
            "ignore_startup_parameters = extra_float_digits,options\n"
        )
        log = path / "pgbouncer.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, str(settings)], stdout=output, stderr=output, start_new_session=True, **identity
            )
        address = make_conninfo(url, host="127.0.0.1", port=port)
        try:
            wait_for_server(address, process, log)
            yield address
        finally:
            process.kill()
            process.wait()


def wait_for_server(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(make_conninfo(url, dbname="postgres")).close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


@contextmanager
def standby(primary: EmbeddedServer, settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedServer]:
    """Give a streaming hot standby of a running server, started."""
    address = (primary.folder / "url").read_text()
    with folder() as path, socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
        server = EmbeddedServer(path / "server", settings={**primary.settings, **(settings or {})})
        server.folder.mkdir()
        copied = path / "copied"
        copied.mkdir()
        if server._account:
            os.chown(copied, server._account.pw_uid, server._account.pw_gid)
        done = server._run(
            "pg_basebackup",
            *("--dbname", address, "--pgdata", str(copied / "cluster")),
            *("--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"),
        )
        assert done.returncode == 0, done.stdout
        (copied / "cluster").rename(server.folder / "cluster")
        found.close()
        place = server.folder / "url"
        place.write_text(address.replace(f":{conninfo_to_dict(address)['port']}/", f":{port}/"))
        server.start(migrate=False)
        try:
            yield server
        finally:
            server.stop()


def caught_up(primary: psycopg.Connection, replica: psycopg.Connection) -> None:
    """Wait until a standby shows all that its primary has committed so far."""
    [position] = primary.execute("select pg_current_wal_flush_lsn()::text").fetchone() or [None]
    deadline = time.monotonic() + PATIENCE
    while replica.execute(
        "select coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false)", [position]
    ).fetchone() != (True,):
        assert time.monotonic() < deadline, "the standby does not follow"
        time.sleep(0.01)
