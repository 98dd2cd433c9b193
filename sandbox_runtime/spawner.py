"""The spawner: the small process that starts commands, and why the agent's are the first to go when memory is short.

1. A process may set its own ``oom_score_adj`` back to what its ancestors had, unless it can't write to ``/proc``. So the
   spawner takes that from itself, and from all that it will ever start (Landlock). The score has to be raised from outside
   then: a new process waits until the runtime has done so and says go (``spawning.py``).
2. Between the fork and the command's own first instruction only this file runs, as a program of its own with nothing of the
   environment's in it: no secret, no thread, no descriptor. All that must be given up is given up here.
3. Each command has a socket to the runtime. A message on it is ``STARTED`` and the pid; ``REFUSED`` and an errno (no
   process could be made, or its program not be run; ``NO_DIRECTORY``: nor its directory be entered); at the end ``ENDED``
   and the return code. The runtime says ``GO``, and hangs up when it has no more interest: a process that is still there is
   killed then, and one that has ended keeps its pid until then.
4. When the runtime is gone, it has hung up everywhere: the spawner ends its commands, then itself.

Run as a program, with only those modules that cost no memory: the standard library's, and nothing of the package.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # ``signal`` brings enums, a quarter of what this process needs
import _socket
import ctypes
import marshal
import os
import select

STARTED, REFUSED, NO_DIRECTORY, ENDED, GO = b"S", b"R", b"D", b"E", b"G"
HEAD_BYTES = 8
"""A request is its length, which comes with three descriptors (input, output, socket), then ``marshal`` of ``Request``."""

Request = tuple[list[bytes], dict[bytes, bytes], bytes, tuple[int, int] | None]
"""argv, variables, directory, and (uid, gid) to become, at the lowest priority; None: stay what the spawner is."""

REQUESTS_FD = 3
_STATUS_FD = 3
_DESCRIPTOR_BYTES = 4
_NOBODY = -1
_MAX_FD = 1 << 16

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _REFER = 1 << 1, 1 << 13
_NEEDED_ABI = 2
"""The first one could not let files be moved from one directory to another."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_libc = ctypes.CDLL(None, use_errno=True)


def message(word: bytes, number: int) -> bytes:
    """Return a message as a command's socket carries it."""
    return word + number.to_bytes(4, "little", signed=True)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def can_keep_off_proc() -> bool:
    """Tell whether the kernel, and the engine's seccomp profile, have Landlock as it is needed here."""
    return int(_libc.syscall(_CREATE_RULESET, None, 0, 1)) >= _NEEDED_ABI


def _keep_off_proc() -> None:
    """Let this process, and all that it starts, write to no file below ``/proc``. Any other place stays as it is."""
    handled = ctypes.c_uint64(_WRITE_FILE | _REFER)
    ruleset = _libc.syscall(_CREATE_RULESET, ctypes.byref(handled), 8, 0)
    _check(ruleset)
    for entry in os.scandir("/"):
        if entry.name == "proc" or not entry.is_dir(follow_symlinks=False):
            continue
        fd = os.open(entry.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        rule = _PathBeneath(_WRITE_FILE | _REFER, fd)
        _check(_libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0))
        os.close(fd)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "the spawner can't be confined")


class _Spawner:
    """``_statuses``: commands' sockets by descriptor, with the pid; ``_running``: the descriptors (or ``_NOBODY``) by pid."""

    def __init__(self) -> None:
        self._requests = _socket.socket(fileno=REQUESTS_FD)
        self._poll = select.poll()
        self._statuses: dict[int, tuple[_socket.socket, int]] = {}
        self._running: dict[int, int] = {}
        self._pid = os.getpid()

    def serve(self) -> None:
        """Start commands until the runtime is gone and the last of them has ended."""
        child_ended, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        _signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)
        self._poll.register(REQUESTS_FD, select.POLLIN)
        self._poll.register(child_ended, select.POLLIN)
        open_for_more = True
        while open_for_more or self._statuses or self._running:
            for fd, _ in self._poll.poll():
                if fd == REQUESTS_FD:
                    open_for_more = self._take_request()
                    if not open_for_more:
                        self._poll.unregister(fd)
                elif fd == child_ended:
                    os.read(child_ended, 4096)
                    self._report_ends()
                else:
                    self._forget(fd)

    def _take_request(self) -> bool:
        """Take one request and start it; False when there will be no more."""
        head, ancillary, _, _ = self._requests.recvmsg(
            HEAD_BYTES, _socket.CMSG_SPACE(3 * _DESCRIPTOR_BYTES), _socket.MSG_CMSG_CLOEXEC
        )
        if not ancillary:
            return False
        descriptors = ancillary[0][2]
        stdin, stdout, status_fd = (
            int.from_bytes(descriptors[n : n + _DESCRIPTOR_BYTES], "little")
            for n in range(0, len(descriptors), _DESCRIPTOR_BYTES)
        )
        request: Request = marshal.loads(self._requests.recv(int.from_bytes(head, "big"), _socket.MSG_WAITALL))
        status = _socket.socket(fileno=status_fd)
        try:
            pid = os.fork()
        except OSError as exc:
            _say(status, REFUSED, exc.errno or 0)
            status.close()
        else:
            if pid == 0:
                self._become(request, stdin, stdout, status_fd)
            self._statuses[status_fd] = (status, pid)
            self._running[pid] = status_fd
            self._poll.register(status_fd, 0)  # only to be told that the runtime hung up
            _say(status, STARTED, pid)
        os.close(stdin)
        os.close(stdout)
        return True

    def _report_ends(self) -> None:
        for pid, fd in list(self._running.items()):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                continue
            del self._running[pid]
            if fd in self._statuses:
                by_signal = ended.si_code != os.CLD_EXITED
                _say(self._statuses[fd][0], ENDED, -ended.si_status if by_signal else ended.si_status)
            else:
                os.waitpid(pid, 0)

    def _forget(self, fd: int) -> None:
        """The runtime has hung up on a command."""
        status, pid = self._statuses.pop(fd)
        self._poll.unregister(fd)
        status.close()
        if pid in self._running:
            self._running[pid] = _NOBODY  # the descriptor is the next command's, perhaps before this one has ended
            os.kill(pid, _signal.SIGKILL)
        else:
            os.waitpid(pid, 0)

    def _become(self, request: Request, stdin: int, stdout: int, status: int) -> None:
        """In the new process: turn into the command. Never returns."""
        word = REFUSED
        try:
            argv, environ, directory, identity = request
            os.setsid()
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            os.dup2(stdout, 2)
            os.dup2(status, _STATUS_FD, inheritable=False)
            os.closerange(_STATUS_FD + 1, _MAX_FD)
            if os.read(_STATUS_FD, 1) != GO:
                os._exit(0)
            _signal.set_wakeup_fd(-1)
            for number in (_signal.SIGCHLD, _signal.SIGPIPE, _signal.SIGXFSZ):
                _signal.signal(number, _signal.SIG_DFL)
            os.umask(0o022)
            if identity is not None:
                uid, gid = identity
                # A fork storm of equals would leave the runtime a hundredth of a processor to end it with.
                os.setpriority(os.PRIO_PROCESS, 0, 19)
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            # Given up with the identity, so asked for after it.
            _check(_libc.prctl(_PR_SET_PDEATHSIG, int(_signal.SIGKILL), 0, 0, 0))
            if os.getppid() != self._pid:
                os._exit(0)
            word = NO_DIRECTORY
            os.chdir(directory)
            word = REFUSED
            _execute(argv, environ)
        except OSError as exc:
            os.write(_STATUS_FD, message(word, exc.errno or 0))
        finally:
            os._exit(127)


def _execute(argv: list[bytes], environ: dict[bytes, bytes]) -> None:
    """Run the program, found on the PATH in ``environ``.

    Raises:
        OSError: it can't be run.
    """
    if b"/" in argv[0]:
        os.execve(argv[0], argv, environ)
    refused: OSError = FileNotFoundError(2, "")
    for directory in environ[b"PATH"].split(b":"):
        try:
            os.execve((directory or b".") + b"/" + argv[0], argv, environ)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as exc:
            refused = exc
    raise refused


def _say(status: _socket.socket, word: bytes, number: int) -> None:
    try:
        status.send(message(word, number), _socket.MSG_NOSIGNAL)
    except BrokenPipeError:
        return  # the runtime has hung up, and poll says so


def main(keep_off_proc: bool) -> None:
    """Be the spawner. Descriptor 3 is the socket that requests come on."""
    os.closerange(REQUESTS_FD + 1, _MAX_FD)
    os.chdir("/")
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if keep_off_proc:
        _keep_off_proc()
    _Spawner().serve()
