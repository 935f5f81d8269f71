"""A thin device: prints what it wants, and goes on where it was when its connection breaks.

python device.py HOST PORT NAME FILTER
"""

import json
import socket
import sys
import time

host, port, name, wanted = sys.argv[1:]
me = {"hello": name}  # and as soon as it is told: its memory, and up to where it is done
while True:
    try:
        with socket.create_connection((host, int(port))) as proxy, proxy.makefile() as lines:
            for words in (me, {"subscribe": wanted}):
                proxy.sendall(json.dumps(words).encode() + b"\n")
            for heard in map(json.loads, lines):
                if "notification" in heard:
                    print(heard["notification"], flush=True)
                if "memory" in heard:
                    me["memory"] = heard["memory"]
                if "n" in heard:
                    me["ack"] = heard["n"]
                    proxy.sendall(json.dumps({"ack": heard["n"]}).encode() + b"\n")
    except OSError:
        pass  # no network at the moment
    time.sleep(0.5)
