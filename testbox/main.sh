# SPDX-License-Identifier: GPL-2.0-only
# First process of a box after init.sh, run by the host's own /bin/sh: run the command of this run, say how it ended,
# and switch the machine off. Only shell built-ins, so that any host's file system will do.
ulimit -l unlimited
ulimit -n 65536
echo "ready" > /run/box/status
if [ -e /run/box/terminal ]; then
    read -r size < /run/box/terminal
    {
        /run/box/busybox stty $size
        /run/box/busybox setsid -c /bin/sh /run/box/command
    } <> /dev/hvc0 >&0 2>&1
else
    /bin/sh /run/box/command < /dev/null > /run/box/stdout 2> /run/box/stderr
fi
code=$?
echo "exit $code" > /run/box/status
echo o > /proc/sysrq-trigger
exec /run/box/busybox sleep 60
