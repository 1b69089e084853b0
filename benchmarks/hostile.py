"""Programs that try to escape the sandbox, read the host, or exceed their limits. Each prints BREACH when it succeeds.

Placeholders: `{port}` is a listening port of the host, `{name}` a listening abstract socket, `{secret}` a world-readable
file of the host, `{victim}` a process of the host that runs as the same user.
"""

# ruff: noqa: E501 - programs in one line each

from __future__ import annotations

from dataclasses import dataclass

CALL = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *arguments):
    number = x86 if platform.machine() == "x86_64" else arm
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
def breach(result):
    if result >= 0: print("BREACH", result, flush=True)
"""


@dataclass(frozen=True)
class Hostile:
    """One program. Source with braces is a `str.format` template."""

    source: str
    deadly: bool = False
    """Never run without isolation: it would harm other processes."""
    slow: bool = False
    """Ends at its time limit only."""


def attempt(*lines: str) -> str:
    """A program that tries each line in turn; a line without an exception is a breach."""
    tries = "".join(f"try:\n    {line}\n    print('BREACH', flush=True)\nexcept Exception: pass\n" for line in lines)
    return f"import os, socket, signal, resource, sys\n{tries}"


NETWORK = {
    "connect to the host": Hostile(attempt("socket.create_connection(('127.0.0.1', {port}), timeout=1)")),
    "connect to the world": Hostile(attempt("socket.create_connection(('1.1.1.1', 53), timeout=0.5)")),
    "connect to an abstract socket of the host": Hostile(
        attempt("socket.socket(socket.AF_UNIX).connect(chr(0) + '{name}')")
    ),
    "send a datagram to the world": Hostile(
        attempt("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))")
    ),
    "resolve a name": Hostile(attempt("socket.getaddrinfo('example.com', 80)")),
    "open a raw socket": Hostile(attempt("socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)")),
    "see other interfaces": Hostile(
        "import socket\nif set(n for _, n in socket.if_nameindex()) - {{'lo'}}: print('BREACH')"
    ),
}

PROCESSES = {
    "fork bomb": Hostile(
        """
import os, time
count = 0
try:
    while True:
        if os.fork() == 0: time.sleep(60)
        count += 1
        if count > 100:
            print("BREACH"); break
except OSError: pass
"""
    ),
    "fork bomb that doubles": Hostile(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", slow=True
    ),
    "thread bomb": Hostile(
        """
import threading, time, os
try:
    for _ in range(200): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    print("BREACH", flush=True)
except RuntimeError: pass
os._exit(0)
"""
    ),
    "daemon": Hostile(
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for d in (0, 1, 2): os.close(d)
        time.sleep(3)
    os._exit(0)
os.wait()
"""
    ),
    "daemon that keeps the output open": Hostile(
        "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(3)\n    print('BREACH', flush=True)"
    ),
    "see a process of the host": Hostile(attempt("os.kill({victim}, 0)")),
    "stop a process of the host": Hostile(attempt("os.kill({victim}, signal.SIGCONT)")),
    "limit a process of the host": Hostile(attempt("resource.prlimit({victim}, resource.RLIMIT_CORE, (0, 0))")),
    "trace a process of the host": Hostile(CALL + "breach(call(101, 117, 16, {victim}, 0, 0))"),
    "read the memory of a process of the host": Hostile(attempt("open('/proc/{victim}/mem', 'rb')")),
    "kill the parent": Hostile(
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(0.2)", deadly=True
    ),
    "kill every process": Hostile("import os, signal\nos.kill(-1, signal.SIGKILL)", deadly=True),
    "kill the process group": Hostile("import os, signal\nos.killpg(0, signal.SIGKILL)"),
    "ignore all signals": Hostile(
        "import signal, time\nfor n in set(signal.Signals) - {{signal.SIGKILL, signal.SIGSTOP}}: "
        "signal.signal(n, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        slow=True,
    ),
    "stop itself": Hostile("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", slow=True),
    "spin": Hostile("while True: pass", slow=True),
    "sleep": Hostile("import time\ntime.sleep(3600)", slow=True),
    "raise the priority": Hostile(attempt("os.nice(-5)", "os.setpriority(os.PRIO_PROCESS, 0, -5)")),
}

RESOURCES = {
    "memory": Hostile("x = bytearray(2**30)\nprint('BREACH')"),
    "memory in small pieces": Hostile("x = []\nwhile len(x) < 2**30 // 2**16: x.append(b'x' * 2**16)\nprint('BREACH')"),
    "memory that is shared": Hostile("import mmap\nm = mmap.mmap(-1, 2**30)\nprint('BREACH')"),
    "memory in files without a name": Hostile(
        "import os\nfds = [os.memfd_create(str(n)) for n in range(40)]\nfor fd in fds: os.write(fd, b'x' * 2**19)\nprint('BREACH')"
    ),
    "memory in system v segments": Hostile(CALL + "breach(call(29, 194, 0, 2**28, 0o1600))"),
    "deep recursion": Hostile(
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)\nprint('BREACH')"
    ),
    "one large file": Hostile("open('x', 'wb').write(b'x' * 2**26)\nprint('BREACH')"),
    "many files": Hostile(
        "for n in range(64): open(str(n), 'wb').write(b'x' * 2**19)\nimport os\nos.sync()\nprint('BREACH')"
    ),
    "many files in shared memory": Hostile(
        "import os\nfor n in range(64): open(f'/dev/shm/roll-hostile-{{n}}', 'wb').write(b'x' * 2**19)\nprint('BREACH')\n"
        "for n in range(64): os.unlink(f'/dev/shm/roll-hostile-{{n}}')"
    ),
    "a file with a hole": Hostile(attempt("open('hole', 'wb').truncate(2**40)")),
    "many open files": Hostile("x = [open('/dev/null') for _ in range(1000)]\nprint('BREACH')"),
    "raise the limits": Hostile(
        attempt(
            "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
            "resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))",
            "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
        )
    ),
    "output flood": Hostile("while True: print('x' * 1000)"),
    "error flood": Hostile("import sys\nwhile True: sys.stderr.write('x' * 1000)"),
    "output flood of a child": Hostile(
        "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: os.write(1, b'x' * 1000)\nos.wait()"
    ),
}

READING = {
    "read a file of the host": Hostile(attempt("open('{secret}').read()")),
    "read it by a link": Hostile(attempt("os.symlink('{secret}', 'link'), open('link').read()")),
    "read it by a relative path": Hostile(attempt("open('../../../../../../../..{secret}').read()")),
    "read it through a process's root": Hostile(
        "import os\nfor n in os.listdir('/proc'):\n    try: open(f'/proc/{{n}}/root{secret}').read(); print('BREACH')\n"
        "    except OSError: pass"
    ),
    "read it through a process's directory": Hostile(
        "import os\nfor n in os.listdir('/proc'):\n    try:\n"
        "        open(f'/proc/{{n}}/cwd/../../../../../../..{secret}').read(); print('BREACH')\n    except OSError: pass"
    ),
    "read the password hashes": Hostile(attempt("open('/etc/shadow').read()")),
    "read the list of users": Hostile(attempt("open('/etc/passwd').read()")),
    "read the environment": Hostile(
        "import os\nif 'ROLL_HOSTILE' in os.environ: print('BREACH')\nfor n in os.listdir('/proc'):\n    try:\n"
        "        if b'ROLL_HOSTILE' in open(f'/proc/{{n}}/environ', 'rb').read(): print('BREACH')\n    except OSError: pass"
    ),
    "read inherited file descriptors": Hostile(
        "import os\nfor fd in range(3, 128):\n    try:\n        if b'secret' in os.pread(fd, 100, 0): print('BREACH')\n    except OSError: pass"
    ),
    "see the host's processes": Hostile(
        "import os\nif len([n for n in os.listdir('/proc') if n.isdigit()]) > 3: print('BREACH')"
    ),
    "write to the system": Hostile(
        attempt(*(f"open('{folder}/x', 'w')" for folder in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/proc", "/sys")))
    ),
    "write to the program's own input": Hostile(attempt("os.write(os.open('/proc/self/fd/0', os.O_RDWR), b'x')")),
    "change kernel settings": Hostile(
        attempt("open('/proc/sys/kernel/core_pattern', 'w').write('x')", "open('/proc/sysrq-trigger', 'w').write('h')")
    ),
}

PRIVILEGES = {
    "become root": Hostile(attempt("os.setuid(0)", "os.setgid(0)", "os.setgroups([0])")),
    "run a setuid program": Hostile(
        "import subprocess\nr = subprocess.run(['su', '-c', 'id'], stdin=subprocess.DEVNULL, capture_output=True)\n"
        "if b'uid=0' in r.stdout: print('BREACH')"
    ),
    "create a user namespace": Hostile(CALL + "breach(call(272, 97, 0x10000000))"),
    "create a namespace by cloning": Hostile(
        CALL + "p = call(56, 220, 0x10000011, 0, 0, 0, 0)\nif p == 0: os._exit(0)\nbreach(p)"
    ),
    "mount": Hostile(CALL + "breach(call(165, 40, b'none', b'/tmp', b'tmpfs', 0, 0))"),
    "change the root": Hostile(attempt("os.mkdir('r'), os.chroot('r')")),
    "create a device": Hostile(attempt("os.mknod('disk', 0o60666, os.makedev(8, 0)), open('disk', 'rb')")),
    "set the host name": Hostile(attempt("socket.sethostname('x')")),
    "set the clock": Hostile("import time\ntry:\n    time.clock_settime(time.CLOCK_REALTIME, time.time()); print('BREACH')\nexcept OSError: pass"),
    "use the kernel keyring": Hostile(CALL + "breach(call(250, 219, 0, -4, 1))"),
    "load a BPF program": Hostile(CALL + "breach(call(321, 280, 0, ctypes.create_string_buffer(128), 128))"),
    "open performance counters": Hostile(CALL + "breach(call(298, 241, ctypes.create_string_buffer(128), 0, -1, -1, 0))"),
    "use io_uring": Hostile(CALL + "breach(call(425, 425, 8, ctypes.create_string_buffer(256)))"),
    "type into the terminal": Hostile(attempt("__import__('fcntl').ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x')")),
}  # fmt: skip

ALL = {**NETWORK, **PROCESSES, **RESOURCES, **READING, **PRIVILEGES}
