# SPDX-License-Identifier: GPL-2.0-only
"""Which kernel release has which features of wakeup placement."""
