#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A power loss in the middle of a job, and one file of each kind of which nothing is left: the job
# goes on, or a line names the file. All kinds, ways and places: tests/fault/damage_matrix and
# damage_sites.
set -euo pipefail
: "${BUILD:?set BUILD to the build folder}"
matrix=$(dirname "$0")/../fault/damage_matrix
"$matrix" -n 2 -c b -w zero -k '^(OUT/job|corpus/(corpus|t/train)|identity|keys/sign|jobs/ID/(checkpoint|shape)|blobs/ID-m0|members)'
"$matrix" -n 2 -c b -j sealed -w zero -k '^seal'
"$matrix" -n 2 -c b -j snapshot -w half -k '^jobs/ID/snapshot'
"$matrix" -n 2 -c b -j done -w half -k '^OUT/checkpoint/model'
"$matrix" -n 3 -c b -w gone -k '^blobs/ID-m0'
