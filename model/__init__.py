# SPDX-License-Identifier: GPL-2.0-only
"""What says what the kernel should have done, and would have done under another policy."""
