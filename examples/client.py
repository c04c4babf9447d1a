"""A queue of a broker: the same methods, from another process, over HTTP."""

import json
import subprocess
import sys
from tempfile import TemporaryDirectory

import penstock
from penstock.client import connect_broker

with TemporaryDirectory() as folder:
    serve = [sys.executable, "-m", "penstock", "serve", folder, "--port", "0", "--json"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as broker:
        assert broker.stdout is not None
        url = json.loads(broker.stdout.readline())["url"]

        # If the connection breaks, it is sent again, and published once all the same.
        with penstock.open(f"{url}/shop/orders") as queue:
            queue.enqueue("pack order 7", headers={"tenant": "acme"})
            queue.enqueue("call the customer", priority=9)
            for job in queue.stream(idle_s=0):
                with job:  # acked at the end of the block, nacked if it raises
                    print(job.priority, job.payload.decode())

        with connect_broker(url) as remote:
            print(remote.queues(), remote.stats("shop/orders").acked)

        broker.terminate()
