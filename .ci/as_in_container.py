"""Run a command as in a container: no namespaces, no mounts, the capabilities that Docker leaves.

A filter of system calls answers EPERM, as the default profiles of container runtimes do, and the
bounding set loses what Docker's default does not hold. x86-64, and root for the second.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

LOAD, IF_EQUAL, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, DENY, NOT_THERE = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
UNSHARE, SETNS, MOUNT, UMOUNT, PIVOT_ROOT, CHROOT = 272, 308, 165, 166, 155, 161
OPEN_TREE, MOVE_MOUNT, FSOPEN, FSMOUNT, MOUNT_SETATTR = 428, 429, 430, 432, 442
PERSONALITY, IO_URING_SETUP, CLONE, CLONE3, SECCOMP = 135, 425, 56, 435, 317
NO_RANDOM_LAYOUT = 0x0040000
NEW_NAMESPACES = 0x7E020000
KEPT = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""The capabilities of Docker's default: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID,
SETPCAP, NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD, AUDIT_WRITE and SETFCAP."""
SET_NO_NEW_PRIVS, DROP_BOUNDING = 38, 24
libc = ctypes.CDLL(None, use_errno=True)


def drop_capabilities() -> None:
    """Leave what Docker does to whatever is started."""
    number = 0
    while libc.prctl(23, number, 0, 0, 0) >= 0:  # PR_CAPBSET_READ
        if number not in KEPT:
            libc.prctl(DROP_BOUNDING, number, 0, 0, 0)
        number += 1


def deny() -> None:
    """Deny new namespaces and mounts, for good."""
    body = [(LOAD, 0, 0, 0)]
    for number in (UNSHARE, SETNS, MOUNT, UMOUNT, PIVOT_ROOT, CHROOT, OPEN_TREE, MOVE_MOUNT):
        body += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    for number in (FSOPEN, FSMOUNT, MOUNT_SETATTR, IO_URING_SETUP):
        body += [(IF_EQUAL, 0, 1, number), (RETURN, 0, 0, DENY)]
    body += [(IF_EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, NOT_THERE)]
    for number, bits in ((CLONE, NEW_NAMESPACES), (PERSONALITY, NO_RANDOM_LAYOUT)):
        denied = [(IF_ANY_BIT, 0, 1, bits), (RETURN, 0, 0, DENY), (RETURN, 0, 0, ALLOW)]
        body += [(IF_EQUAL, 0, 4, number), (LOAD, 0, 0, 16), *denied]
    body.append((RETURN, 0, 0, ALLOW))
    packed = b"".join(struct.pack("=HBBI", *one) for one in body)
    held = ctypes.create_string_buffer(packed, len(packed))
    header = struct.pack("@HP", len(body), ctypes.addressof(held))
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(SECCOMP, 1, 0, header):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    if os.geteuid() == 0:
        drop_capabilities()
    deny()
    os.execvp(sys.argv[1], sys.argv[1:])
