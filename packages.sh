#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Installs, on Debian or Ubuntu and as root, the system packages that make setup, demo and test use. Elsewhere, and
# without root, it says what is missing and goes on if nothing is.
set -eu

# BCC takes headers of any kernel; Debian names them by architecture. perf comes with Ubuntu's kernel tools.
headers=linux-headers-generic
perf=linux-tools-generic
if grep -q '^ID=debian' /etc/os-release; then
	headers="linux-headers-$(dpkg --print-architecture)"
	perf=linux-perf
fi

# what it is for: python, building the probes, loading them, workloads, the test box, independent counters, and the
# second loader
packages="python3-venv clang libbpf-dev libbpf1 dbench rt-tests postgresql qemu-system-x86 busybox-static
zstd $perf bpftrace stress-ng rt-app python3-bpfcc $headers"

missing=""
for package in $packages; do
	dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null; then
	echo "packages.sh: this is not Debian or Ubuntu; install what corresponds to:$missing" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "packages.sh: run as root once, or install:$missing" >&2
	exit 1
fi
apt-get update -qq
# older releases lack some workloads
wanted=""
for package in $missing; do
	if apt-cache show "$package" >/dev/null 2>&1; then
		wanted="$wanted $package"
	else
		echo "packages.sh: no package $package here; what needs it will say so" >&2
	fi
done
# shellcheck disable=SC2086 # the list is meant to be split
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted
