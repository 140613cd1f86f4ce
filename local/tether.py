"""Starts a program that the kernel stops when its starter dies: `python -S -E tether.py SIGNAL USER PROGRAM …`.

A program of its own rather than code between fork and exec: the starters have gRPC's threads, which a fork without an
immediate exec may leave broken. Only Linux can tether; elsewhere the program is simply run. USER may be empty.
"""

import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the program."""
    number, user, *program = sys.argv[1:]
    starter = os.getppid()
    if user:  # before the tether: changing the user would cut it
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
        if os.getppid() != starter:  # it died before the tether held
            sys.exit(1)
    os.execv(program[0], program)  # noqa: S606 - this is its purpose


if __name__ == "__main__":
    main()
