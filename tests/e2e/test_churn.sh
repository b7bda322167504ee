#!/usr/bin/env bash
# Half a minute of tests/e2e/churn.
exec "$(dirname "$0")/churn" --minutes 0.5
