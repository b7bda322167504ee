#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# configs/kubernetes: kustomize builds it where kubectl is; its commands and options exist; files
# and Secrets that it names are there. Each resource fits the schema of Kubernetes where
# kubernetes-validate of PyPI is (tests/peers/data/setup).
. "$(dirname "$0")/lib.sh"
cp -r "$SOURCE/configs/kubernetes" "$T/site"
for f in $(sed -n 's/^resources: \[\(.*\)\]/\1/p' "$T/site/kustomization.yaml" | tr -d ,); do
    [[ -s $T/site/$f ]] || fail "kustomization.yaml names $f, which is not there"
done
for f in "$T"/site/*.yaml; do
    [[ $f == */kustomization.yaml ]] || grep -q "[[ ,]${f##*/}" "$T/site/kustomization.yaml" ||
        fail "kustomization.yaml does not name ${f##*/}"
done
# Options of the program in the manifests.
known=$(for c in agent join status pretrain; do "$nebula" $c --help; done)
for o in $(grep -hoE -- '--[a-z][a-z-]+' "$T"/site/{agent,loop}.yaml | sort -u); do
    [[ $o == --packages || $known == *"$o"* ]] || fail "the manifests use $o, which no command has"
done
# Secrets that pods mount are generated.
for s in $(grep -hoE 'secretName: [a-z-]+|credentials: \{name: [a-z-]+' "$T"/site/*.yaml |
    awk '{print $NF}' | sort -u); do
    grep -q "{name: $s, files" "$T/site/kustomization.yaml" || fail "no Secret $s is generated"
done
validate=${XDG_CACHE_HOME:-$HOME/.cache}/nebula/peers-data/bin/kubernetes-validate
valid() { # FILES
    "$validate" --strict --no-warn "$@" >"$T/schema.log" 2>&1 ||
        fail "schema: $(cat "$T/schema.log")"
}
[[ ! -x $validate ]] || valid "$T"/site/{agent,loop,monitor,namespace,network}.yaml
command -v kubectl >/dev/null || skip "kubectl is not installed; the rest passed"
kubectl kustomize "$T/site" >"$T/none.log" 2>&1 && fail "a site without tokens was built"
echo neb1:x >"$T/site/join-token"
openssl rand -hex 32 >"$T/site/page-token"
kubectl kustomize "$T/site" >"$T/all.yaml" 2>"$T/build.log" ||
    fail "kustomize: $(cat "$T/build.log")"
for kind in Namespace StatefulSet Service Job Secret NetworkPolicy PodMonitor; do
    has "^kind: $kind" "$T/all.yaml" || fail "no $kind is built"
done
has 'image: registry.example/nebula:' "$T/all.yaml" || fail "the image was not set"
has 'image: nebula$' "$T/all.yaml" && fail "an image has no registry"
if [[ -x $validate ]]; then valid "$T/all.yaml"; else echo "not installed: kubernetes-validate"; fi
