"""Run in a container: tries system calls, and prints name and errno of each as JSON. Numbers are those of x86-64."""

import ctypes
import errno
import json
import mmap
import os
import socket
from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *args: int) -> str:
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(arg) for arg in args))
    return "ok" if result >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")


def in_child(attempt: Callable[[], str]) -> str:
    """What ``attempt`` returns, tried where it can do no harm; a signal's number if it was killed."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, attempt().encode())
        os._exit(0)
    os.close(writer)
    status = os.waitpid(pid, 0)[1]
    with os.fdopen(reader) as result:
        return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else result.read()


def new_socket(family: int, protocol: int = 0) -> str:
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_DGRAM, protocol).close()
    except OSError as exc:
        return errno.errorcode[exc.errno or 0]
    return "ok"


def call_of_32_bits() -> str:
    """getpid, by the gate of 32-bit programs."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return "ok" if ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid() else "wrong"


print(
    json.dumps(
        {
            "ptrace": in_child(lambda: call(101, 0)),
            "process_vm_readv": call(310, os.getpid(), 0, 0, 0, 0, 0),
            "kcmp": call(312, os.getpid(), os.getpid(), 2, 0, 0),
            "pidfd_getfd": call(438, -1, 0, 0),
            "vmsplice": call(278, -1, 0, 0, 0),
            "remap_file_pages": call(216, 1, 0, 0, 0, 0),
            "modify_ldt": call(154, 0, 0, 0),
            "personality": in_child(lambda: call(135, 8)),
            "io_uring_setup": call(425, 0, 0),
            "AF_ALG": new_socket(38),
            "NETLINK_KOBJECT_UEVENT": new_socket(socket.AF_NETLINK, 15),
            "32-bit call": in_child(call_of_32_bits),
            "unshare": in_child(lambda: call(272, 0x10000000)),
            "clone(NEWUSER)": in_child(lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0)),
            "mount": call(165, 0, 0, 0, 0, 0),
            "bpf": call(321, 0, 0, 0),
            "keyctl": call(250, 0, -3, 1),
            "userfaultfd": call(323, 0),
            "init_module": call(175, 0, 0, 0),
            "open_by_handle_at": call(304, -1, 0, 0),
            "NETLINK_ROUTE": new_socket(socket.AF_NETLINK, 0),
            "AF_UNIX": new_socket(socket.AF_UNIX),
            "AF_INET": new_socket(socket.AF_INET),
            "AF_INET6": new_socket(socket.AF_INET6),
        }
    )
)
