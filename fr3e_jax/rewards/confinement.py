"""Kernel limits for a process that runs foreign code, each where the kernel allows it; standard library only.

docs/users/code_execution.md says what each layer keeps out, and what remains. Sources: the manual pages setrlimit(2),
unshare(2), landlock(7), seccomp(2), capabilities(7).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable

from fr3e_jax.rewards.child_processes import DUMPABLE, NO_NEW_PRIVS, prctl

MEGABYTE = 1 << 20
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
ISOLATED = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every architecture
READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a directory
DEVICES_AND_SOCKETS = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11  # make a device, socket or pipe file
# The bits of file access, network access and signalling that each version of Landlock knows.
FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
READABLE = ("/usr", "/lib", "/lib64", "/etc/localtime", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom")

# System calls that a program under test does not need: other processes, programs, sockets, the kernel itself.
# Architecture: (its number in seccomp's data, system calls to refuse, the number of clone).
REFUSED_CALLS = {
    "x86_64": (
        0xC000003E,
        "57 58 59 322 435 41 42 49 50 62 101 129 155 161 165 166 167 169 175 176 200 234 246 248 249 250 272 297 298 "
        "304 308 310 311 313 320 321 323 424 425 428 429 430 432 434 438 442",
        56,
    ),
    "aarch64": (
        0xC00000B7,
        "221 281 435 198 200 201 203 129 117 138 41 51 40 39 224 142 105 106 130 131 104 217 218 219 97 240 241 265 "
        "268 270 271 273 294 280 282 424 425 428 429 430 432 434 438 442",
        220,
    ),
}
CLONE_THREAD = 0x10000
EPERM, ENOSYS = 1, 38


def limit_resources(cpu_seconds: int, memory_mb: int, file_mb: int = 16, open_files: int = 64, processes: int = 32):
    """Limit CPU time (then SIGKILL), address space, size of each file, descriptors and processes; no core files."""
    for name, limit in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory_mb * MEGABYTE),
        (resource.RLIMIT_FSIZE, file_mb * MEGABYTE),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # there is a lower hard limit already
            resource.setrlimit(name, (limit, limit))


def isolate() -> bool:
    """Take network and other processes out of sight, by new namespaces (of process ids: for the children to come).

    False where the kernel allows neither an unprivileged user namespace nor root's rights, as in many containers.
    """
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    return unshare is not None and any(unshare(flags) == 0 for flags in (CLONE_NEWUSER | ISOLATED, ISOLATED))


def restrict_files(writable: str, readable: Iterable[str] = ()) -> bool:
    """Allow writing only under ``writable``; reading only there, under ``readable`` and in the system's libraries.

    Landlock does it. Newer kernels also forbid TCP and signals to processes outside. False without Landlock.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1 or not prctl(NO_NEW_PRIVS, 1):
        return False
    everything = (1 << FILE_BITS.get(version, 16)) - 1
    # struct landlock_ruleset_attr: files, then (version 4) bind and connect, then (version 6) abstract sockets, signals
    handled = struct.pack("=QQQ", everything, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = libc.syscall(LANDLOCK_CREATE, handled, len(handled), 0)
    if ruleset < 0:
        return False
    try:
        _allow(libc, ruleset, writable, everything & ~DEVICES_AND_SOCKETS)
        for path in {*READABLE, *readable}:
            _allow(libc, ruleset, path, READ if os.path.isdir(path) else READ & ~(1 << 3))
        _allow(libc, ruleset, "/dev/null", 1 << 1 | 1 << 2)
        return libc.syscall(LANDLOCK_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    with contextlib.suppress(OSError):  # not every system has each of these paths
        descriptor = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
        try:
            libc.syscall(LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", access, descriptor), 0)
        finally:
            os.close(descriptor)


def refuse_calls() -> bool:
    """Refuse system calls by seccomp: no new processes or programs, sockets, signals or tracing; threads may start.

    False on an architecture without a list above or a kernel without seccomp filters.
    """
    if sys.platform != "linux" or os.uname().machine not in REFUSED_CALLS or not prctl(NO_NEW_PRIVS, 1):
        return False
    program = _filter(*REFUSED_CALLS[os.uname().machine])
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    return ctypes.CDLL(None).prctl(22, 2, header, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _filter(architecture: int, refused: str, clone: int) -> bytes:
    """The filter as BPF: instructions are (code, jump if true, jump if false, constant), jumps count from the next."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, unknown = 0x7FFF0000, 0x50000 | EPERM, 0x50000 | ENOSYS
    lines = [
        (load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, refuse),
        (load, 0, 0, 0), (at_least, 0, 1, 0x40000000), (give, 0, 0, refuse),  # x86's x32 calls
        (equal, 0, 1, 435), (give, 0, 0, unknown),  # clone3 has its flags in memory; libc falls back to clone
        (equal, 0, 4, clone), (load, 0, 0, 16),
        (any_bit, 1, 0, CLONE_THREAD), (give, 0, 0, refuse), (give, 0, 0, allow),
    ]  # fmt: skip
    for number in refused.split():
        lines += [(equal, 0, 1, int(number)), (give, 0, 0, refuse)]
    lines.append((give, 0, 0, allow))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def drop_privileges() -> None:
    """Give up all capabilities for good, and let no other process of this user look into this one."""
    prctl(NO_NEW_PRIVS, 1)
    prctl(DUMPABLE, 0)
    capset = getattr(ctypes.CDLL(None), "capset", None)
    if capset is not None:
        capset(struct.pack("II", 0x20080522, 0), struct.pack("6I", 0, 0, 0, 0, 0, 0))
