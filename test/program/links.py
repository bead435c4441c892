"""Disturbs the TCP connections between two processes, through duplicates of their sockets (Linux 5.6; standard library only).

A duplicate has the same connection, which can be reset, left half-open, or slowed without help of the process.
"""
import ctypes, os, socket, struct

PIDFD_GETFD = 438
SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_MAX_PACING_RATE = 26, 27, 47
ESTABLISHED = "01"
RETURN_0 = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: accept no byte of any packet


def sockets_of(pid):
    """Returns the established connections of a process by (own address, other address): the number of the descriptor."""
    by_inode = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            by_inode[target[8:-1]] = int(name)
    found = {}
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            for line in file.readlines()[1:]:
                words = line.split()
                if words[3] == ESTABLISHED and words[9] in by_inode:
                    found[words[1], words[2]] = by_inode[words[9]]
    return found


def links(pid, other):
    """Returns duplicates of the sockets of process `pid` that are connected to process `other`. Throws OSError where the system
    does not allow it."""
    mine, others = sockets_of(pid), sockets_of(other)
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    try:
        found = []
        for (here, there), descriptor in mine.items():
            if (there, here) in others:
                copy = libc.syscall(PIDFD_GETFD, process, descriptor, 0)
                if copy < 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                found.append(socket.socket(fileno=copy))
        return found
    finally:
        os.close(process)


def reset(link):
    """Resets the connection, as a machine does that does not know it: both processes get an error."""
    nowhere = ctypes.create_string_buffer(struct.pack("H14x", socket.AF_UNSPEC))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(link.fileno(), nowhere, 16) != 0:
        raise OSError(ctypes.get_errno(), f"reset: {os.strerror(ctypes.get_errno())}")


def leave_half_open(link):
    """Drops all that arrives, as a broken cable does: neither process sees it, and each may wait for ever."""
    program = ctypes.create_string_buffer(RETURN_0)
    link.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))


def slow_down(link, bytes_per_second):
    """Limits the rate at which the process sends; 0: no limit."""
    link.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("I", bytes_per_second or 0xFFFFFFFF))
