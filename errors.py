# SPDX-License-Identifier: GPL-2.0-only
"""Errors a user can cause: one line that says what is wrong and what to do, and an exit code of its own."""

from __future__ import annotations


class WakescopeError(Exception):
    """Base of every error shown without a traceback; exit_code is the command's exit status (docs/exit-status.md)."""

    exit_code = 1


class UsageError(WakescopeError):
    """The command line asks for something that does not make sense together."""

    exit_code = 2


class TraceError(WakescopeError):
    """A trace is missing, damaged, or lacks what was asked of it."""

    exit_code = 3


class NotRecordedError(TraceError):
    """A trace is sound but was recorded without what was asked of it."""

    exit_code = 13


class PrivilegeError(WakescopeError):
    """The kernel or the file system refuses for want of privileges."""

    exit_code = 4


class KernelError(WakescopeError):
    """This kernel cannot do what was asked (no BTF, no BPF, a probe refused)."""

    exit_code = 5


class OutputError(WakescopeError):
    """The output exists, cannot be written, or its disk is full."""

    exit_code = 6


class AgreementError(WakescopeError):
    """Fewer decisions agree than validate was told to ask for."""

    exit_code = 10


class CannotRecordError(WakescopeError):
    """doctor found that nothing can be recorded on this machine."""

    exit_code = 11


class ModelError(WakescopeError):
    """The model has no such release or patch, or the patch makes no sense there."""

    exit_code = 12


class InterruptError(WakescopeError):
    """A signal ended the command before it was done."""

    exit_code = 130


class CommandError(WakescopeError):
    """The workload cannot be started."""

    exit_code = 127
