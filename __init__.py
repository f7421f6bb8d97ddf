# SPDX-License-Identifier: GPL-2.0-only
"""Wakescope: record, reconstruct and model the wakeup placement of a live Linux kernel."""

__version__ = "0.1.0"
