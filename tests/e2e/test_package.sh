#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cmake --install and the Debian package: complete, working, and documented.
. "$(dirname "$0")/lib.sh"
cmake --install "$BUILD" --prefix "$T/prefix" >"$T/install.log" 2>&1 ||
    fail "cmake --install failed"
"$T/prefix/bin/nebula" --version | has '^nebula [0-9]' || fail "the installed program does not run"
# --version lists the objects that were built.
how=$("$T/prefix/bin/nebula" --version --json)
for object in mpi nccl cuda; do
    [[ -f $BUILD/libnebula_$object.so ]] && built=true || built=false
    jq -e ".objects.$object == $built" <<<"$how" >/dev/null ||
        fail "$object was built: $built, but --version prints: $how"
done
jq -e '.version | test("^[0-9]+[.][0-9]+[.][0-9]+$")' <<<"$how" >/dev/null ||
    fail "--version prints: $how"
# Objects that are loaded at run time must keep the library folders of their link step: ld.so does
# not know those of CUDA and NCCL.
folders() {
    readelf -d "$1" | sed -n 's/.*(R\(UN\)\?PATH).*\[\(.*\)\]/\2/p' | tr ':' '\n' |
        sed '/^$/d' | sort -u
}
for so in "$BUILD"/libnebula_{cuda,nccl,mpi}.so; do
    [[ -f $so ]] || continue
    lost=$(comm -23 <(folders "$so") <(folders "$T/prefix/lib/nebula/${so##*/}"))
    [[ -z $lost ]] || fail "after installation ${so##*/} no longer looks in $lost"
    folders "$T/prefix/lib/nebula/${so##*/}" | has "^$BUILD" &&
        fail "${so##*/} is installed with a path into the build folder"
done
# The target `uninstall` removes every file, and no folder of another program. A build folder of its
# own: this one may have been installed by its owner.
mkdir "$T/build" && echo kept >"$T/prefix/lib/other"
find "$T/prefix" ! -type d ! -name other >"$T/build/install_manifest.txt"
mkdir "$T/prefix/share/nebula/examples/__pycache__"
(cd "$T/build" && cmake -P "$SOURCE/configs/cmake/uninstall.cmake" >"$T/uninstall.log" 2>&1) ||
    fail "uninstall: $(cat "$T/uninstall.log")"
left=$(find "$T/prefix" ! -type d)
[[ $left == "$T/prefix/lib/other" ]] || fail "uninstall left $left"
left=$(cd "$T/prefix" && find . -path '*/nebula*')
[[ -z $left ]] || fail "uninstall left folders: $left"
command -v cpack >/dev/null && command -v dpkg-deb >/dev/null || skip "cpack or dpkg-deb is missing"
(cd "$BUILD" && cpack -G DEB -B "$T/package" >"$T/cpack.log" 2>&1) || fail "cpack failed"
deb=$(echo "$T"/package/*.deb)
[[ -f $deb ]] || fail "there is no package"
for library in libzmq5 libmicrohttpd12 libopenblas0; do
    dpkg-deb -f "$deb" Depends | has "$library" ||
        fail "$library is not a dependency: $(dpkg-deb -f "$deb" Depends)"
done
dpkg -x "$deb" "$T/root"
"$T/root/usr/bin/nebula" --version | has '^nebula [0-9]' || fail "the packaged program does not run"
for f in lib/systemd/system/nebula-agent.service share/man/man1/nebula.1 \
    share/bash-completion/completions/nebula share/zsh/site-functions/_nebula \
    share/fish/vendor_completions.d/nebula.fish share/nebula/slurm/agent.sbatch \
    share/nebula/grafana/nebula.json \
    share/doc/nebula/README.md share/doc/nebula/configs/README.md; do
    [[ -s $T/root/usr/$f ]] || fail "the package lacks $f"
done
# Jobs, specs and examples that errors and the README name (configs/NAME), except those that build
# from the source.
for f in $(cd "$SOURCE/configs" && { find . -maxdepth 1 \( -name "*.yaml" -o -name "corpus-*" \) &&
    find examples -maxdepth 1 -type f; } | grep -v compare); do
    cmp "$SOURCE/configs/$f" "$T/root/usr/share/nebula/$f" || fail "the package lacks $f"
done
[[ -x $T/root/usr/share/nebula/corpus-manpages ]] || fail "corpus-manpages is not executable"
"$T/root/usr/bin/nebula" check "$T/root/usr/share/nebula/example.yaml" >"$T/example.log" 2>&1 ||
    fail "check of the packaged example failed: $(cat "$T/example.log")"
grep -q '^ExecStart=/usr/bin/nebula agent' "$T/root/usr/lib/systemd/system/nebula-agent.service" ||
    fail "the unit starts another program"
# Each of these settings hides /dev/nvidia* from workers, the first one up to systemd 251.
if grep -E '^(ProtectClock|PrivateDevices|DevicePolicy|DeviceAllow)=' \
    "$T/root/usr/lib/systemd/system/nebula-agent.service"; then
    fail "the unit hides GPUs"
fi
find "$T/root" -perm /022 ! -type l | has . &&
    fail "files are writable for others: $(find "$T/root" -perm /022 ! -type l | head -n 3)"
grep -rIl "$SOURCE\|$BUILD" "$T/root" && fail "a file contains the path of the build folder"

# dpkg installs the package into a root with only its own database, and removes it without a trace.
mkdir -p "$T/clean/var/lib/dpkg/updates" "$T/clean/var/lib/dpkg/info" &&
    : >"$T/clean/var/lib/dpkg/status"
# The stub protects the ldconfig cache of this machine.
mkdir "$T/stub" && printf '#!/bin/sh\nexit 0\n' >"$T/stub/ldconfig" && chmod +x "$T/stub/ldconfig"
into() {
    PATH=$T/stub:$PATH dpkg --root="$T/clean" --force-not-root --force-depends \
        --force-script-chrootless --log="$T/dpkg.log" "$@" >"$T/dpkg.out" 2>&1
}
into -i "$deb" || fail "dpkg -i failed: $(tail -n 3 "$T/dpkg.out")"
dpkg-query --admindir="$T/clean/var/lib/dpkg" -W -f='${Status}' nebula |
    has 'install ok installed' ||
    fail "dpkg does not report the package as installed: $(cat "$T/dpkg.out")"
"$T/clean/usr/bin/nebula" --version | has '^nebula [0-9]' ||
    fail "the installed program does not run"
"$T/clean/usr/bin/nebula" bench kernels --help | has '^Usage' ||
    fail "the installed program has no commands"
PYTHONDONTWRITEBYTECODE= PYTHONPATH=$T/clean/usr/lib/nebula/python \
    NEBULA_LIBRARY=$T/clean/usr/lib/libnebula.so.2 python3 \
    -c 'import nebula; print(nebula.version())' | has '^[0-9]' ||
    fail "the installed Python module does not find its library"
cat >"$T/use.c" <<'C'
#include <nebula/libnebula.h>
int main(void) { int api; return !nebula_version(&api) || api != NEBULA_API; }
C
cc -Wall -Werror -I"$T/clean/usr/include" "$T/use.c" -o "$T/use" -L"$T/clean/usr/lib" -lnebula \
    -Wl,-rpath,"$T/clean/usr/lib" >"$T/use.log" 2>&1 && "$T/use" ||
    fail "a C program with the installed header failed: $(cat "$T/use.log")"
# A job of two clusters over an emulated link, with only the contents of the package.
make_corpus
make_job "$T/job.yaml"
(cd / && timeout 600 "$T/clean/usr/bin/nebula" pretrain "$T/job.yaml" --local 2 --wan 50mbit:20ms \
    --steps 20 --out "$T/wan" >"$T/wan.log" 2>&1) || fail "--wan with the installed program failed"
[[ -f $T/wan/wanlink.log ]] || fail "no link was emulated"
digests_equal "$T/wan"
[[ -d $T/clean/usr/lib/nebula/python/nebula/__pycache__ ]] ||
    fail "Python left no __pycache__, so the removal of such files is not tested"
into -P nebula || fail "dpkg -P failed: $(tail -n 3 "$T/dpkg.out")"
left=$(find "$T/clean" ! -type d ! -path "*/var/lib/dpkg/*")
[[ -z $left ]] || fail "dpkg left files: $left"

# The manual and the completions contain every command and the same options as --help.
for c in $("$nebula" --help | awk '/^  [a-z]/ {print $1}'); do
    grep -q "^.SS \"nebula $c\"" "$T/root/usr/share/man/man1/nebula.1" || fail "the manual lacks $c"
    grep -q "^ *$c) " "$T/root/usr/share/bash-completion/completions/nebula" ||
        fail "the completion lacks $c"
    options=$("$nebula" "$c" --help |
        grep -oE '^ {2,6}(-[^ ]+, )?--[a-z-]+(=[^ ,]+)?(, --[a-z-]+)*' |
        grep -oE -- '--[a-z][a-z-]*' | sort -u || true)
    [[ $options || $c == completion ]] || fail "nebula $c --help lists no options"
    page=$T/root/usr/share/man/man1/nebula-$c.1
    [[ -s $page ]] && grep -q "^nebula-$c .- " "$page" || fail "there is no manual page nebula-$c"
    pages=("$(sed 's/\\-/-/g' "$page")" "$(sed -n "/^.SS \"nebula $c\"/,/^.fi/p" \
        "$T/root/usr/share/man/man1/nebula.1" | sed 's/\\-/-/g')")
    bash_words=" $(sed -n "s/^ *$c) words=\"\(.*\)\" ;;/\1/p" \
        "$T/root/usr/share/bash-completion/completions/nebula") "
    zsh_words=" $(sed -n "s/^ *$c) words=\"\(.*\)\" ;;/\1/p" \
        "$T/root/usr/share/zsh/site-functions/_nebula") "
    fish_words=" $(sed -n "s/^complete -c nebula -n '__fish_seen_subcommand_from $c'\(.*\)/\1/p" \
        "$T/root/usr/share/fish/vendor_completions.d/nebula.fish") "
    for o in $options; do
        for text in "${pages[@]}"; do
            [[ $text =~ (^|[[:space:],])$o([[:space:]=,]|$) ]] || fail "a manual of $c lacks $o"
        done
        [[ $bash_words == *" $o "* && $zsh_words == *" $o "* ]] ||
            fail "the completion of $c lacks $o: $bash_words"
        [[ $fish_words == *" -l ${o#--} "* ]] ||
            fail "the fish completion of $c lacks $o: $fish_words"
    done
done
for topic in $("$nebula" help | awk '/^    [a-z]/ {print $1}'); do
    grep -q "^.SS \"nebula help $topic\"" "$T/root/usr/share/man/man1/nebula.1" ||
        fail "the manual lacks the topic $topic"
done
reply=$(bash -c \
    '. "$1"; COMP_WORDS=(nebula help tun); COMP_CWORD=2; _nebula; echo "${COMPREPLY[*]}"' \
    _ "$T/root/usr/share/bash-completion/completions/nebula")
[[ $reply == tuning ]] || fail "completion of help tun: \"$reply\""
reply=$(bash -c \
    '. "$1"; COMP_WORDS=(nebula agent --page-t); COMP_CWORD=2; _nebula; echo "${COMPREPLY[*]}"' \
    _ "$T/root/usr/share/bash-completion/completions/nebula")
[[ $reply == --page-token ]] || fail "completion of --page-t: \"$reply\""
if command -v mandoc >/dev/null; then
    for page in "$T"/root/usr/share/man/man1/nebula*.1; do
        mandoc -Tutf8 -Wfatal "$page" >/dev/null || fail "$page does not render"
    done
fi
bash -n "$T/root/usr/share/nebula/slurm/agent.sbatch" ||
    fail "the Slurm template has a syntax error"
jq -e '.panels | length > 5' "$T/root/usr/share/nebula/grafana/nebula.json" >/dev/null ||
    fail "the dashboard has too few panels"
# The agent exports every metric that the dashboard uses.
for m in $(jq -r '.panels[].targets[].expr' "$T/root/usr/share/nebula/grafana/nebula.json" |
    grep -o 'nebula_[a-z_]*'); do
    grep -q "\"$m\"" "$SOURCE/agent/web/metrics.c" ||
        fail "the dashboard uses $m, which the agent does not export"
done
if command -v systemd-analyze >/dev/null; then
    score=$(systemd-analyze security --offline=true \
        --no-pager "$T/root/usr/lib/systemd/system/nebula-agent.service" 2>/dev/null |
        awk '/Overall exposure/ {print $(NF-2)}')
    [[ -z $score ]] || awk "BEGIN {exit !($score < 2.0)}" ||
        fail "the exposure of the systemd unit is $score"
    echo "systemd exposure: ${score:-not measured}"
fi
echo "$(basename "$deb"): $(($(stat -c %s "$deb") / 1024)) KiB"
