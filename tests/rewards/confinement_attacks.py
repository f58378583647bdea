"""Attacks by system calls, as one program for the Python tool, which prints the outcome of each as JSON.

``PROGRAM`` is formatted with the victims: a process (pid), a file and its folder outside of the program's directory.
"""

from __future__ import annotations

PROGRAM = r'''
import ctypes, errno, json, mmap, os, platform, resource, struct

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
pid, file, folder = {pid}, {file!r}.encode(), {folder!r}
own = os.open("own", os.O_CREAT | os.O_RDWR)
found = {{}}

def call(name, numbers, *arguments):
    """The result of a system call is a success if it is not negative."""
    number = numbers[0 if x86 else 1] if isinstance(numbers, tuple) else numbers
    if number is None:
        return
    ctypes.set_errno(0)
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    value = libc.syscall(number, *given)
    found[name] = "open" if value >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
    return value

def attempt(name, function):
    try:
        function()
        found[name] = "open"
    except OSError as error:
        found[name] = errno.errorcode.get(error.errno, "?")

AT = -100
buffer = ctypes.create_string_buffer(256)
times = struct.pack("qqqq", 1, 0, 1, 0)
outside = os.open("/usr/lib", os.O_RDONLY)
mode = os.fstat(outside).st_mode & 0o7777  # attacks on this folder change nothing if they succeed
flags = ctypes.create_string_buffer(8)
libc.ioctl(outside, ctypes.c_ulong(0x80086601), flags)
call("chmod", (90, None), file, 0o777)
call("fchmod", (91, 52), outside, mode)
call("fchmodat", (268, 53), AT, file, 0o777)
call("fchmodat2", 452, AT, file, 0o777, 0)
call("chown", (92, None), file, -1, -1)
call("fchown", (93, 55), outside, -1, -1)
call("lchown", (94, None), file, -1, -1)
call("fchownat", (260, 54), AT, file, -1, -1, 0)
call("utime", (132, None), file, None)
call("utimes", (235, None), file, None)
call("futimesat", (261, None), AT, file, None)
call("utimensat", (280, 88), AT, file, None, 0)
call("setxattr", (188, 5), file, b"user.a", b"1", 1, 0)
call("lsetxattr", (189, 6), file, b"user.a", b"1", 1, 0)
call("removexattr", (197, 14), file, b"user.kept")
call("setxattrat", 463, AT, file, 0, b"user.b", struct.pack("QII", ctypes.addressof(buffer), 1, 0), 16)
call("file_setattr", 469, AT, file, bytes(24), 24, 0)
call("chattr by ioctl", (16, 29), outside, 0x40086602, flags)
call("truncate", (76, 45), file, 0)
attempt("truncate by open", lambda: os.open(file, os.O_RDONLY | os.O_TRUNC))
attempt("stat", lambda: os.stat(file))
attempt("read", lambda: os.listdir(folder))
call("inotify", (254, 27), max(call("inotify_init", (294, 26), 0), 0), file, 0xFFF)

limits = struct.pack("QQ", 1 << 40, 1 << 40)
call("prlimit", (302, 261), pid, resource.RLIMIT_CPU, limits, None)
call("prlimit reads", (302, 261), pid, resource.RLIMIT_CPU, None, buffer)
call("kill", (62, 129), pid, 0)
call("tkill", (200, 130), pid, 0)
call("tgkill", (234, 131), pid, pid, 0)
call("sigqueue", (129, 138), pid, 0, buffer)
call("pidfd_open", 434, pid, 0)
call("ptrace", (101, 117), 0x4206, pid, 0, 0)
vector = struct.pack("QQ", ctypes.addressof(buffer), 1)
call("process_vm_readv", (310, 270), pid, vector, 1, vector, 0, 0)
call("kcmp", (312, 272), pid, pid, 2, 0, 0)
call("setpriority", (141, 140), 0, pid, 5)
call("setpriority of a user", (141, 140), 2, 0, 5)
call("ioprio_set", (251, 30), 1, pid, 2 << 13 | 5)
call("sched_setaffinity", (203, 122), pid, 8, struct.pack("Q", 3))
call("sched_setscheduler", (144, 119), pid, 3, struct.pack("i", 0))
call("sched_setattr", (314, 274), pid, struct.pack("IIQiIQQQ", 48, 3, 0, 0, 0, 0, 0, 0), 0)
call("migrate_pages", (256, 238), pid, 2, struct.pack("Q", 1), struct.pack("Q", 1))
call("move_pages", (279, 239), pid, 0, 0, 0, 0, 0)

for name, make, end, *size in (
    ("shmget", (29, 194), (31, 195), 4096), ("semget", (64, 190), (66, 191), 1), ("msgget", (68, 186), (71, 187))
):
    number = call(name, make, pid, *size, 0o1600)
    if number >= 0:
        call(name + " ends", end, number, *[0] * (name == "semget"), 0, None)
call("mq_open", (240, 180), b"fr3e", os.O_CREAT | os.O_RDWR, 0o600, None)
call("add_key", (248, 217), b"user", b"fr3e", b"x", 1, -2)
call("keyctl", (250, 219), 0, -3, 1)

ours, theirs = os.pipe()
call("F_SETOWN", (72, 25), ours, 8, pid)
call("F_SETOWN_EX", (72, 25), ours, 15, struct.pack("ii", 1, pid))
call("F_SETSIG", (72, 25), ours, 10, 9)
call("F_SETLEASE", (72, 25), own, 1024, 1)
call("F_NOTIFY", (72, 25), outside, 1026, 4)
number = struct.pack("i", pid)
for descriptor in range(64):
    try:
        kind = os.fstat(descriptor).st_mode & 0o170000
    except OSError:
        continue
    if kind == 0o140000:
        call("FIOSETOWN", (16, 29), descriptor, 0x8901, number)
        call("SIOCSPGRP", (16, 29), descriptor, 0x8902, number)
        call("FIOASYNC", (16, 29), descriptor, 0x5452, struct.pack("i", 0))
        break

call("io_uring_setup", 425, 1, buffer)
call("userfaultfd", (323, 282), 1)
call("bpf", (321, 280), 0, struct.pack("IIII", 2, 4, 4, 1) + bytes(100), 116)
call("perf_event_open", (298, 241), struct.pack("IIQ", 1, 112, 0) + bytes(96), 0, -1, -1, 0)
call("mount", (165, 40), b"none", b".", b"tmpfs", 0, None)
call("open_tree", 428, AT, b"/", 1)
call("fsopen", 430, b"tmpfs", 0)
call("unshare a user namespace", (272, 97), 0x10000000)
call("unshare a mount namespace", (272, 97), 0x20000)
call("setns", (308, 268), own, 0)
call("chroot", (161, 51), b".")
call("name_to_handle_at", (303, 264), AT, b".", buffer, buffer, 0)
call("memfd_create", (319, 279), b"x", 0)
call("fanotify_init", (300, 262), 0, 0)
call("mknod", (259, 33), AT, b"pipe", 0o010600, 0)
call("socket", (41, 198), 1, 1, 0)
call("datagrams to any socket", (53, 199), 1, 2, 0, buffer)
call("leave the group", (112, 157))
call("outlive the judge", (157, 167), 1, 0, 0, 0, 0)
call("be dumpable", (157, 167), 4, 1, 0, 0, 0)
if x86:
    call("x32", 0x40000000 + 39)
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3")  # push rbx; mov eax, getpid; int 0x80; pop rbx; ret
    value = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    found["32-bit"] = "open" if value > 0 else errno.errorcode[-value]
print(json.dumps(found))
'''
