# cython: language_level=3
"""The compiled steps of `bells`: what may wait gives the interpreter's lock away, and what may not keeps it."""

from cpython.exc cimport PyErr_SetFromErrno

cdef extern from *:
    """
    #include <errno.h>
    #include <unistd.h>

    /* Both return 0, or -1 with errno. */
    static int ring_bell(int writer)
    {
        ssize_t done;
        do
            done = write(writer, "", 1);
        while (done < 0 && errno == EINTR);
        /* A full pipe is rung already. */
        return done < 0 && errno != EAGAIN ? -1 : 0;
    }

    static int hear_bell(int reader)
    {
        char rings[4096];
        ssize_t done;
        do
            done = read(reader, rings, sizeof rings);
        while (done < 0 && errno == EINTR);
        return done < 0 && errno != EAGAIN ? -1 : 0;
    }
    """
    int ring_bell(int writer) nogil
    int hear_bell(int reader) nogil


def ring(int writer):
    """See ``bells.ring``."""
    if ring_bell(writer):
        PyErr_SetFromErrno(OSError)


def hear(int reader):
    """See ``bells.hear``."""
    if hear_bell(reader):
        PyErr_SetFromErrno(OSError)


def ring_and_wait(int writer, int reader):
    """See ``bells.ring_and_wait``."""
    cdef int failed = 0
    with nogil:
        if writer >= 0:
            failed = ring_bell(writer)
        if not failed:
            failed = hear_bell(reader)
    if failed:
        PyErr_SetFromErrno(OSError)
