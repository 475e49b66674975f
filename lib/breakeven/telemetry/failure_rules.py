"""What the last words of a server mean: a table from log text to failure class and advice.

Rules are tried in order on one line of text in lower case, the first that fits gives its class. ``level`` settles
between lines: a cause (4) beats a mid-level error that has causes of its own (3), a symptom (2) and a mere consequence
(1); at equal X

Class names that end in ``*`` depend on when it happened: ``oom-at-*`` becomes load, capture or run, ``nccl*`` becomes
``nccl-in-capture`` while graphs are captured, ``exit*`` is ``exited-early`` before the server was ready, and ``fault*``
is ``config`` (reading beyond a context) except in capture, where no request has run yet and the cause is ``unknown``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CAUSE, ERROR, SYMPTOM, CONSEQUENCE = 4, 3, 2, 1


@dataclass(frozen=True)
class Rule:
    """One line of the table. ``advice`` may hold ``{flag}`` fields, filled in for the release at hand."""

    cls: str
    level: int
    pattern: re.Pattern[str]
    advice: str


def _rule(cls: str, level: int, pattern: str, advice: str) -> Rule:
    return Rule(cls, level, re.compile(pattern), advice)


GRAPH_MEMORY = (
    "Lower the CUDA-graph batch sizes first ({graph_max}): draft tokens x batch is what grew; "
    "then fewer draft tokens, then a smaller --mem-fraction-static. Turning graphs off is the last resort."
)
PHASE_ADVICE = {  # for oom-at-*, by phase
    "load": "The weights and the pool do not fit: more GPUs (--tp), a smaller or quantised model or drafter, a smaller "
    "--mem-fraction-static; check with nvidia-smi that nothing else holds the GPU.",
    "capture": GRAPH_MEMORY,
    "run": "It fitted idle and not under load: lower --mem-fraction-static, --chunked-prefill-size or "
    "--max-running-requests.",
}
HOST_MEMORY = (
    "Host memory (RAM, a cgroup or ulimit), not GPU memory: raise the limit of the process or container, "
    "or load with fewer ranks on this host."
)

RULES: tuple[Rule, ...] = (
    # --- ended by the kernel or by a signal. Before out-of-memory: "Out of memory: Killed process" is the kernel's line
    _rule(
        "killed",
        CAUSE,
        r"oom[-_ ]kill|out of memory: kill|\boom killer\b|oomkilled|oom_reaper|cgroup out of memory",
        "The kernel's out-of-memory killer ended it: " + HOST_MEMORY,
    ),
    _rule(
        "shared-memory",
        ERROR,
        r"\bbus error\b|\bsigbus\b|(exit(ed with)?|died with|terminated with)( code)?:? ?-7\b"
        r"|(unable|failed) to (open|map|mmap|allocate|create) shared memory|insufficient shared memory"
        r"|no space left on device.*(/dev/)?shm|/dev/shm.*no space left",
        "Shared memory is too small: start the container with --shm-size 32g or --ipc=host; df -h /dev/shm.",
    ),
    _rule(
        "killed",
        ERROR,
        r"(exit(ed)?( with)?( code)?|exitcode|died with( code)?|terminated with( code)?|return ?code)\s*[:=]?\s*"
        r"(-9|137)\b"
        r"|unexpectedly failed with an exit code 9\b"  # 0.4 prints the raw status: 9 is the signal, 256 exit code 1
        r"|due to time limit|\bsigkill\b|killed by signal|signal 9\b|^killed$|: killed$|\bkilled +(python|sglang)",
        "SIGKILL leaves no reason in the log: usually the out-of-memory killer (dmesg -T | grep -i oom; container "
        "limits), else a job scheduler or a person.",
    ),
    _rule(
        "killed",
        SYMPTOM,
        r"(exit(ed)?( with)?( code)?|exitcode|died with( code)?|terminated with( code)?|return ?code)\s*[:=]?\s*"
        r"(-11|139|-6|134)\b|unexpectedly failed with an exit code (6|11)\b"
        r"|segmentation fault|segfault|\bsigsegv\b|\bsigabrt\b|fatal python error: aborted|aborted \(core",
        "A native crash, not a Python error: look at the C++ frames above it; check package versions "
        "(torch, sglang-kernel, flashinfer) and rerun with CUDA_LAUNCH_BLOCKING=1.",
    ),
    # --- out of memory
    _rule(
        "oom-at-load",
        CAUSE,
        r"not enough memory.*mem-fraction-static|not enough (gpu )?memory (for|to (hold|allocate)) the kv"
        r"|memory pool size is too small|max_running_requests? is zero|state cache is too small"
        r"|max_total_num_tokens ?(<=?|is|=) ?-?0\b|no available memory for the cache blocks"
        r"|free memory on device.*less than desired"
        r"|larger than the (available kv cache memory|maximum number of tokens)",
        "After the weights nothing is left for the KV pool: raise --mem-fraction-static if the GPU is otherwise empty, "
        "else more GPUs (--tp), a smaller or quantised model or drafter.",
    ),
    _rule(
        "oom-at-load",
        CAUSE,
        r"memory capacity is unbalanced|gpus may be occupied by other processes",
        "Another process holds memory on some of the GPUs: nvidia-smi shows which; a server killed a moment ago needs "
        "seconds to let go of it.",
    ),
    _rule(
        "oom-at-run",
        CAUSE,
        r"(prefill|decode) out of memory|alloc_\w+ runs out of memory|out of kv ?cache (slots|memory)",
        "The KV pool ran out while serving: lower --max-running-requests or the context, "
        "or raise --mem-fraction-static. Speculation needs slots for draft tokens too.",
    ),
    _rule(
        "oom-at-*",
        CAUSE,
        r"defaultcpuallocator|can(no|')t allocate memory|std::bad_alloc|(?<!of)\bmemoryerror\b|errno 12\b",
        HOST_MEMORY,
    ),
    _rule(
        "oom-at-*",
        CAUSE,
        r"out of memory|outofmemoryerror|cudaerrormemoryallocation|error_out_of_memory|cublas_status_alloc_failed",
        "",
    ),
    # --- architecture
    _rule(
        "arch-gate",
        CAUSE,
        r"no supported cuda architectures found|all-?reduce fusion.*(requires|only supports|not supported)"
        r"|(requires|only supports|not supported).*all-?reduce fusion",
        "Fusion reached a kernel that does not exist for this GPU in these versions: see `breakeven gates`; "
        "{fusion_off}.",
    ),
    _rule(
        "arch-gate",
        CAUSE,
        r"no kernel image is available|out of resources?: shared memory|outofresources|this kernel only supports sm"
        r"|requires? (an? )?(gpus? (with )?)?sm_? ?[<>=]*\d+|\bsm_? ?\d{2,3}\b.{0,20}not supported"
        r"|(requires?|only supported on|is only supported|only (runs|works) on) .{0,40}"
        r"(\bsm_?\d{2,3}|hopper|blackwell|compute capability)"
        r"|(not supported|unsupported) (on|for) .{0,30}(\bsm_?\d{2,3}|compute capability|this gpu|your gpu)"
        r"|compute capability .{0,40}(not supported|unsupported|too low|or higher)"
        r"|only supports? (nvidia )?(ampere|ada|hopper|blackwell|sm_?\d)|only compiled for sm_?\d"
        r"|not supported (on|for|in) (this|the current|cuda) arch",
        "A kernel of the chosen backend was not built for this GPU: choose another --attention-backend, "
        "--sampling-backend or quantisation, or versions that have it (see `breakeven gates`).",
    ),
    _rule(
        "arch-gate",
        SYMPTOM,
        r"illegal instruction|\bsigill\b|(exit(ed)?( with)?( code)?|died with( code)?)\s*[:=]?\s*(-4|132)\b",
        "The CPU lacks an instruction set that a package was built for (AVX2, AVX-512, AMX): lscpu, and a build for "
        "this CPU.",
    ),
    # --- ports
    _rule(
        "port-in-use",
        CAUSE,
        r"address already in use|eaddrinuse|errno:? 98\b|failed to listen on any local network address"
        r"|port:? ?\d* ?(is )?(already )?(in use|occupied|being used)|port is already in use"
        r"|is used by a process already|_port at \d+ is not available",
        "Another process holds the port: the HTTP port being free is not enough, the distributed ports count too "
        "(--port, --nccl-port, --dist-init-addr); let each server choose its own, ss -ltnp shows the holder.",
    ),
    # --- driver, before package skew: libcuda comes with the driver
    _rule(
        "driver",
        CAUSE,
        r"driver initialization failed|libcuda\.so|driver version is insufficient|driver on your system is too old"
        r"|found no nvidia driver"
        r"|no cuda-capable device|no cuda gpus are available|driver/library version mismatch"
        r"|system not yet initialized|devices?\(?s?\)? is/are busy or unavailable|forward compatibility was attempted"
        r"|no accelerator.*(available|found)",
        "torch sees no usable GPU: nvidia-smi on the host and in the container (--gpus all), driver new enough for "
        "this CUDA, CUDA_VISIBLE_DEVICES, fabric manager running on NVSwitch machines.",
    ),
    # --- toolchain of kernels built at run time
    _rule(
        "toolchain",
        CAUSE,
        r"could not find nvcc|nvcc(: | was | is )?(command )?not found|no such file or directory: '[^']*nvcc'"
        r"|cuda_home (environment variable )?is not set|:/[\w/.-]*bin/nvcc|unsupported gpu architecture 'compute_"
        r"|ptxas (fatal|error)|nvcc fatal|failed to find c compiler|(gcc|g\+\+|ninja|cc1plus)(: | is )?not found"
        r"|/ld: cannot find -l|--gpu-architecture|no such file or directory: '(ninja|gcc|g\+\+|c\+\+|cc)'"
        r"|fatal error: [\w/.]+\.(h|cuh|hpp): no such file|ninja is required|nvcc compilation failed"
        r"|(nvcc|cuda)\b.{0,40}\btoo old|requires cuda (toolkit )?>?=? ?\d|detected cuda version.*mismatches",
        "A kernel is compiled on first use and the compiler was not found or is too old: FlashInfer looks at "
        "CUDA_HOME, not PATH (and a leading colon in it breaks it); set CUDA_HOME to a toolkit that knows this GPU.",
    ),
    _rule(
        "toolchain",
        ERROR,
        r"ninja: build stopped|ninja build failed|error building extension|calledprocesserror.*(ninja|nvcc|gcc|g\+\+)",
        "Compiling a kernel failed; the compiler's own error stands above this line. Check CUDA_HOME, nvcc and gcc "
        "versions; clear the cache of half-built kernels (~/.cache/flashinfer) before the next try.",
    ),
    # --- packages that do not belong together
    _rule(
        "package-skew",
        CAUSE,
        r"undefined symbol|version \([^)]*\) does not match|is installed with version .* less than the minimum"
        r"|minimum required version .* is not installed|could not load any common_ops|cannot import name"
        r"|cannot open shared object file|glibc(xx)?_[\d.]+'? not found|compiled using numpy 1"
        r"|multiarray failed to import"
        r"|not compiled with cuda enabled|'_opnamespace' .* has no attribute|operator \w+::\w+ does not exist"
        r"|could not run '\w+::\w+'|does not recognize this architecture|abi mismatch",
        "Packages of different builds: reinstall sglang with the torch, sglang-kernel, flashinfer-python, "
        "flashinfer-cubin and flashinfer-jit-cache versions that it pins (pip check).",
    ),
    _rule(
        "package-skew",
        ERROR,
        r"modulenotfounderror: |python[\d.]*: no module named|: command not found|importerror: "
        r"|attributeerror: module '|typeerror: .*(unexpected keyword argument|required positional argument)",
        "A package or program is missing or of another version than this SGLang expects: pip check.",
    ),
    _rule(
        "disk-full",
        CAUSE,
        r"no space left on device|enospc|errno 28\b|disk quota exceeded",
        "Free space on the disk that is named (models, ~/.cache, /tmp), or point HF_HOME and TMPDIR elsewhere.",
    ),
    # --- wrong settings: known before loading weights, most specific first
    _rule(
        "config",
        CAUSE,
        r"error: (unrecognized arguments|argument |the following arguments are required|ambiguous option)"
        r"|invalid choice: ",
        "The command line does not fit this release: flags are renamed between releases "
        "(python -m sglang.launch_server --help).",
    ),
    _rule(
        "config",
        CAUSE,
        r"unknown speculative algorithm|invalid speculative algorithm|is not a valid speculativealgorithm",
        "This release has no such speculative algorithm (there is none called MTP: built-in heads are NEXTN).",
    ),
    _rule(
        "config",
        CAUSE,
        r"\b(set_embed|hot_token_id)\b|((?<!not )requires?|must|need).{0,40}draft[-_]model[-_]path"
        r"|draft_model_path must",
        "EAGLE3 needs --speculative-draft-model-path unless the architecture has built-in MTP heads, and a draft whose "
        "architecture is an EAGLE3 one.",
    ),
    _rule(
        "config",
        CAUSE,
        r"supports? (only )?(speculative_eagle_)?top-?k ?=+ ?1\b|top-?k ?> ?1.{0,60}(not support|n't support)"
        r"|(not|n't) support.{0,40}top-?k ?> ?1|requires? (--)?speculative[-_]eagle[-_]topk[ =]+1"
        r"|requires top-?k ?=+ ?1",
        "This backend drafts chains only: --speculative-eagle-topk 1 (draft tokens become steps + 1), or another "
        "--attention-backend.",
    ),
    _rule(
        "config",
        CAUSE,
        r"share (one|the same|a) ?(same )?vocab|different token-to-id|(draft|target|tokenizer).*vocab\w*.*"
        r"(mismatch|differ|not match|n't match|!=|identical)|vocab\w*.*(mismatch|differ|not match|!=).*(draft|target)",
        "Draft and target need the same vocabulary, token by token: equal sizes are not enough. "
        "Take a draft of the same family.",
    ),
    _rule(
        "config",
        CAUSE,
        r"speculative.*\bassertionerror$",  # a bare assertion is matched together with its source lines
        "Give --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens together, or none.",
    ),
    _rule(
        "config",
        CAUSE,
        r"greater than the derived context|exceeds? the (model's|derived|maximum) context.*(sglang_allow|--context)",
        "--context-length is more than the model (or the draft) was made for: lower it, or take a draft with a longer "
        "context.",
    ),
    _rule(
        "config",
        CAUSE,
        r"not a local folder and is not a valid model|repositorynotfound|repository not found|gatedrepo|gated repo"
        r"|401 client error|404 client error|hfvalidationerror|repo id must"
        r"|does not appear to have a file named|can't load (the )?(config|tokenizer|image|feature|model)"
        r"|huggingface\.co.*max retries|max retries.*huggingface\.co"
        r"|couldn't connect to 'https?://|couldn't connect to the hub|localentrynotfound|offlinemodeisenabled"
        r"|cannot find (any )?(model|weights|the (requested )?files)|no such file or directory: '[^']*(config\.json|"
        r"safetensors|tokenizer|\.gguf|\.bin)[^']*'|(model|draft|tokenizer)[ _]path.*(not exist|not found)"
        r"|no \.?safetensors|unrecognized model in|error no file named",
        "The model or draft path is wrong, incomplete, gated or not downloaded: check it on the host that serves; "
        "offline hosts need the files in HF_HOME beforehand; gated ones a token in the environment.",
    ),
    _rule(
        "config",
        CAUSE,
        r"safetensorerror|error while deserializing header|metadataincompletebuffer|invalid header|"
        r"pytorchstreamreader failed|invalid magic number",
        "A weight file is damaged or cut off (interrupted download, full disk, git-lfs pointer): fetch it again.",
    ),
    _rule(
        "config",
        CAUSE,
        r"model architectures? .*not supported|architectures? .*are not supported for now",
        "This release does not know the model's architecture: upgrade SGLang, or check the architectures entry.",
    ),
    _rule(
        "config",
        CAUSE,
        r"invalid device ordinal|(not|n't) divisible by|must be divisible by|not enough gpus"
        r"|(tp|pp|dp)[_ -]size.*(exceed|greater|more) (than )?.*gpu",
        "The parallel sizes do not fit the GPUs or the model's heads: check --tp against nvidia-smi -L and the config.",
    ),
    _rule(
        "config",
        CAUSE,
        r"cannot assign requested address|errno:? 99\b|name or service not known|temporary failure in name resolution",
        "The address does not belong to this host or can't be resolved: check --host and --dist-init-addr.",
    ),
    # --- limits of the machine
    _rule(
        "permission",
        CAUSE,
        r"permission denied|permissionerror|errno 13\b",
        "The server's user may not read or write what is named: owner, mount options, container user.",
    ),
    _rule(
        "limits",
        CAUSE,
        r"too many open files|errno 24\b|can't start new thread|resource temporarily unavailable",
        "A limit on the process: raise ulimit -n and -u (in a container: --ulimit, --pids-limit).",
    ),
    # --- NCCL and torch.distributed: the failing call; the first NCCL WARN of any rank replaces it as the deciding line
    _rule(
        "nccl*",
        CONSEQUENCE,
        r"remote process exited|connection (reset|closed|refused) by (remote )?peer|connection closed by remote"
        r"|ncclremoteerror|broken pipe.*tcpstore|tcpstore.*broken pipe",
        "This rank lost another one: the cause is in the log of the rank that went first.",
    ),
    _rule(
        "nccl*",
        ERROR,
        r"previous error during capture|cudaerrorstreamcaptureinvalidated|nccl error"
        r"|nccl(unhandledcuda|system|internal)error"
        r"|distbackenderror|unhandled (cuda|system) error|ncclinvalidusage|custom allreduce.*(failed|error)",
        "",
    ),
    _rule(
        "nccl*",
        ERROR,
        r"watchdog caught collective operation timeout|heartbeat.{0,40}timed? ?out"
        r"|collective.{0,40}timed? ?out|diststoreerror"
        r"|timed out after \d+ ?(seconds|ms).{0,40}(waiting for|clients|store)|gloo.{0,60}timed? ?out"
        r"|gloo connectfullmesh failed|rendezvous.{0,40}(failed|timed? ?out)"
        r"|distnetworkerror: .*(failed to connect|connection (refused|reset)|timed? ?out)",
        "A rank did not arrive: look for the rank that is behind (its log, py-spy dump), then at the network "
        "(NCCL_SOCKET_IFNAME, --dist-init-addr, firewall).",
    ),
    # --- the device caught the server reading where nothing is
    _rule(
        "fault*",
        ERROR,
        r"illegal memory access|cudaerrorillegaladdress|device-side assert|index out of bounds|ind < ind_dim_size"
        r"|indexselect\w*.*assert|misaligned address|cuda_error_illegal_address",
        "When speculating, first compare prompt + output with the smaller of target and draft context length "
        "(max_position_embeddings): beyond the draft's it reads out of bounds. If they fit: CUDA_LAUNCH_BLOCKING=1 and "
        "a run without graphs ({graph_off}) show the kernel.",
    ),
    # --- no answer
    _rule(
        "hang",
        ERROR,
        r"watchdog timeout(?!.*soft=true)|no progress for \d+|event loop (appears|is) stuck|loop appears stuck",
        "The scheduler made no step for the watchdog's time: py-spy dump of every rank, nvidia-smi (100 % and no "
        "progress is a stuck collective); --watchdog-timeout only if a single step is really that long.",
    ),
    _rule(
        "not-ready",
        SYMPTOM,
        r"health check failed|couldn't get a response from detokenizer|warm-?up.{0,40}(timed? ?out|timeout)"
        r"|read timed out|readtimeout",
        "/health may answer 200 while the scheduler is dead or stuck: ready means process alive, one real generation "
        "and progress. Look at the scheduler's log and py-spy dump.",
    ),
    # --- settings again: errors that name a flag, less specific than all above
    _rule(
        "config",
        ERROR,
        r"validation errors? for \w*(config|args)\b|(valueerror|assertionerror|notimplementederror): .*"
        r"(--[a-z][a-z0-9]*-|--(tp|dp|pp|ep)\b|\bspeculative_\w)",
        "SGLang refuses this combination of settings; the line says which.",
    ),
    _rule(
        "config",
        ERROR,
        r"size mismatch for|(assertionerror|valueerror|runtimeerror): .*(shape|size of tensor).*(mismatch|must match)"
        r"|mat1 and mat2 shapes cannot be multiplied",
        "Weights and configuration do not fit each other: for a drafter, check that it was made for this target "
        "(hidden size, vocabulary, EAGLE against EAGLE3).",
    ),
    # --- consequences
    _rule(
        "killed",
        CONSEQUENCE,
        r"\bsigterm\b|signal 15\b",
        "Someone asked it to stop while it was starting: a job's limit, a container stop, a launcher's timeout.",
    ),
    _rule(
        "exit*",
        CONSEQUENCE,
        r"scheduler (process )?(is dead|died|has died|terminated)"
        r"|(exited|died|crashed|terminated) with (exit )?(code )?-?\d+"
        r"|initialization failed\. |exit code:? ?-?[1-9]\d*|sigquit received|received sigquit|server (process )?exited"
        r"|server launch failed|other ranks that didn't finish loading",
        "A process ended before the server was ready and gave no reason: run the same command in the foreground, look "
        "at the other ranks' logs and dmesg; a launcher should poll the exit status instead of waiting its timeout.",
    ),
)

# Most lines of a long log hold none of these (in lower case) and are passed over with one search. A line is judged by
# the rules when it holds one of the second tuple: each alternative of each rule contains one of them.
HOUSEKEEPING_WORDS = (
    "graph", "capturing", "uvicorn", "startup complete", "fired up", "load weight", "kv cache is",
    "memory pool end", "max_total_num_tokens", "server_args", "post /", "get /health", "sigterm", "gracefully",
    "shutting down", "keyboardinterrupt", "finished server", "exception ignored", "asgi", "sglang", '  file "',
)  # fmt: skip
JUDGED_WORDS = (
    "error", "exception", "fail", "not enough", "out of", "alloc", "oom", "kill", "signal", "sig", "exit", "died",
    "dead", "returncode", "return code", "abort", "fault", "terminate", "timeout", "timed out", "not found",
    "no such", "no module", "not exist", "denied", "no space", "enospc", "quota", "in use", "occupied",
    "being used", "eaddr", "used by", "not available", "unavailable", "peer", "remote", "broken pipe",
    "during capture", "nccl warn", "collective", "undefined", "mismatch", "match", "minimum", "common_ops",
    "cannot", "can't", "couldn't", "could not", "attribute", "numpy", "not compiled", "recognize", "support",
    "require", "architectures", "fusion", "kernel image", "capability", "only runs", "only works", "driver",
    "libcuda", "no cuda", "cuda-capable", "not yet initialized", "accelerator", "nvcc", "ninja", "ptxas",
    "compiler", "cuda_home", "unsupported", "invalid", "unknown", "unrecognized", "set_embed", "hot_token_id",
    "vocab", "greater than", "exceed", "repo", "gated", "local folder", "offline", "does not", "safetensor",
    "magic", "header", "divisible", "too many", "new thread", "temporarily", "assert", "bounds", "illegal",
    "too small", "is zero", "time limit", "resolution", "not known", "draft_model", "misaligned", "ind <", "stuck",
    "no progress", "health check", "didn't finish", "bus ", "token-to-id", "glibc", "shared", "shm",
)  # fmt: skip

BENIGN = re.compile(
    r"ignore import error|fail to set rlimit|gpugetdevicecount failed"
    r"|(user|future|deprecation|runtime|resource|import)warning:"
    r"|\bnccl (info|trace)|^(?!.*error).*\bnccl version|avoid out[- ]of[- ]memory|trying port|is in use\. waiting"
    r"|retract requests"
    r"|out of memory happened"
    r"|^\W*(possible (solutions|suggestions)|\d\. (set|disable)|open an issue on github|suggestions?:)"
    # a request that was refused
    r"|exceeds the model's context length",
    re.IGNORECASE,
)
BENIGN_NCCL_WARN = re.compile(
    r"NET/|no device found|iommu|\bMTU\b|plugin|\bnuma\b|environment|libnccl|nvml|tuner|deprecat|gdrcopy|\bras\b",
    re.IGNORECASE,
)
NCCL_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"shm|shared memory|no space left|posix_fallocate", re.IGNORECASE),
        "NCCL ran out of shared memory: start the container with --shm-size 32g or --ipc=host.",
    ),
    (
        re.compile(r"socket|connect|ifname|bootstrap|ibv_|timed out", re.IGNORECASE),
        "NCCL can't reach a peer: NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE=1 for a try, firewall, --dist-init-addr.",
    ),
    (
        re.compile(r"peer|p2p|ipc", re.IGNORECASE),
        "GPU peer access failed: NCCL_P2P_DISABLE=1 for a try, IOMMU/ACS settings, nvidia-smi topo -p2p r.",
    ),
)
NCCL_DEFAULT_ADVICE = (
    "The first NCCL WARN of any rank is the cause, the failing call is not: run with NCCL_DEBUG=WARN, then "
    "NCCL_P2P_DISABLE=1, then a run without graphs ({graph_off}) to see the error where it happens."
)
UNKNOWN_ADVICE = (
    "No known class: the text is the last error of the log. Read upwards from its line; other ranks may say more."
)
DRAFTER_ADVICE = (
    "No draft is ever accepted: the drafter is of another kind than the algorithm. If the draft's architectures entry "
    "contains Eagle3, use EAGLE3; check that it was trained for this target."
)


def flags(version: tuple[int, ...] | None) -> dict[str, str]:
    """The spellings of this release for the advice; both spellings when the release is unknown."""
    old_max, new_max = "--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"
    old_off, new_off = "--disable-cuda-graph", "--cuda-graph-backend-decode disabled"
    no_flag = "leave out --enable-flashinfer-allreduce-fusion"
    enforce = "--enforce-disable-flashinfer-allreduce-fusion switches it off"
    if version is None:
        return {
            "graph_max": f"{old_max}, from 0.5.14 {new_max}",
            "graph_off": f"{old_off}, from 0.5.14 {new_off}",
            "fusion_off": f"{enforce} from 0.5.10, before that {no_flag}",
        }
    renamed = version >= (0, 5, 14)
    return {
        "graph_max": new_max if renamed else old_max,
        "graph_off": new_off if renamed else old_off,
        "fusion_off": enforce if version >= (0, 5, 10) else f"{no_flag} (a release that enables it by itself: upgrade)",
    }
