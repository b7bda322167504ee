#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A power loss in the middle of a job, and one destroyed file of each kind: the job continues, or a
# message names the file. tests/fault/damage_matrix and damage_sites try all kinds, ways and places.
set -euo pipefail
: "${BUILD:?set BUILD to the build folder}"
matrix=$(dirname "$0")/../fault/damage_matrix
kinds='OUT/job|corpus/(corpus|t/train)|identity|keys/sign|jobs/ID/(checkpoint|shape)'
"$matrix" -n 2 -c b -w zero -k "^($kinds|blobs/ID-m0|members)"
"$matrix" -n 2 -c b -j sealed -w zero -k '^seal'
"$matrix" -n 2 -c b -j snapshot -w half -k '^jobs/ID/snapshot'
"$matrix" -n 2 -c b -j done -w half -k '^OUT/checkpoint/model'
"$matrix" -n 3 -c b -w gone -k '^blobs/ID-m0'
