#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every option of every command that takes a number, as --help shows it, refuses a value that is not
# a number: exit status 2, and the name of the option.
. "$(dirname "$0")/lib.sh"
export LC_ALL=C.UTF-8 HOME=$T ARGP_HELP_FMT=rmargin=200
job=$(cd "$(dirname "$0")/../.." && pwd)/configs/example.yaml
cd "$T"

# The placeholders of --help that are not numbers. Every other placeholder counts as a number.
text() {
    case $1 in
    DIR | FILE | CKPT | NAME | TEXT | TYPE | CODEC | ROLE | LANGUAGE | TASK | probe) ;;
    PATH=VALUE | CLUSTER=FILE) ;;
    HOST:PORT | '[HOST:]PORT' | 'ADDRESS[:PORT]') ;; # addresses
    *) return 1 ;;
    esac
}
said=0
refused() { # COMMAND OPTION VALUE
    local rc=0 out
    read -ra words <<<"$1"
    [[ $1 != plan ]] || words+=("$job")
    out=$(timeout 20 "$nebula" "${words[@]}" "$2=$3" 2>&1 </dev/null) || rc=$?
    [[ $rc == 2 ]] || fail "nebula $1 $2='$3': exit status $rc, not 2: $out"
    [[ $out == *"$2"* ]] || fail "nebula $1 $2='$3': does not name the option: $out"
    [[ $out != *measuring* ]] || fail "nebula $1 $2='$3': is refused only after measuring: $out"
    [[ -z $3 || $out == *"$3"* ]] || fail "nebula $1 $2='$3': does not name the value: $out"
    said=$((said + 1))
}
check() { # COMMAND OPTION PLACEHOLDER
    local before='' v
    [[ $3 != CLUSTER=* ]] || before=paris=
    for v in zz 12x -1 nan inf 0x10 1e999 99999999999999999999999 ''; do
        refused "$1" "$2" "$before$v"
    done
}

found=
for command in $("$nebula" help | awk '/^  [a-z]/ { print $1 }') 'eval --task=probe'; do
    while read -r option; do
        text "${option#*=}" && continue
        found+=" $command:${option%%=*}"
        check "$command" "${option%%=*}" "${option#*=}"
    done < <(read -ra words <<<"$command" && "$nebula" "${words[@]}" --help |
        grep -oE '^ {2,6}(-., )?--[a-z-]+=[^ ]+' | grep -oE -- '--.*' | sed 's/,$//')
done
# Checks of the search itself: it must find these.
for must in agent:--connections bench:--threads eval:--windows generate:--temperature \
    generate:--top-k import:--max-seq export:--shard-size invite:--ttl logs:--lines plan:--ranks \
    plan:--wan pretrain:--steps pretrain:--wan 'eval --task=probe:--seed'; do
    [[ "$found " == *" $must "* ]] || fail "the search did not find $must:$found"
done
for link in 100mbit:80ms:100% 100mbit:80ms:99.999% 100mbit:61s 0mbit:1ms; do
    refused plan --wan "$link"
    refused plan --wan "paris=$link"
    refused pretrain --wan "$link"
done
# A hidden option, and options of the tools beside the program.
check bench --end N
refuses() { # COMMAND… OPTION VALUE: exits with status 2 and names the option
    local rc=0 out
    out=$(timeout 20 "$@" 2>&1 </dev/null) || rc=$?
    [[ $rc == 2 && $out == *"${*: -2:1}"* ]] || fail "$*: exit status $rc: $out"
    said=$((said + 1))
}
for v in zz 12x -1 nan inf 0x10 1e999 99999999999999999999999 '' ' 5'; do
    for option in sites mtu seed; do refuses "$BUILD/wanlink" run "--$option" "$v"; done
    for option in rate delay jitter loss reorder queue rate-back delay-back loss-back \
        queue-back wan; do
        refuses "$BUILD/wanlink" run "--$option" "$v"
    done
    for option in seed seeds members witnesses rounds fragments jobs; do
        refuses "$BUILD/nebula-sim" "--$option" "$v"
    done
done
# A correct value is accepted: the command succeeds, or fails for another reason.
takes() { # TEXT command…
    local what=$1 out
    shift
    out=$(timeout 20 "$nebula" "$@" 2>&1 </dev/null) || true
    [[ $out == *"$what"* ]] || fail "nebula $*: no '$what' in: $out"
}
takes 'nowhere' generate nowhere --ids "1, 2 3" --tokens 0 --top-k 0 --temperature 1e-1 \
    --seed 18446744073709551615
takes 'nowhere' eval nowhere --corpus nowhere --windows 0 --seq-len 4096
takes 'nowhere' eval nowhere --corpus nowhere --task translate --windows 0 --beam 4
takes 'nowhere' export nowhere there --shard-size 1.5GB
takes 'checkpoint read' bench seal --threads 1024 --params 1000
takes 'not the hub' invite somebody --ttl 30m
echo "$said refusals of:$found"
