#!/bin/sh
# Boots COPS in QEMU, with its serial console on this terminal.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
harts=@HARTS@
memory=@MEMORY@
network=user
hardware_address=52:54:00:12:34:56
program=shell

usage() {
    cat <<END
usage: ./boot [OPTIONS] [PROGRAM [ARGUMENTS...]]

Boots COPS in QEMU and starts a program; the default is the shell, in which \`help\` lists the commands.

  --harts N               harts of the machine; default $harts
  --memory SIZE           its memory, as 512M or 2G; default $memory
  --forward HOST:GUEST    let a TCP port of this host lead to one of the machine; may be repeated
  --help                  show this

Ctrl-A X ends QEMU. The exit status is that of the program. Programs: @PROGRAMS@
END
}

fail() {
    echo "boot: $1" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        --harts | --memory | --forward)
            [ $# -ge 2 ] || fail "$1 needs a value"
            case $1 in
                --harts) harts=$2 ;;
                --memory) memory=$2 ;;
                --forward)
                    case $2 in
                        *[!0-9:]* | :* | *: | *:*:*) fail "--forward takes two port numbers, as in 8000:7000" ;;
                        *:*) network=$network,hostfwd=tcp:127.0.0.1:${2%%:*}-:${2##*:} ;;
                        *) fail "--forward takes two port numbers, as in 8000:7000" ;;
                    esac
                    ;;
            esac
            shift 2
            ;;
        -h | --help) usage && exit 0 ;;
        --) shift && break ;;
        -*) fail "unknown option $1; ./boot --help lists them" ;;
        *) break ;;
    esac
done
if [ $# -gt 0 ]; then
    program=${1#/bin/}
    shift
    [ "${1-}" != -- ] || shift
fi
case " @PROGRAMS@ " in
    *" $program "*) ;;
    *) fail "there is no program $program; there are: @PROGRAMS@" ;;
esac
command -v @QEMU@ >/dev/null || fail "@QEMU@ is not on the PATH. On Debian: apt install qemu-system-misc opensbi"

# The kernel divides its command line into words; in double quotes a backslash stands before a quote or a backslash.
command_line=init=/bin/$program
[ $# -eq 0 ] || command_line="$command_line --"
for argument; do
    quoted=$(printf '%s.' "$argument" | sed 's/[\\"]/\\&/g')
    command_line="$command_line \"${quoted%.}\""
done

exec @QEMU@ @ARGUMENTS@
