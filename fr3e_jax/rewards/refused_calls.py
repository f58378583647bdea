"""The system calls that a program under test may not make, as a filter for seccomp; standard library only.

Everything else is allowed, so that Python and its libraries run unchanged. A refused call returns EPERM, or ENOSYS
where libraries have a second way; nothing is killed. Sources: the kernel's tables of system calls
(arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h) and the manual page seccomp(2).
"""

from __future__ import annotations

import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # machine: its number in seccomp's data
UNKNOWN_FROM = 451  # the newest calls, with one number everywhere: Python and libc do without them

# Name, number on x86-64, number on arm64 ("-": arm64 has no such call).
REFUSED = """
fork 57 -             vfork 58 -              execve 59 221             execveat 322 281
socket 41 198         connect 42 203          bind 49 200               listen 50 201
kill 62 129           tkill 200 130           tgkill 234 131            rt_sigqueueinfo 129 138
rt_tgsigqueueinfo 297 240                     pidfd_send_signal 424 424 pidfd_open 434 434
pidfd_getfd 438 438   ptrace 101 117          process_vm_readv 310 270  process_vm_writev 311 271
kcmp 312 272          process_madvise 440 440 process_mrelease 448 448  setpgid 109 154
setsid 112 157        setpriority 141 140     ioprio_set 251 30         sched_setaffinity 203 122
sched_setparam 142 118                        sched_setscheduler 144 119 sched_setattr 314 274
migrate_pages 256 238 move_pages 279 239

shmget 29 194         shmat 30 196            shmctl 31 195             shmdt 67 197
semget 64 190         semop 65 193            semctl 66 191             semtimedop 220 192
msgget 68 186         msgsnd 69 189           msgrcv 70 188             msgctl 71 187
mq_open 240 180       mq_unlink 241 181       mq_timedsend 242 182      mq_timedreceive 243 183
mq_notify 244 184     mq_getsetattr 245 185   add_key 248 217           request_key 249 218
keyctl 250 219        memfd_create 319 279    memfd_secret 447 447

chmod 90 -            fchmod 91 52            fchmodat 268 53           chown 92 -
fchown 93 55          lchown 94 -             fchownat 260 54           utime 132 -
utimes 235 -          futimesat 261 -         utimensat 280 88          setxattr 188 5
lsetxattr 189 6       fsetxattr 190 7         removexattr 197 14        lremovexattr 198 15
fremovexattr 199 16   truncate 76 45          mknod 133 -               mknodat 259 33
inotify_init 253 -    inotify_init1 294 26    fanotify_init 300 262     name_to_handle_at 303 264
open_by_handle_at 304 265

pivot_root 155 41     chroot 161 51           mount 165 40              umount2 166 39
open_tree 428 428     move_mount 429 429      fsopen 430 430            fsconfig 431 431
fsmount 432 432       fspick 433 433          mount_setattr 442 442     unshare 272 97
setns 308 268         swapon 167 224          swapoff 168 225           reboot 169 142
acct 163 89           quotactl 179 60         quotactl_fd 443 443       syslog 103 116
settimeofday 164 170  clock_settime 227 112   adjtimex 159 171          clock_adjtime 305 266
sethostname 170 161   setdomainname 171 162   vhangup 153 58            iopl 172 -
ioperm 173 -          modify_ldt 154 -        init_module 175 105       finit_module 313 273
delete_module 176 106 kexec_load 246 104      kexec_file_load 320 294   bpf 321 280
perf_event_open 298 241                       userfaultfd 323 282       io_uring_setup 425 425
io_uring_enter 426 426                        io_uring_register 427 427
"""

# Calls that are judged by an argument.
CONDITIONAL = """
clone 56 220          clone3 435 435          prlimit64 302 261         fcntl 72 25
ioctl 16 29           prctl 157 167           socketpair 53 199         open 2 -
openat 257 56         openat2 437 437
"""

CLONE_THREAD = 0x10000
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)  # duplicates, flags and locks; not owner, signal, lease, notice
IOCTL = (
    0x5401,
    0x5413,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
)  # isatty, terminal size, bytes to read, blocking, close-on-exec
PRCTL = (15, 16, 0x53564D41)  # names of a thread and of memory
STREAM, KIND_OF_SOCKET = 1, 0xF
TRUNCATE, ACCESS_MODE = 0o1000, 0o3
EPERM, ENOSYS = 1, 38
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, GIVE = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, REFUSE, UNKNOWN = 0x7FFF0000, 0x50000 | EPERM, 0x50000 | ENOSYS

Line = tuple[int, int, int, int]  # code, jump if true, jump if false (counted from the next line), constant


def numbers(table: str, machine: str) -> dict[str, int]:
    """The number of each call of a table that the machine has."""
    words, column = table.split(), 1 + list(ARCHITECTURES).index(machine)
    return {words[n]: int(words[n + column]) for n in range(0, len(words), 3) if words[n + column] != "-"}


def seccomp_filter(machine: str) -> bytes:
    """The filter in the kernel's BPF for ``machine``, a key of ``ARCHITECTURES``.

    A call of another architecture or of x86-64's second set of numbers (x32) is refused before its number is read.
    """
    by_argument = {
        "clone": [*_argument(0), (ANY_BIT, 1, 0, CLONE_THREAD), (GIVE, 0, 0, REFUSE), (GIVE, 0, 0, ALLOW)],
        "clone3": [(GIVE, 0, 0, UNKNOWN)],  # its flags are in memory; libc falls back to clone
        "openat2": [(GIVE, 0, 0, UNKNOWN)],
        "prlimit64": _only(0, (0,)),  # of this process
        "fcntl": _only(1, FCNTL),
        "ioctl": _only(1, IOCTL),
        "prctl": _only(0, PRCTL),
        "socketpair": _only(1, (STREAM,), mask=KIND_OF_SOCKET),  # datagrams could go to any socket with a path
        "open": _no_truncation(1),
        "openat": _no_truncation(2),
    }
    lines: list[Line] = [
        (LOAD, 0, 0, 4), (EQUAL, 1, 0, ARCHITECTURES[machine]), (GIVE, 0, 0, REFUSE),
        (LOAD, 0, 0, 0), (AT_LEAST, 0, 1, 0x40000000), (GIVE, 0, 0, REFUSE),
    ]  # fmt: skip
    for name, call in numbers(CONDITIONAL, machine).items():
        lines += [(EQUAL, 0, len(by_argument[name]), call), *by_argument[name]]
    for call in numbers(REFUSED, machine).values():
        lines += [(EQUAL, 0, 1, call), (GIVE, 0, 0, REFUSE)]
    lines += [(AT_LEAST, 0, 1, UNKNOWN_FROM), (GIVE, 0, 0, UNKNOWN), (GIVE, 0, 0, ALLOW)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _argument(position: int) -> list[Line]:
    """Load the lower half of an argument: flags and commands are 32 bits wide, and the kernel reads no more."""
    return [(LOAD, 0, 0, 16 + 8 * position)]


def _only(position: int, values: tuple[int, ...], mask: int = 0) -> list[Line]:
    """Refuse a call unless its argument (of the bits of ``mask``) is one of ``values``."""
    comparisons = [(EQUAL, len(values) - n, 0, value) for n, value in enumerate(values)]
    masked: list[Line] = [(AND, 0, 0, mask)] if mask else []
    return [*_argument(position), *masked, *comparisons, (GIVE, 0, 0, REFUSE), (GIVE, 0, 0, ALLOW)]


def _no_truncation(position: int) -> list[Line]:
    """Refuse to empty a file that is opened for reading only, which the first versions of Landlock overlook."""
    flags = _argument(position)
    return [
        *flags, (ANY_BIT, 0, 3, TRUNCATE), (ANY_BIT, 2, 0, ACCESS_MODE),
        (GIVE, 0, 0, REFUSE), (GIVE, 0, 0, ALLOW), (GIVE, 0, 0, ALLOW),
    ]  # fmt: skip
