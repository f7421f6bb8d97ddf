#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# make demo: a real workload on this very kernel, recorded, reported, validated and contrasted. Where the kernel
# refuses BPF, a short real trace from tests/corpus stands in.
set -eu
wakescope=.venv/bin/wakescope

show() {
	printf '\n$ wakescope %s\n' "$*"
	"$wakescope" "$@"
}

trace=demo.wake
rm -rf "$trace"
if "$wakescope" doctor --json >/dev/null; then
	if command -v tbench_srv >/dev/null; then
		show record -o "$trace" --workload "tbench:$(nproc)" --duration 5
	else
		show record -o "$trace" --duration 5
	fi
else
	"$wakescope" doctor || true
	trace=$(ls -d tests/corpus/*-tbench.wake | sort | tail -1)
	printf '\nThis machine cannot record (above). Going on with a real trace made elsewhere: %s\n' "$trace"
fi
show info "$trace"
show report "$trace"
show validate "$trace"
show contrast "$trace" --policy 6.12 --policy 6.12+nak-affine
