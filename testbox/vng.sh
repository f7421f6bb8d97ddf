# SPDX-License-Identifier: GPL-2.0-only
# Run inside a guest of virtme-ng: vng.sh FOLDER OUT. Give the command what a box started by init.sh gives it: its
# settings, a whole file system it may write to, and /out.
folder=$1 out=$2 root=/run/box

die() {
    echo "error $*" > "$folder/status"
    exit 1
}
modules_at() { :; } # virtme-ng has linked them
share_out() { :; }  # below

mkdir -p $root && mount -t tmpfs tmpfs $root && mkdir $root/upper $root/work $root/root || die "cannot lay out $root"
mount -t overlay -o lowerdir=/,upperdir=$root/upper,workdir=$root/work overlay $root/root || die "cannot mount an overlay"
for part in proc sys dev tmp; do mount --rbind /$part $root/root/$part; done
mkdir -p $root/root/out
[ -z "$out" ] || mount --bind "$out" $root/root/out || die "cannot mount /out"
[ -d /sys/kernel/debug/sched ] || mount -t debugfs debugfs /sys/kernel/debug

. "$folder/settings.sh"
. "$folder/settings"
echo ready > "$folder/status"
chroot $root/root /bin/sh "$folder/command" < /dev/null
echo "exit $?" >> "$folder/status"
