"""A stand-in for SGLang: the same milestones in its log, a child as the scheduler is one, the same endpoints."""

from __future__ import annotations

from pathlib import Path

STAND_IN = """
import http.server, json, os, signal, subprocess, sys, time

behaviour = os.environ.get("BEHAVIOUR", "good")
port = int(sys.argv[sys.argv.index("--port") + 1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
if behaviour == "silent":
    time.sleep(600)
print("[2026-01-01 00:00:01] Load weight begin. avail mem=10 GB", flush=True)
if behaviour == "out of memory":
    print("[2026-01-01 00:00:02] Scheduler hit an exception: Traceback (most recent call last):", flush=True)
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", flush=True)
    sys.exit(1)
if behaviour == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
while behaviour == "slow":
    print("[2026-01-01 00:00:02] still loading", flush=True)
    time.sleep(0.05)
if behaviour == "slow start":
    time.sleep(3)
print("[2026-01-01 00:00:02] Load weight end. elapsed=1 s", flush=True)
print("[2026-01-01 00:00:03] max_total_num_tokens=100", flush=True)
warming_up = behaviour == "warming up"


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, content, code=200):
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if warming_up:
            print('INFO: 127.0.0.1:1 - "GET /health HTTP/1.1" 503 Service Unavailable', flush=True)
            return self.answer({}, 503)
        if self.path == "/get_server_info" or (self.path == "/server_info" and behaviour != "old"):
            unasked = {"speculating": {"speculative_algorithm": "EAGLE3"}}
            unasked["fusing"] = {"enable_flashinfer_allreduce_fusion": True}
            more = unasked.get(behaviour, {})
            self.answer({"max_running_requests": 7, "api_key": "secret", "tokenizer_mode": "auto", **more})
        else:
            self.answer({}, 200 if self.path in ("/health", "/health_generate") else 404)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if behaviour == "deaf" or request.get("text") == "ponder":
            time.sleep(600)
        if "input_ids" in request:  # the client that measures
            time.sleep(0.3)
        if behaviour == "dies when asked":
            print("RuntimeError: something broke", flush=True)
            os._exit(1)
        if behaviour == "broken":
            return self.answer({"error": "no"}, 500)
        tokens = 0 if behaviour == "mute" else request["sampling_params"]["max_new_tokens"]
        meta = {"completion_tokens": tokens, "prompt_tokens": 3, "e2e_latency": 0.01 * tokens}
        self.answer({"text": "Monday", "output_ids": list(range(tokens)), "meta_info": meta})

    def log_message(self, *args):
        pass


http.server.HTTPServer.allow_reuse_address = True
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
print("[2026-01-01 00:00:04] INFO:     Uvicorn running on http://127.0.0.1", flush=True)
print("[2026-01-01 00:00:04] The server is fired up and ready to roll!", flush=True)
server.serve_forever()
"""


def lay_out_stand_in(site: Path, version: str = "0.5.23") -> Path:
    """A folder for PYTHONPATH in which ``-m sglang.launch_server`` is the stand-in, by its metadata this release."""
    (site / "sglang" / "srt").mkdir(parents=True)
    (site / "sglang" / "__init__.py").write_text("")
    (site / "sglang" / "launch_server.py").write_text(STAND_IN)
    flags = ["--model-path", "--host", "--port", "--nccl-port", "--tp-size", "--speculative-algorithm", "--dtype"]
    flags += ["--context-length", "--max-running-requests", "--enable-metrics", "--speculative-num-draft-tokens"]
    flags += ["--speculative-ngram-max-bfs-breadth"]
    (site / "sglang" / "srt" / "server_args.py").write_text(f"FLAGS = {flags}\n")
    info = site / f"sglang-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return site
