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
from pathlib import Path

from fr3e_jax.rewards import refused_calls
from fr3e_jax.rewards.child_processes import DUMPABLE, NO_NEW_PRIVS, prctl

MEGABYTE = 1 << 20
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
ISOLATED = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC

BIND, PRIVATE, DETACH = 0x1000 | 0x4000, 0x40000 | 0x4000, 2  # with all mounts below
MOUNT_SETATTR = 442  # the same number on every architecture
SCRATCH_FILES = 1000
SCRATCH_MB = 64

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every architecture
READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a directory
DEVICES_AND_SOCKETS = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11  # make a device, socket or pipe file
# The bits of file access, network access and signalling that each version of Landlock knows.
FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
READABLE = ("/usr", "/lib", "/lib64", "/etc/localtime", "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom")


def confine(cpu_seconds: int, memory_mb: int) -> None:
    """Confine this process to its working directory and these limits, as far as the kernel allows it."""
    directory, readable = os.getcwd(), {sys.base_prefix, sys.prefix}
    limit_resources(cpu_seconds, memory_mb)
    if isolate():
        hide_files(directory, readable)
    restrict_files(directory, readable)
    drop_privileges()


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
    """Take network, other processes and mounts out of sight, by new namespaces (of process ids: for the children).

    False where the kernel allows neither an unprivileged user namespace nor root's rights, as in many containers.
    """
    unshare = getattr(ctypes.CDLL(None), "unshare", None)
    if unshare is None:
        return False
    user, group = os.geteuid(), os.getegid()
    if unshare(CLONE_NEWUSER | ISOLATED) == 0:
        with contextlib.suppress(OSError):  # without a name in the new namespace this process can make no files there
            for name, line in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                Path("/proc/self", name).write_text(line)
        return True
    return unshare(ISOLATED) == 0


def hide_files(writable: str, readable: Iterable[str] = ()) -> bool:
    """Replace the file system by an empty one in memory, with ``readable`` and the system's libraries, read-only.

    ``writable`` is empty there and takes at most ``SCRATCH_FILES`` files and folders and ``SCRATCH_MB`` in all. Nothing
    else has a name, so ``stat`` finds nothing else. False, and nothing changed, where ``isolate`` was refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, "pivot_root", None) is None or libc.mount(b"none", b"/", None, PRIVATE, None):
        return False
    shown: list[str] = []
    for path in sorted({*READABLE, *readable, *map(os.path.realpath, (*READABLE, *readable))}):
        if os.path.exists(path) and not any(Path(path).is_relative_to(parent) for parent in shown):
            shown.append(path)
    options = f"size={SCRATCH_MB}m,nr_inodes={SCRATCH_FILES},mode=700".encode()
    if libc.mount(b"none", writable.encode(), b"tmpfs", 0, options):
        return False
    try:
        for path in shown:
            _show(libc, path, writable + path)
        os.makedirs(writable + writable, exist_ok=True)
        os.chdir(writable)
        if libc.pivot_root(b".", b".") or libc.umount2(b".", DETACH):
            raise OSError(ctypes.get_errno(), "pivot_root")
    except OSError:
        libc.umount2(writable.encode(), DETACH)
        os.chdir(writable)
        return False
    os.chdir(writable)
    return True


def _show(libc: ctypes.CDLL, path: str, target: str) -> None:
    """Show a file or folder, with all that is mounted below it, at ``target``, for reading only."""
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    if libc.mount(path.encode(), target.encode(), None, BIND, None):
        raise OSError(ctypes.get_errno(), "mount", path)
    if os.path.isdir(path):  # /dev/null stays writable
        attributes = struct.pack("=QQQQ", 1, 0, 0, 0)  # struct mount_attr: read-only
        libc.syscall(MOUNT_SETATTR, -100, target.encode(), 0x8000, attributes, len(attributes))  # with those below it


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
    """Refuse system calls by seccomp, as ``fr3e_jax.rewards.refused_calls`` lists them; threads may start.

    False on an architecture without numbers there or a kernel without seccomp filters.
    """
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in refused_calls.ARCHITECTURES or not prctl(NO_NEW_PRIVS, 1):
        return False
    program = refused_calls.seccomp_filter(machine)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    return ctypes.CDLL(None).prctl(22, 2, header, 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def drop_privileges() -> None:
    """Give up all capabilities for good, and let no other process of this user look into this one."""
    prctl(NO_NEW_PRIVS, 1)
    prctl(DUMPABLE, 0)
    capset = getattr(ctypes.CDLL(None), "capset", None)
    if capset is not None:
        capset(struct.pack("II", 0x20080522, 0), struct.pack("6I", 0, 0, 0, 0, 0, 0))
