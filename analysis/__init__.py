# SPDX-License-Identifier: GPL-2.0-only
"""What reads a trace and says what happened."""
