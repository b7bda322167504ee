#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Half a minute of tests/e2e/churn.
exec "$(dirname "$0")/churn" --minutes 0.5
