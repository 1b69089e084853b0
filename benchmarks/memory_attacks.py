"""Programs that take memory in every way we know of. Each writes `+N` for every N bytes that it now holds.

The sum of these lines is what a program held at its end, whether that memory belongs to its processes or to the kernel.
Programs that are refused a way of taking memory end early.
"""

# ruff: noqa: E501 - programs in few lines each

from __future__ import annotations

import asyncio
import uuid

from benchmarks.attacks import alive, end
from benchmarks.hostile import CALL
from roll.sandbox.base import Program, ProgramResult, ResourceLimits
from roll.sandbox.level import BUBBLEWRAP, SandboxLevel

LIMITS = ResourceLimits(wall_s=4.0)
GRACE_S = 1.0
"""Time for the kernel to remove killed processes, which may have to free hundreds of megabytes."""

_PRELUDE = (
    CALL
    + """
import fcntl, mmap, resource, signal, socket, struct, sys, time
MB = 2**20
def held(n): os.write(1, b"+%d\\n" % n)
def fill(socket_or_pipe):
    os.set_blocking(socket_or_pipe, False)
    total = 0
    try:
        while True: total += os.write(socket_or_pipe, b"x" * 32768)
    except OSError: pass
    return total
def everywhere(work):
    for _ in range(29):
        try:
            if os.fork() == 0: break
        except OSError: break
    try: work()
    except (OSError, MemoryError): pass
    time.sleep(1.5)
"""
)

_BODIES = {
    "processes": "def work():\n    x = []\n    for _ in range(450): x.append(b'x' * MB); held(MB)\neverywhere(work)",
    "processes that leave their session": "def work():\n    os.setsid() if os.getpid() != os.getsid(0) else 0\n    if os.fork(): os._exit(0)\n    x = []\n    for _ in range(450): x.append(b'x' * MB); held(MB)\neverywhere(work)",
    "processes that copy on write": "x = bytearray(400 * MB)\nfor n in range(400): x[n * MB:(n + 1) * MB] = b'x' * MB; held(MB)\ndef work():\n    for n in range(400):\n        x[n * MB:(n + 1) * MB] = b'y' * MB; held(MB)\neverywhere(work)",
    "processes that take turns": "if os.fork(): time.sleep(3), os._exit(0)\nwhile True:\n    x = []\n    for _ in range(50): x.append(b'x' * MB); held(MB)\n    try:\n        if os.fork(): time.sleep(3), os._exit(0)\n    except OSError: time.sleep(3)",
    "threads": "import threading\nx = []\ndef work():\n    for _ in range(200): x.append(b'x' * MB); held(MB)\n    time.sleep(60)\nfor _ in range(20): threading.Thread(target=work).start()",
    "extended attributes": "n = 0\nwhile True:\n    n += 1\n    open(str(n), 'w').close()\n    for k in range(16): os.setxattr(str(n), f'user.{k}', b'x' * 60000); held(60000)",
    "extended attributes of a descriptor": "fd = os.open('x', os.O_CREAT | os.O_RDWR)\nn = 0\nwhile True: os.setxattr(fd, f'user.{n}', b'x' * 60000); held(60000); n += 1",
    "inodes": "def work():\n    d = str(os.getpid()); os.mkdir(d); n = 0\n    while True:\n        for _ in range(1000): os.mknod(f'{d}/{n:0200}'); n += 1\n        held(1000 * 1024)\neverywhere(work)",
    "directories": "def work():\n    d = str(os.getpid()); os.mkdir(d); n = 0\n    while True:\n        for _ in range(1000): os.mkdir(f'{d}/{n:0200}'); n += 1\n        held(1000 * 1024)\neverywhere(work)",
    "links": "def work():\n    d = str(os.getpid()); os.mkdir(d); n = 0\n    while True:\n        for _ in range(1000): os.symlink('x' * 100, f'{d}/{n:0200}'); n += 1\n        held(1000 * 1024)\neverywhere(work)",
    "socket pairs": "def work():\n    x = []\n    while True:\n        a, b = socket.socketpair(); a.setsockopt(1, 7, 4 * MB); x.append(b); held(fill(a.fileno())); a.close()\neverywhere(work)",
    "datagram pairs": "def work():\n    x = []\n    while True:\n        a, b = socket.socketpair(type=socket.SOCK_DGRAM); a.setsockopt(1, 7, 4 * MB); x.append(b); held(fill(a.fileno())); a.close()\neverywhere(work)",
    "connections not accepted": "def work():\n    name = str(os.getpid()); s = socket.socket(socket.AF_UNIX); s.bind(name); s.listen(4096)\n    while True:\n        c = socket.socket(socket.AF_UNIX); c.connect(name); held(fill(c.fileno())); c.close()\neverywhere(work)",
    "sockets in flight": "def work():\n    keep = []\n    while True:\n        a, b = socket.socketpair(); held(fill(a.fileno()))\n        c, d = socket.socketpair(); socket.send_fds(c, [b'x'], [b.fileno()]); a.close(); b.close(); c.close(); keep.append(d)\neverywhere(work)",
    "tcp": "def work():\n    s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(100); x = []\n    while True:\n        c = socket.socket(); c.setsockopt(1, 7, 8 * MB); c.connect(s.getsockname()); a, _ = s.accept(); a.setsockopt(1, 8, 8 * MB)\n        held(fill(c.fileno())); x += [a, c]\neverywhere(work)",
    "udp": "def work():\n    x = []\n    while True:\n        s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); s.setsockopt(1, 8, 8 * MB); s.connect(s.getsockname())\n        n = sum(s.send(b'x' * 30000) for _ in range(7)); held(n); x.append(s)\neverywhere(work)",
    "other address families": "for family in range(1, 46):\n    for kind in (1, 2, 3, 5):\n        if family in (1, 2): continue\n        try: s = socket.socket(family, kind); held(2**40)\n        except OSError: pass",
    "socket filters": "x = []\ncode = struct.pack('HBBI', 6, 0, 0, 0) * 4000\nbuffer = ctypes.create_string_buffer(code)\nwhile True:\n    a, b = socket.socketpair(); a.setsockopt(1, 26, struct.pack('HxxxxxxP', 4000, ctypes.addressof(buffer))); x += [a, b]; held(32000)",
    "pipes": "def work():\n    x = []\n    while True:\n        r, w = os.pipe()\n        try: fcntl.fcntl(w, 1031, MB)\n        except OSError: pass\n        held(fill(w)); os.close(w); x.append(r)\neverywhere(work)",
    "larger pipes": "x = []\nwhile True:\n    r, w = os.pipe(); fcntl.fcntl(w, 1031, MB); held(fill(w)); os.close(w); x.append(r)",
    "files without a name": "x = []\nwhile True: fd = os.memfd_create('x'); x.append(fd); held(sum(os.write(fd, b'x' * MB) for _ in range(15)))",
    "secret memory": "breach = call(447, 447, 0)\nif breach >= 0: os.ftruncate(breach, 8 * MB); held(2**40)",
    "system v segments": "libc.shmat.restype = ctypes.c_void_p\nwhile True:\n    n = call(29, 194, 0, 64 * MB, 0o1600)\n    if n < 0: break\n    p = libc.shmat(n, None, 0); ctypes.memset(p, 1, 64 * MB); libc.shmdt(ctypes.c_void_p(p)); held(64 * MB)",
    "system v messages": "while True:\n    q = call(68, 186, 0, 0o1600)\n    if q < 0: break\n    while libc.msgsnd(q, ctypes.create_string_buffer(struct.pack('l', 1) + b'x' * 8000), 8000, 0o4000) == 0: held(8000)",
    "posix message queues": "n = 0\nwhile True:\n    n += 1\n    q = call(240, 180, b'q%d' % n, 0o102, 0o600, 0)\n    if q < 0: break\n    held(80000)",
    "shared memory kept by a page": "x = []\nwhile True:\n    m = libc.mmap; m.restype = ctypes.c_void_p; m.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n    p = m(None, 64 * MB, 3, 0x21, -1, 0)\n    if p == 2**64 - 1: break\n    ctypes.memset(p, 1, 64 * MB); libc.munmap(ctypes.c_void_p(p + 4096), ctypes.c_size_t(64 * MB - 4096)); held(64 * MB)",
    "a device mapped as shared memory": "fd = os.open('/dev/zero', os.O_RDWR)\nwhile True:\n    m = libc.mmap; m.restype = ctypes.c_void_p; m.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n    p = m(None, 64 * MB, 3, 1, fd, 0)\n    if p == 2**64 - 1: break\n    ctypes.memset(p, 1, 64 * MB); libc.munmap(ctypes.c_void_p(p + 4096), ctypes.c_size_t(64 * MB - 4096)); held(64 * MB)",
    "mapped files": "n = 0\nwhile True:\n    n += 1\n    fd = os.open(str(n), os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 8 * MB); m = mmap.mmap(fd, 8 * MB)\n    for k in range(8): m[k * MB:(k + 1) * MB] = b'x' * MB; held(MB)",
    "deleted files": "x = []\nwhile True:\n    fd = os.open('x', os.O_CREAT | os.O_RDWR); os.unlink('x'); x.append(fd)\n    for _ in range(8): held(os.write(fd, b'x' * MB))",
    "pages of files in pipes": "def work():\n    x = []\n    fd = os.open(str(os.getpid()), os.O_CREAT | os.O_RDWR)\n    while True:\n        r, w = os.pipe(); os.set_blocking(w, False); os.pwrite(fd, b'x' * 65536, 0); os.lseek(fd, 0, 0)\n        held(os.sendfile(w, fd, 0, 65536)); os.ftruncate(fd, 0); os.close(w); x.append(r)\neverywhere(work)",
    "large pages in pipes": "x = []\nwhile True:\n    r, w = os.pipe(); x.append(r)\n    for _ in range(16):\n        m = mmap.mmap(-1, 4 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.madvise(14); m[:] = b'x' * (4 * MB)\n        p = ctypes.addressof(ctypes.c_char.from_buffer(m)); v = struct.pack('PN', (p + 2 * MB) & ~(2 * MB - 1), 4096)\n        if call(278, 75, w, ctypes.create_string_buffer(v), 1, 0) < 0: sys.exit()\n        held(2 * MB)",
    "keys": "n = 0\nwhile call(248, 217, b'user', b'k%d' % n, ctypes.create_string_buffer(20000), 20000, -4) >= 0: n += 1; held(20000)",
    "timers": "t = ctypes.c_int()\ndef work():\n    while True:\n        for _ in range(1000):\n            if call(222, 107, 1, 0, ctypes.byref(t)) < 0: raise OSError\n        held(1000 * 400)\neverywhere(work)",
    "queued signals": "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\ndef work():\n    while True:\n        for _ in range(1000):\n            if libc.sigqueue(os.getpid(), 40, ctypes.c_void_p(0)) < 0: raise OSError\n        held(1000 * 80)\neverywhere(work)",
    "event descriptors": "def work():\n    x = []\n    while True: x.append(os.eventfd(0)); held(256)\neverywhere(work)",
    "watches of descriptors": "import select\ndef work():\n    fds = [fd for _ in range(27) for fd in os.pipe()]\n    x = []\n    while True:\n        e = select.epoll(); x.append(e)\n        for fd in fds: e.register(fd)\n        held(256 * 55)\neverywhere(work)",
    "watches of files": "import itertools\ni = call(294, 26, 0)\nif i >= 0:\n    for d, _, fs in os.walk('/usr'):\n        for f in fs:\n            if libc.inotify_add_watch(i, os.path.join(d, f).encode(), 2) >= 0: held(1100)",
    "locks": "def work():\n    fd = os.open(str(os.getpid()), os.O_CREAT | os.O_RDWR); n = 0\n    while True:\n        for _ in range(5000): fcntl.lockf(fd, fcntl.LOCK_EX, 1, 2 * n); n += 1\n        held(5000 * 200)\neverywhere(work)",
    "mappings": "def work():\n    x = []\n    for n in range(1, 65000):\n        m = libc.mmap; m.restype = ctypes.c_void_p; m.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n        m(None, 4096, 1 if n % 2 else 3, 0x22, -1, 0)\n        if n % 5000 == 0: held(5000 * 256)\neverywhere(work)",
    "tables for futexes": "for bits in (24, 23, 22, 21, 20):\n    if libc.prctl(78, 1, 2**bits, 0, 0) == 0:\n        held(64 << bits); break\ntime.sleep(0.5)",
    "rules of landlock": "a = ctypes.create_string_buffer(struct.pack('QQQ', 4, 0, 0))\nfd = call(444, 444, a, 8, 0)\nif fd >= 0:\n    for d, _, fs in os.walk('/usr'):\n        for f in fs:\n            p = os.open(os.path.join(d, f), os.O_PATH); call(445, 445, fd, 1, ctypes.create_string_buffer(struct.pack('=Qi', 4, p)), 0); os.close(p); held(1100)",
    "filters": "libc.prctl(38, 1, 0, 0, 0)\ncode = struct.pack('HBBI', 6, 0, 0, 0x7fff0000) * 4000\nb = ctypes.create_string_buffer(code)\nf = ctypes.create_string_buffer(struct.pack('HxxxxxxP', 4000, ctypes.addressof(b)))\ndef work():\n    while call(317, 277, 1, 0, f) >= 0: held(100000)\neverywhere(work)",
    "asynchronous reads": "c = ctypes.c_ulong()\ndef work():\n    while True:\n        c.value = 0\n        if call(206, 0, 1000, ctypes.byref(c)) < 0: break\n        held(128000)\neverywhere(work)",
    "rings": "while True:\n    fd = call(425, 425, 4096, ctypes.create_string_buffer(256))\n    if fd < 0: break\n    held(400000)",
    "user faults": "if call(323, 282, 1) >= 0: held(2**40)",
    "maps of the kernel": "if call(321, 280, 0, ctypes.create_string_buffer(struct.pack('IIII', 2, 4, 2**20, 64).ljust(128, b'\\0')), 128) >= 0: held(2**40)",
    "a file system in a namespace": "if libc.unshare(0x10020000) == 0:\n    if libc.mount(b'none', b'/tmp', b'tmpfs', 0, b'size=4g') == 0: held(2**40)",
    "a long command line": "def work():\n    while True: os.execv('/bin/sh', ['sh', '-c', 'sleep 60', *['x' * 100000] * 60])\nheld(29 * 6 * MB)\neverywhere(work)",
}  # fmt: skip

ATTACKS = {name: _PRELUDE + body for name, body in _BODIES.items()}


async def overshoot(attack: str, level: SandboxLevel = BUBBLEWRAP) -> tuple[int, int]:
    """Bytes that an attack of `ATTACKS` held past `LIMITS.total_bytes`, and how many of its processes survived."""
    mark = uuid.uuid4().hex
    outcome = await level.run(Program(argv=("python3", "-I", "-S", "-c", ATTACKS[attack], mark)), LIMITS)
    for _ in range(int(GRACE_S / 0.05)):
        if not alive(mark):
            break
        await asyncio.sleep(0.05)
    survivors = alive(mark)
    end(survivors)
    return max(held_bytes(outcome) - LIMITS.total_bytes, 0), len(survivors)


def held_bytes(outcome: ProgramResult) -> int:
    """The bytes that an attack reported to hold."""
    return sum(int(line) for line in outcome.stdout.splitlines() if line.startswith(b"+"))
