#!/usr/bin/env bash
# The status page in a real browser while a job runs: what it shows is what the agent says. KEEP=1 keeps the screenshot.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/sites.sh"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || skip "no chromium; configs/install-deps --page"
make_corpus
make_job "$T/job.yaml"
pair
start_alpha; start_beta
wait_for 30 "the link" says a '.peers[0].up'
"$nebula" pretrain "$T/job.yaml" --home "$T/a" --out "$T/run" --set steps=20000 --set data.corpus="$T/corpus" >"$T/run.log" 2>&1 & pid[run]=$!
wait_for 60 "the first rounds" says a '.jobs[0].clusters | length == 2 and all(.round > 2)'
url=http://127.0.0.1:$page/
curl -sf "${url}api/v1/history" >/dev/null # from now on the curves are published
open_page() { timeout 90 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$T/browser" --window-size="$1" --virtual-time-budget=8000 "${@:2}" "$url" 2>>"$T/browser.log"; }
open_page 400,1600 --dump-dom >"$T/dom" || fail "browser: $(tail -n 3 "$T/browser.log")"
grep -q '<title>Nebula: alpha</title>' "$T/dom" || fail "title: $(head -c 300 "$T/dom")"
for what in '<td>beta</td>' 'class="good">up<' '<td>int4</td>' 'id="chart-loss"' 'id="chart-wan"' 'id="chart-goodput_bps"' 'id="chart-codec"' 'id="chart-interval"' 'as of '; do
    grep -qF "$what" "$T/dom" || fail "the page does not show $what"
done
# Each cluster has a curve of the loss with several points.
[[ $(grep -o '<figure id="chart-loss">.*' "$T/dom" | sed 's|</figure>.*||' | grep -o '<path d="M[^"]*L[^"]*L' | wc -l) == 2 ]] || fail "no loss curves"
grep -qi 'refused to\|uncaught' "$T/browser.log" && fail "the page complains: $(grep -i 'refused to\|uncaught' "$T/browser.log")"
open_page 400,1600 --screenshot="$T/page.png" || fail "screenshot"
[[ $(stat -c %s "$T/page.png") -gt 15000 ]] || fail "the screenshot is empty"
[[ $(head -c 4 "$T/page.png" | tail -c 3) == PNG ]] || fail "no PNG"

# What the page costs the agent: processor time over 10 s in which one viewer asks every two seconds, beside 10 s with none.
ticks() { awk '{print $14 + $15}' "/proc/${pid[a]}/stat"; }
kill -INT "${pid[run]}"; wait "${pid[run]}" || true; unset 'pid[run]'
wait_for 30 "the end of the job" says a '.jobs[0].state == "ended"'
sleep 10
a=$(ticks); sleep 10; b=$(ticks)
for ((i = 0; i < 5; i++)); do curl -s -o /dev/null "${url}api/v1/history" -o /dev/null "${url}api/v1/status"; sleep 2; done
c=$(ticks)
echo "agent without viewer: $((b - a)) ticks in 10 s, with one: $((c - b)); a tick is $((1000 / $(getconf CLK_TCK))) ms"
((c - b - (b - a) <= 50)) || fail "one viewer costs the agent more than 5 % of a core"
